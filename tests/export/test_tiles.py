"""Tiles: bytes by hand as kernels/src/tiles.h draws them, and the same bytes as the kernels' own package writes."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from selfspec.export.blocks import Codes
from selfspec.export.tiles import Halves, pack_tiles, tiled_shape

THEIRS = Path(__file__).parents[2] / "kernels" / "selfspec_kernels" / "tiles.py"


def halves(rows: int, blocks: int, start: float = 0.0) -> Halves:
    return (start + np.arange(rows * blocks) / 8).astype(np.float16).reshape(rows, blocks)


def codes(rows: int, cols: int, bits: int) -> Codes:
    return np.random.default_rng(rows + cols + bits).integers(0, 2**bits, (rows, cols)).astype(np.uint8)


def test_four_bits_by_hand() -> None:
    """Byte 4 c + i of group j: the low half is column 4 j + i of row c, the high half sixteen further."""
    matrix = np.zeros((8, 32), dtype=np.uint8)
    matrix[0, 0], matrix[0, 16], matrix[7, 3], matrix[2, 13], matrix[2, 29] = 1, 2, 3, 4, 5
    packed = pack_tiles(matrix, 4, halves(8, 1), None)
    assert packed.shape == (1, 1, 144) == tiled_shape(8, 32, 4, minima=False)
    assert {i: int(b) for i, b in enumerate(packed[0, 0, :128]) if b} == {0: 0x21, 31: 0x03, 3 * 32 + 8 + 1: 0x54}
    np.testing.assert_array_equal(packed[0, 0, 128:].view("<f2"), np.arange(8) / 8)


def test_eight_bits_by_hand() -> None:
    """Byte 4 c + i of group j is column 4 j + i of row c; minima stand behind the scales."""
    matrix = np.zeros((8, 32), dtype=np.uint8)
    matrix[0, 0], matrix[7, 3], matrix[2, 29] = 255, 3, 5
    packed = pack_tiles(matrix, 8, halves(8, 1), halves(8, 1, -4))
    assert packed.shape == (1, 1, 288) == tiled_shape(8, 32, 8, minima=True)
    assert {i: int(b) for i, b in enumerate(packed[0, 0, :256]) if b} == {0: 255, 31: 3, 7 * 32 + 8 + 1: 5}
    np.testing.assert_array_equal(packed[0, 0, 256:].view("<f2"), [*(np.arange(8) / 8), *(np.arange(8) / 8 - 4)])


@pytest.fixture(scope="module")
def theirs() -> ModuleType:
    """The kernels package's own layout, without its compiled library."""
    if not THEIRS.is_file():
        pytest.skip("kernels/ is not here: this is no checkout")
    spec = importlib.util.spec_from_file_location("selfspec_kernels_tiles", THEIRS)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("minima", [False, True])
@pytest.mark.parametrize(("rows", "cols"), [(8, 32), (24, 96), (16, 256)])
def test_both_packages_write_the_same_bytes(theirs: ModuleType, rows: int, cols: int, bits: int, minima: bool) -> None:
    """The layout stands in two packages, since neither may need the other: they must not drift apart."""
    matrix, scales = codes(rows, cols, bits), halves(rows, cols // 32, 0.25)
    lowest = halves(rows, cols // 32, -9) if minima else None
    packed = pack_tiles(matrix, bits, scales, lowest)
    np.testing.assert_array_equal(packed, theirs.pack(matrix, scales, lowest, bits))
    assert packed.shape == tiled_shape(rows, cols, bits, minima=minima)
    found = theirs.unpack(packed, bits)
    np.testing.assert_array_equal(found[0], matrix)
    np.testing.assert_array_equal(found[1], scales)


def test_the_packages_agree_on_the_number_of_the_layout(theirs: ModuleType) -> None:
    """An artifact that names another layout than the library reads would not open at all."""
    from selfspec.models.manifest import KERNEL_LAYOUTS

    assert KERNEL_LAYOUTS == {"selfspec-kernels": theirs.LAYOUT}


def test_eight_rows_are_a_run_of_bytes() -> None:
    """Head slices at multiples of eight rows refer to bytes of the whole matrix."""
    matrix, scales = codes(24, 64, 4), halves(24, 2)
    whole = pack_tiles(matrix, 4, scales, None)
    np.testing.assert_array_equal(whole[1:], pack_tiles(matrix[8:], 4, scales[8:], None))
