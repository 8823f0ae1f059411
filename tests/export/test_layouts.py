"""How matrices of every kind come into weights.bin for native kernels, and which are refused.

Read back with the runtime-independent reader of ``stored_weights``, which is written from the drawing of the layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from selfspec.check.stored_weights import matrices_of
from selfspec.errors import CheckpointError
from selfspec.export.blocks import Blocks, Floats
from selfspec.export.layouts import BlockLayout, TileLayout
from selfspec.export.weights_file import WeightsFile
from selfspec.models.graph import GraphBuilder
from selfspec.models.native_kernels import NativeKernels
from selfspec.models.tensors import Role, StoredTensor, TensorSpec


def linear_spec(*parts: tuple[int, int], name: str = "m") -> TensorSpec:
    return TensorSpec(name, tuple(f"{name}.{i}" for i in range(len(parts))), parts, Role.LINEAR)


def rows_of(kind: str, rows: int, cols: int = 64, seed: int = 0) -> Floats | Blocks:
    """Random rows as a checkpoint of type ``kind`` hands them over: scales and minima are half-precision numbers."""
    rng = np.random.default_rng(seed)
    scales = (0.01 + rng.random((rows, cols // 32))).astype(np.float16).astype(np.float32)
    if kind == "F32":
        return rng.standard_normal((rows, cols)).astype(np.float32)
    bits = 8 if kind == "Q8_0" else 4
    codes = rng.integers(0, 2**bits, (rows, cols)).astype(np.uint8)
    minima = -scales.round(2).astype(np.float16).astype(np.float32) * 7 if kind == "Q4_1" else None
    minima = None if minima is None else minima.astype(np.float16).astype(np.float32)
    return Blocks(bits, 32, codes, scales, minima=minima)


def stored(folder: Path, kinds: Sequence[str], bits: int) -> tuple[StoredTensor, Floats, list[Floats]]:
    """(as stored, read back, the rows of each part as floats) of a matrix with a part of each kind."""
    parts = [rows_of(kind, 16, seed=i) for i, kind in enumerate(kinds)]
    spec = linear_spec(*((16, 64) for _ in kinds))
    with WeightsFile(folder / "weights.bin") as file:
        file.append(np.zeros(7, dtype=np.uint8))  # so that alignment has something to do
        tensor = TileLayout().store(file, spec, bits, kinds, iter(parts)).tensor
    assert tensor.codes.offset % 64 == 0
    assert (folder / "weights.bin").stat().st_size == tensor.codes.offset + tensor.codes.num_bytes
    return tensor, read_back(folder, tensor), [p.dequantize() if isinstance(p, Blocks) else p for p in parts]


def read_back(folder: Path, tensor: StoredTensor) -> Floats:
    g = GraphBuilder("one")
    x = g.input("x", ir.DataType.FLOAT, [1, "rows", tensor.shape[1]])
    g.output("y", NativeKernels().product(g, x, tensor), [1, "rows", tensor.shape[0]])
    g.save(folder / "one.onnx")
    [(name, matrix)] = matrices_of(folder, "one.onnx")
    assert name == tensor.name
    return matrix


@pytest.mark.parametrize(
    ("kinds", "bits", "minima"),
    [
        (["Q4_0"], 4, False), (["Q4_1"], 4, True), (["Q8_0"], 8, False), (["Q4_0"], 8, False), (["Q4_1"], 8, True),
        (["Q4_0", "Q4_1", "Q4_0"], 4, True), (["Q8_0", "Q4_0"], 8, False), (["Q8_0", "Q4_1", "Q4_0"], 8, True),
    ],
)  # fmt: skip
def test_what_gguf_stores_comes_over_exactly(tmp_path: Path, kinds: list[str], bits: int, minima: bool) -> None:
    """A minimum of the wrong sign, of another block, or of codes that were not widened; and no byte too many."""
    tensor, found, parts = stored(tmp_path, kinds, bits)
    np.testing.assert_array_equal(found, np.concatenate(parts))
    assert tensor.codes.shape[-1] == 8 * (32 * bits // 8 + (4 if minima else 2))
    assert all(TileLayout().keeps(kind, bits) for kind in kinds)


@pytest.mark.parametrize("bits", [4, 8])
def test_an_exact_part_stays_exact_beside_a_rounded_one(tmp_path: Path, bits: int) -> None:
    """q from Q4_0 and v from floats, stacked: rounding must not touch q."""
    _, found, (exact, rounded) = stored(tmp_path, ["Q4_0", "F32"], bits)
    np.testing.assert_array_equal(found[:16], exact)
    error = np.abs(found[16:] - rounded).max()
    assert 0 < error < np.ptp(rounded) / (2**bits - 1)


def test_eight_bits_are_rounded_again_where_four_are_asked_for(tmp_path: Path) -> None:
    """Q8_0 at four bits: codes cut off instead of rounded would be another model."""
    _, found, [original] = stored(tmp_path, ["Q8_0"], 4)
    assert not TileLayout().keeps("Q8_0", 4)
    step = np.ptp(original.reshape(16, 2, 32), axis=-1).max() / 15
    assert np.abs(found - original).max() <= step


def test_a_slice_reads_its_rows_of_the_same_bytes(tmp_path: Path) -> None:
    """The tied head: hot and rest are slices of the embedding."""
    tensor, whole, _ = stored(tmp_path, ["Q4_1", "Q4_1"], 8)
    np.testing.assert_array_equal(read_back(tmp_path, tensor.rows(8, 24)), whole[8:24])
    with pytest.raises(ValueError, match="multiples of 8"):
        tensor.rows(4, 12)


@pytest.mark.parametrize("value", [1e7, -1e7])
def test_scales_beyond_half_precision_are_refused_by_name(tmp_path: Path, value: float) -> None:
    """They would be stored as infinity, and every logit be none."""
    rows = np.zeros((8, 32), dtype=np.float32)
    rows[3, 5] = value
    with WeightsFile(tmp_path / "weights.bin") as file, pytest.raises(CheckpointError, match=r"^m .*`kernels` ort"):
        TileLayout().store(file, linear_spec((8, 32)), 4, ["F32"], [rows])


@pytest.mark.parametrize("scale", [2.0**-25, 2.5 * 2.0**-24, 1e5])
def test_blocks_whose_scales_are_no_half_precision_numbers_are_refused_by_name(tmp_path: Path, scale: float) -> None:
    """Rounded to zero, a block would vanish without a word."""
    blocks = Blocks(4, 32, np.full((8, 32), 3, dtype=np.uint8), np.full((8, 1), scale, dtype=np.float32))
    with WeightsFile(tmp_path / "weights.bin") as file, pytest.raises(CheckpointError, match=r"^m .*`kernels` ort"):
        TileLayout().store(file, linear_spec((8, 32)), 4, ["Q4_0"], [blocks])


def test_the_least_scales_of_gguf_come_over_exactly(tmp_path: Path) -> None:
    """They are half-precision numbers, however small: nothing to refuse, nothing to warn of."""
    blocks = Blocks(4, 32, np.full((8, 32), 3, dtype=np.uint8), np.full((8, 1), 2.0**-24, dtype=np.float32))
    with WeightsFile(tmp_path / "weights.bin") as file:
        found = TileLayout().store(file, linear_spec((8, 32)), 4, ["Q4_0"], [blocks])
    np.testing.assert_array_equal(read_back(tmp_path, found.tensor), blocks.dequantize())
    assert found.faint == 0


@pytest.mark.parametrize("asymmetry", ["zero_points", "minima"])
def test_blocks_that_are_not_what_their_type_says_are_refused_by_name(tmp_path: Path, asymmetry: str) -> None:
    """Symmetric tiles have no place for zero points: every weight of the matrix would be shifted."""
    rng = np.random.default_rng(0)
    codes, scales = rng.integers(0, 16, (8, 32)).astype(np.uint8), np.ones((8, 1), dtype=np.float32)
    if asymmetry == "zero_points":
        blocks = Blocks(4, 32, codes, scales, zero_points=np.full((8, 1), 3, dtype=np.uint8))
    else:
        blocks = Blocks(4, 32, codes, scales, minima=-scales)
    with WeightsFile(tmp_path / "weights.bin") as file, pytest.raises(CheckpointError, match=r"^m is of a symmetric"):
        TileLayout().store(file, linear_spec((8, 32)), 4, ["Q4_0"], [blocks])


def test_zero_points_come_over_where_there_is_a_place_for_them(tmp_path: Path) -> None:
    """As minima, beside a part that has its own."""
    first, second = rows_of("Q4_1", 8), rows_of("Q4_0", 8)
    assert isinstance(second, Blocks)
    second = replace(second, zero_points=np.full((8, 2), 4, dtype=np.uint8))
    with WeightsFile(tmp_path / "weights.bin") as file:
        found = TileLayout().store(file, linear_spec((8, 64), (8, 64)), 4, ["Q4_1", "Q4_0"], [first, second])
    np.testing.assert_array_equal(read_back(tmp_path, found.tensor)[8:], second.dequantize())


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_too_small_for_half_precision_are_counted(tmp_path: Path, bits: int) -> None:
    """One of them vanishes here. A block of zeros loses nothing, nor does one with a small weight among others; and
    ONNX Runtime's scales are wide enough."""
    matrix = np.zeros((8, 96), dtype=np.float32)
    matrix[1, :32] = 1e-9
    matrix[2, 40] = -5e-6
    matrix[3, 64:66] = 1e-9, 1e-3
    with WeightsFile(tmp_path / "weights.bin") as file:
        tiles, blocks = (
            layout.store(file, linear_spec((8, 96)), bits, ["F32"], [matrix])
            for layout in (TileLayout(), BlockLayout())
        )
    assert (tiles.blocks, tiles.faint) == (24, 2)
    assert (blocks.blocks, blocks.faint) == (24, 0)
