"""What quantisation may cost on SmolLM2. The bounds lie a little above what was measured (docs/log.md)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from selfspec import Model, load
from selfspec.check.quality import Recording, compare, record
from selfspec.check.stored_weights import dequantized_linears
from selfspec.export import layouts
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.blocks import Blocks, Floats, quantize
from selfspec.export.source import open_model

pytestmark = [pytest.mark.real, pytest.mark.slow]

ModelOf = Callable[..., Model]

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


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_native_kernels_are_nearer_to_float32(precision: str, real_model: ModelOf, recordings: list[Recording]) -> None:
    """The weights are Q4_1, which come over exactly, where ONNX Runtime's layout rounds them a second time."""
    native, ort = (
        compare(real_model(precision, kernels), real_model("fp32"), recordings) for kernels in ("native", "ort")
    )
    assert native.kl <= ort.kl
    assert native.agreement >= BOUNDS[precision][0]


def test_a_zero_point_off_by_one_breaks_the_bounds(
    real_model: ModelOf, recordings: list[Recording], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bounds are worth nothing if they cannot be missed."""

    def off_by_one(values: Floats, bits: int, block_size: int) -> Blocks:
        good = quantize(values, bits, block_size)
        assert good.zero_points is not None
        return Blocks(bits, block_size, good.codes, good.scales, np.minimum(good.zero_points + 1, 2**bits - 1))

    monkeypatch.setattr(layouts, "quantize", off_by_one)
    checkpoint, name = open_model("smollm2-135m")
    report = export_model(checkpoint, name, tmp_path / "bad", ExportOptions(precision="int4", kernels="ort"))
    quality = compare(load(report.output, threads=1), real_model("fp32"), recordings[:3])
    assert quality.agreement < BOUNDS["int4"][0] / 2


def test_stored_weights_are_within_two_steps_of_the_checkpoints(real_artifact: Callable[[str], Path]) -> None:
    """Q4_1 blocks become asymmetric blocks: no weight moves by more than two of sixteen steps."""
    checkpoint, _ = open_model("smollm2-135m")
    folder = real_artifact("int4")
    manifest = load(folder, threads=1).artifact.manifest
    name = "model.layers.7.mlp.down_proj.weight"
    stored = next(matrix for key, matrix in dequantized_linears(folder, manifest) if key == name)
    read = checkpoint.read(name, 0, len(stored))
    assert isinstance(read, Blocks)
    original = read.dequantize()
    blocks = original.reshape(len(stored), -1, 32)
    step = (np.maximum(blocks.max(-1), 0) - np.minimum(blocks.min(-1), 0)) / 15
    error = np.abs(stored - original).reshape(blocks.shape).max(-1)
    assert (error <= 2 * step).all()
    assert np.sqrt(np.mean((stored - original) ** 2)) <= 0.08 * np.sqrt(np.mean(original**2))


@pytest.mark.usefixtures("native_kernels")
def test_native_kernels_hold_the_checkpoints_own_weights(real_artifact: Callable[..., Path]) -> None:
    """Q4_1 has a scale and a minimum in half precision, and so have tiles: nothing is rounded."""
    checkpoint, _ = open_model("smollm2-135m")
    folder = real_artifact("int4", "native")
    matrices = dict(dequantized_linears(folder, load(folder, threads=1).artifact.manifest))
    for name in ("model.layers.7.mlp.down_proj.weight", "model.layers.29.self_attn.o_proj.weight"):
        read = checkpoint.read(name, 0, len(matrices[name]))
        assert isinstance(read, Blocks)
        np.testing.assert_array_equal(matrices[name], read.dequantize())
