"""GGUFs by their first letters, and in several parts: named by any one, held against each other."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import numpy as np
import pytest
from tests.export.test_gguf import write_gguf

from selfspec.errors import CheckpointError, SelfSpecError
from selfspec.export.gguf_parts import model_name, part_names
from selfspec.export.source import open_model

if TYPE_CHECKING:
    from tests.conftest import Tools


@pytest.fixture
def whole(tools: Tools, tmp_path: Path) -> Path:
    spec = tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1, head_dim=16)
    return write_gguf(tmp_path / "whole.gguf", spec, tools.weights(spec), tokenizer=tools.byte_tokenizer(spec.vocab))


def split(whole: Path, parts: int, /, **wrong: int) -> list[Path]:
    """As gguf-split cuts: metadata in the first part, tensors in turn. ``wrong``: numbers that the last part states."""
    reader = gguf.GGUFReader(whole)
    paths = [whole.with_name(f"toy-{i + 1:05}-of-{parts:05}.gguf") for i in range(parts)]
    for i, path in enumerate(paths):
        facts = {"no": i, "count": parts, "total": len(reader.tensors)} | (wrong if i == parts - 1 else {})
        writer = gguf.GGUFWriter(path, "llama")
        if i == 0:
            copy_metadata(reader, writer)
        writer.add_uint16("split.no", facts["no"])
        writer.add_uint16("split.count", facts["count"])
        writer.add_int32("split.tensors.count", facts["total"])
        for tensor in list(reader.tensors)[i::parts]:
            writer.add_tensor(tensor.name, np.array(tensor.data), raw_dtype=tensor.tensor_type)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    return paths


def copy_metadata(reader: gguf.GGUFReader, writer: gguf.GGUFWriter) -> None:
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            kind, value = field.types[0], field.contents()
            writer.add_key_value(key, value, kind, field.types[-1] if kind is gguf.GGUFValueType.ARRAY else None)


def refused(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        open_model(str(path))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# Parts.


def test_names_by_hand() -> None:
    """Every part's name follows from any one's; other names are whole models."""
    parts = ["a/m-Q4_0-00001-of-00002.gguf", "a/m-Q4_0-00002-of-00002.gguf"]
    assert part_names(parts[0]) == part_names(parts[1]) == parts
    for name in ("m.gguf", "m-1-of-2.gguf", "m-00001-of-00000.gguf", "m-00001-of-99999.gguf"):
        assert part_names(name) == [name]
    names = {
        "m-Q4_0-00001-of-00002.gguf": "m-Q4_0",
        "m-1.5.gguf": "m-1.5",
        "ggml.bin": "ggml",
        "sha256-0a": "sha256-0a",
    }
    assert {name: model_name(Path(name)) for name in names} == names


def test_any_part_opens_the_whole_model(tools: Tools, whole: Path, tmp_path: Path) -> None:
    """One of three parts read alone lacks two thirds of its tensors."""
    expected = tools.export(whole, tmp_path / "expected", precision="fp32")
    paths = split(whole, 3)
    for path in paths:
        checkpoint, name = open_model(str(path))
        assert (name, sorted(checkpoint.shapes())) == ("toy", sorted(open_model(str(whole))[0].shapes()))
    found = tools.export(paths[1], tmp_path / "found", precision="fp32")
    assert (found / "weights.bin").read_bytes() == (expected / "weights.bin").read_bytes()
    assert (found / "tokenizer.json").read_bytes() == (expected / "tokenizer.json").read_bytes()


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_part_is_named(whole: Path, gone: int) -> None:
    """A download of which one file is still on its way."""
    paths = split(whole, 2)
    paths[gone].unlink()
    message = refused(paths[1 - gone])
    assert f"{paths[gone].name} is missing" in message


def test_a_damaged_part_is_named(whole: Path) -> None:
    """Every part's header is checked, not only the first one's."""
    paths = split(whole, 2)
    paths[1].write_bytes(paths[1].read_bytes()[:-40])
    message = refused(paths[0])
    assert paths[1].name in message
    assert "download it again" in message


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"no": 0}, "says it is part 1 of 2"),
        ({"count": 3}, "says it is part 2 of 3"),
        ({"total": 5}, "not of one model"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(whole: Path, wrong: dict[str, int], words: str) -> None:
    """Two downloads of two models in one folder, or files that were renamed until they opened."""
    assert words in refused(split(whole, 2, **wrong)[0])


def test_a_part_under_another_name_is_one_sentence(whole: Path) -> None:
    """model.gguf: where the others are cannot be known."""
    path = split(whole, 2)[0].rename(whole.with_name("model.gguf"))
    assert "part 1 of 2" in refused(path)


def test_tensors_that_two_parts_hold_are_refused(whole: Path) -> None:
    """The same file twice under two names."""
    paths = split(whole, 2)
    data = paths[0].read_bytes()
    key = b"split.no" + (2).to_bytes(4, "little")
    assert data.count(key) == 1
    paths[1].write_bytes(data.replace(key + b"\x00\x00", key + b"\x01\x00"))
    assert "not of one model" in refused(paths[0])


@pytest.mark.reference
def test_verify_does_not_compare_with_one_part_alone(tools: Tools, whole: Path, tmp_path: Path) -> None:
    """transformers would read the part that it is given, and make up the other weights."""
    from selfspec.check.parity import verify_export

    path = split(whole, 2)[0]
    artifact = tools.export(path, tmp_path / "out", precision="fp32")
    with pytest.raises(SelfSpecError, match="GGUF files in several parts"):
        verify_export(open_model(str(path))[0], artifact)


# The magic.


@pytest.mark.parametrize("name", ["sha256-6b23", "model.bin", "model", "model.GGUF", "model-v1.5"])
def test_a_gguf_is_known_by_its_first_letters(whole: Path, name: str) -> None:
    """Other programs store their files under hashes."""
    path = whole.rename(whole.with_name(name))
    assert open_model(str(path))[0].config.num_layers == 2


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        (b"\n<!DOCTYPE html><html>", "a web page"),
        (b"<html lang=en>", "a web page"),
        (b"", "empty"),
        (b"tjgg" + bytes(40), "before GGUF"),
        (b"PK\x03\x04" + bytes(40), "a zip file"),
        (b"\x00" * 4096, "begins with the letters GGUF"),
        (b"GGUF", "not a complete GGUF file"),
        (b"GGUF\x00\x00\x00\x03" + bytes(100), "big-endian"),
    ],
)
def test_what_is_no_gguf_is_said_in_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    """The name says GGUF and the file is something else: what it is tells what to do."""
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert words in refused(path)
    assert "model.gguf" in refused(path)
