"""Random checkpoints: the published shapes, files that others can read, the same bytes for the same seed."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.synthetic.checkpoints import (
    CONFIGS,
    STD,
    bpe_tokenizer,
    num_parameters,
    tensor_shapes,
    write_checkpoint,
)
from selfspec.export.source import open_model

TINY = CONFIGS["tiny"]


def _loaded(folder: Path) -> dict[str, Any]:
    return {name: values for file in sorted(folder.glob("*.safetensors")) for name, values in load_file(file).items()}


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


# Counted by hand from the published configurations, tied embeddings once.
@pytest.mark.parametrize(
    ("name", "count", "active"),
    [
        ("llama-3.2-1b", 1_235_814_400, 1_235_814_400),
        ("qwen3-1.7b", 1_720_574_976, 1_720_574_976),
        ("olmoe-1b-7b", 6_919_161_856, 1_282_017_280),
    ],
)
def test_sizes_are_those_of_the_published_models(name: str, count: int, active: int) -> None:
    assert num_parameters(CONFIGS[name]) == (count, active)


@pytest.mark.parametrize("shards", [1, 3])
def test_a_checkpoint_is_read_by_safetensors_and_by_the_exporter(shards: int, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path / "model", TINY, shards=shards)
    assert len(list(folder.glob("*.safetensors"))) == shards
    loaded = _loaded(folder)
    assert {name: values.shape for name, values in loaded.items()} == tensor_shapes(TINY)
    assert {values.dtype.name for values in loaded.values()} == {"bfloat16"}
    checkpoint, name = open_model(str(folder))
    assert name == "model"
    assert checkpoint.shapes() == tensor_shapes(TINY)


def test_values_are_plausible(tmp_path: Path) -> None:
    """Norms of 1; matrices of mean 0 and the given deviation, no two rows alike."""
    for name, values in _loaded(write_checkpoint(tmp_path, TINY)).items():
        values = values.astype(np.float32)
        if values.ndim == 1:
            assert (values == 1).all(), name
        else:
            assert abs(values.mean()) < 0.1 * STD, name
            assert 0.9 * STD < values.std() < 1.1 * STD, name
            assert len(np.unique(values, axis=0)) == len(values), name


def test_a_matrix_larger_than_the_pool_goes_round_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("benchmarks.synthetic.checkpoints._POOL", 101)
    values = _loaded(write_checkpoint(tmp_path, TINY))["model.embed_tokens.weight"].reshape(-1)
    assert (values[101:] == values[:-101]).all()


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(tmp_path: Path) -> None:
    first, again, other = (
        _digests(write_checkpoint(tmp_path / name, TINY, seed=seed)) for name, seed in (("a", 0), ("b", 0), ("c", 1))
    )
    assert first == again
    assert [name for name in first if first[name] != other[name]] == ["model.safetensors"]


@pytest.mark.parametrize("size", [258, 259, 1000, 70_000])
def test_a_tokenizer_has_the_size_asked_for_and_reads_any_text(size: int) -> None:
    tokenizer = bpe_tokenizer(size)
    assert tokenizer.get_vocab_size() == size
    assert sorted(tokenizer.get_vocab().values()) == list(range(size))
    text = "Häuser, 家 and\n42 houses\x00"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert tokenizer.token_to_id("<|eos|>") == size - 1


def test_a_vocabulary_without_room_for_the_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="257 has no room for 256 bytes"):
        bpe_tokenizer(257)


def test_embeddings_may_be_larger_than_the_rest(tmp_path: Path) -> None:
    """With small ones, random models route every row alike."""
    loaded = _loaded(write_checkpoint(tmp_path, TINY, embedding_std=1.0))
    for name, values in loaded.items():
        if values.ndim > 1:
            expected = 1.0 if name == "model.embed_tokens.weight" else STD
            assert values.astype(np.float32).std() == pytest.approx(expected, rel=0.1), name
