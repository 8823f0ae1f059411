"""What quantisation may cost on SmolLM2. The bounds lie a little above what was measured (docs/log.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from selfspec import Model, load
from selfspec.export import weights
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.blocks import Blocks, Floats, quantize
from selfspec.export.source import open_model
from selfspec.quality import Recording, compare, record
from selfspec.stored_weights import dequantized_linears

pytestmark = [pytest.mark.real, pytest.mark.slow]

ModelOf = Callable[[str], Model]

BOUNDS = {"int8": (0.96, 0.006), "int4": (0.77, 0.26)}
"""precision → (least agreement, most KL divergence) over 2,000 tokens of float32's own answers."""


@pytest.fixture(scope="module")
def recordings(real_model: ModelOf) -> list[Recording]:
    return record(real_model("fp32"))


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantisation_keeps_to_its_bounds(precision: str, real_model: ModelOf, recordings: list[Recording]) -> None:
    quality = compare(real_model(precision), real_model("fp32"), recordings)
    agreement, kl = BOUNDS[precision]
    assert quality.tokens >= 2000
    assert quality.agreement >= agreement, quality
    assert quality.kl <= kl, quality


def test_a_zero_point_off_by_one_breaks_the_bounds(
    real_model: ModelOf, recordings: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are worth nothing if they cannot be missed."""

    def off_by_one(values: Floats, bits: int, block_size: int) -> Blocks:
        good = quantize(values, bits, block_size)
        assert good.zero_points is not None
        return Blocks(bits, block_size, good.codes, good.scales, np.minimum(good.zero_points + 1, 2**bits - 1))

    monkeypatch.setattr(weights, "quantize", off_by_one)
    checkpoint, name = open_model("smollm2-135m")
    report = export_model(checkpoint, name, tmp_path / "bad", ExportOptions(precision="int4"))
    quality = compare(load(report.output, threads=1), real_model("fp32"), recordings[:3])
    assert quality.agreement < BOUNDS["int4"][0] / 2


def test_stored_weights_are_within_two_steps_of_the_checkpoints(real_artifact: Callable[[str], Path]) -> None:
    """Q4_1 blocks become asymmetric blocks: no weight moves by more than two of sixteen steps."""
    checkpoint, _ = open_model("smollm2-135m")
    folder = real_artifact("int4")
    manifest = load(folder, threads=1).artifact.manifest
    name = "model.layers.7.mlp.down_proj.weight"
    stored = next(matrix for key, matrix in dequantized_linears(folder, manifest) if key == name)
    original = checkpoint.read(name, 0, len(stored))
    assert isinstance(original, np.ndarray)
    blocks = original.reshape(len(stored), -1, 32)
    step = (np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)) / 15
    error = np.abs(stored - original).reshape(blocks.shape).max(-1)
    assert (error <= 2 * step).all()
    assert np.sqrt(np.mean((stored - original) ** 2)) <= 0.08 * np.sqrt(np.mean(original**2))
