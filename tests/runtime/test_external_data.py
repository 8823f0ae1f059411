"""Graphs take their weights from weights.bin and from nowhere else, wherever in the graph the reference stands."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import onnxruntime as ort
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec import load
from selfspec.errors import ArtifactError
from selfspec.runtime.external_data import Place, check_external_data, external_tensors

if TYPE_CHECKING:
    from tests.conftest import Toy

SIZE = 4096


def field(number: int, data: bytes | int) -> bytes:
    """One protobuf field, by the encoding's own rules."""
    if isinstance(data, int):
        return varint(number << 3) + varint(data)
    return varint(number << 3 | 2) + varint(len(data)) + data


def varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tensor(*entries: tuple[str, str], external: bool = True) -> bytes:
    data = b"".join(field(13, field(1, key.encode()) + field(2, value.encode())) for key, value in entries)
    return field(1, 64) + data + (field(14, 1) if external else b"")


def at(location: str = "weights.bin", offset: str = "0", length: str = "256") -> bytes:
    return tensor(("location", location), ("offset", offset), ("length", length))


# The ways from a model to a tensor, in onnx.proto3's numbers, outermost first.
WAYS = {
    "initializer": (7, 5), "sparse initializer, values": (7, 15, 1), "sparse initializer, indices": (7, 15, 2),
    "attribute": (7, 1, 5, 5), "attribute, list": (7, 1, 5, 10), "attribute, sparse": (7, 1, 5, 22, 1),
    "attribute, sparse list": (7, 1, 5, 23, 2), "subgraph": (7, 1, 5, 6, 5), "subgraphs": (7, 1, 5, 11, 5),
    "subgraph of a subgraph, attribute": (7, 1, 5, 6, 1, 5, 6, 1, 5, 5), "function": (25, 7, 5, 5),
    "function, default": (25, 11, 5), "training": (20, 1, 5), "training, algorithm": (20, 2, 1, 5, 5),
}  # fmt: skip


def model(way: tuple[int, ...], inner: bytes) -> bytes:
    for number in reversed(way):
        inner = field(99, b"name") + field(number, inner) + field(98, 7)
    return inner


@pytest.mark.parametrize("way", WAYS)
def test_a_reference_is_found_wherever_it_stands(way: str) -> None:
    """One place where nobody looks is enough."""
    check_external_data(model(WAYS[way], at()), {"weights.bin": SIZE})
    check_external_data(model(WAYS[way], tensor(external=False)), {"weights.bin": SIZE})
    with pytest.raises(ValueError, match=r"\.\./x"):
        check_external_data(model(WAYS[way], at("../x")), {"weights.bin": SIZE})


@pytest.mark.parametrize(
    "location",
    ["../x", "/etc/passwd", "sub/x", "./weights.bin", "sub/../weights.bin", "weights.bin/../../x", "weights.bin\0",
     "weights.bin\0/../x", "Weights.bin", "weights.bin/", "", " weights.bin", "file:weights.bin", "manifest.json",
     "*/_ORT_MEM_ADDR_/*"],
)  # fmt: skip
def test_only_the_one_name_is_a_place(location: str) -> None:
    """Paths that some normalisation turns into another file; ONNX Runtime takes four of these."""
    with pytest.raises(ValueError, match=r"only weights\.bin"):
        check_external_data(model((7, 5), at(location)), {"weights.bin": SIZE})


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (at(offset="3841"), "ends at byte 4097"),
        (at(offset="9" * 19), "ends at byte"),
        (at(offset="1" * 5000), "no number"),
        (at(offset="-4"), "no number"),
        (at(offset="+4"), "no number"),
        (at(length="1e3"), "no number"),
        (at(length="²"), "no number"),
        (at(length=""), "no number"),
        (tensor(("location", "weights.bin")), "must have"),
        (tensor(("location", "weights.bin"), ("offset", "0")), "must have"),
        (tensor(("offset", "0"), ("length", "4"), ("size", "4")), "must have"),
        (tensor(), "must have"),
        (tensor(("location", "../x"), external=False), "must have"),
        (at() + tensor(("location", "../x")), "must have"),
        (at() + at(), "must have"),
    ],
)
def test_a_place_is_whole_and_lies_in_the_weights(data: bytes, named: str) -> None:
    """A range beyond the mapped file, or what is left to a default: to the end of the file."""
    with pytest.raises(ValueError, match=named):
        check_external_data(model((7, 5), data), {"weights.bin": SIZE})


def test_the_last_byte_is_inside() -> None:
    """An off-by-one would refuse every artifact, or read one byte beyond it."""
    check_external_data(model((7, 5), at(offset="3840")), {"weights.bin": SIZE})


@pytest.mark.parametrize(
    "data",
    [b"\x3a", b"\x3a\x05abc", b"\x3b", b"\xff" * 20, b"\x3a" + b"\xff" * 9 + b"\x01", b"\x3d\x00", b"\x80" * 30,
     field(7, field(5, field(13, b"\x0a\xff")))],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    """IndexError, or an endless loop over a number that never ends."""
    with pytest.raises(ValueError, match=r"no ONNX graph|cut short"):
        check_external_data(data, {"weights.bin": SIZE})


def test_nesting_is_bounded() -> None:
    """RecursionError, which is no ValueError."""
    with pytest.raises(ValueError, match="deeply"):
        check_external_data(model((7, *(1, 5, 6) * 300), b""), {"weights.bin": SIZE})


@given(st.binary(max_size=200), st.integers(0, 400))
def test_no_bytes_raise_anything_else(junk: bytes, position: int) -> None:
    """A traceback for a file that came from elsewhere."""
    whole = model((7, 1, 5, 6, 5), at())
    cut = position % len(whole)
    for data in (junk, whole[:cut] + junk, whole[:cut] + junk[:1] + whole[cut + 1 :]):
        try:
            check_external_data(data, {"weights.bin": SIZE})
        except ValueError:
            continue


def test_a_graph_that_takes_another_file_of_the_folder_is_not_loaded(fp32: Toy, tmp_path: Path) -> None:
    """The whole path: ONNX Runtime itself would take any file inside the folder, here an unlisted one."""
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    shutil.copyfile(folder / "weights.bin", folder / "other.bin")
    path = folder / fp32.model.artifact.manifest.embed_graph
    graph = ir.load(path)
    for value in graph.graph.initializers.values():
        value.const_value = moved(value.const_value)
    path.write_bytes(ir.to_proto(graph).SerializeToString())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["graphs/cpu/embed.onnx"] = {
        "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ArtifactError, match=r"embed\.onnx is not loaded: it takes weights from 'other\.bin'"):
        load(folder, threads=1)


def test_bytes_of_another_format_are_not_loaded(fp32: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime knows its own format by four letters, in bytes of which the walk through protobuf saw nothing."""
    options = ort.SessionOptions()
    options.use_per_session_threads = False
    options.optimized_model_filepath = str(tmp_path / "embed.ort")
    options.add_session_config_entry("session.save_model_format", "ORT")
    name = fp32.model.artifact.manifest.embed_graph
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(folder))
    ort.InferenceSession((folder / name).read_bytes(), options, providers=["CPUExecutionProvider"])
    data = (tmp_path / "embed.ort").read_bytes()
    assert data[4:8] == b"ORTM"
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))
    monkeypatch.setattr("selfspec.runtime.sessions.check_external_data", lambda data, size: None)
    with pytest.raises(ArtifactError, match=r"embed\.onnx cannot be loaded"):
        load(folder, threads=1)


def moved(place: Any) -> ir.ExternalTensor:
    return ir.ExternalTensor("other.bin", place.offset, place.length, place.dtype, shape=place.shape, name=place.name)


def test_places_are_told_with_their_names() -> None:
    """Which bytes a step reads is counted by them."""
    named = field(8, b"rotary.cos") + at(offset="64")
    found = external_tensors(model((7, 5), named), {"weights.bin": SIZE})
    assert list(found) == [Place("rotary.cos", "weights.bin", 64, 256)]
    assert list(external_tensors(model((7, 5), tensor(external=False)), {"weights.bin": SIZE})) == []


def test_every_listed_file_has_its_own_size() -> None:
    """A place in a head's file that is held against weights.bin; a file of the folder that is not listed."""
    weights = {"weights.bin": SIZE, "heads/x.bin": 320}
    check_external_data(model((7, 5), at("heads/x.bin", offset="64")), weights)
    with pytest.raises(ValueError, match=r"byte 321 of heads/x\.bin, which has 320"):
        check_external_data(model((7, 5), at("heads/x.bin", offset="65")), weights)
    with pytest.raises(ValueError, match=r"'x\.bin', and only weights\.bin, heads/x\.bin"):
        check_external_data(model((7, 5), at("x.bin")), weights)
