"""Quantised blocks: bounds on the error, odd blocks, and how codes lie in bytes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from selfspec.export.blocks import Blocks, Codes, Floats, pack, quantize, quantize_affine


def floats(*rows: list[float]) -> Floats:
    return np.asarray(rows, dtype=np.float32)


def min_max(weights: Floats, bits: int, size: int) -> Floats:
    """Plain rounding to the grid over [min(x, 0), max(x, 0)] with a rounded zero point: what everyone does first."""
    rows, cols = weights.shape
    x = weights.reshape(rows, -1, size).astype(np.float64)
    low, high, top = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0), 2**bits - 1
    step = np.where(high > low, (high - low) / top, 1.0)[..., None]
    zero = np.clip(np.rint(-low[..., None] / step), 0, top)
    codes = np.clip(np.rint(x / step) + zero, 0, top)
    return np.asarray(((codes - zero) * step).reshape(rows, cols), dtype=np.float32)


def squared_error(a: Floats, b: Floats) -> float:
    return float(((a.astype(np.float64) - b) ** 2).sum())


def random(rows: int = 6, cols: int = 128, seed: int = 0, scale: float = 0.05, shift: float = 0.0) -> Floats:
    noise = np.random.default_rng(seed).standard_normal((rows, cols))
    return np.asarray(noise * scale + shift, dtype=np.float32)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("size", [16, 32, 128])
def test_shapes_types_and_ranges(bits: int, size: int) -> None:
    """What the writer packs: one code a weight, one scale and zero point a block."""
    blocks = quantize(random(), bits, size)
    assert blocks.codes.shape == (6, 128)
    assert blocks.scales.shape == (6, 128 // size)
    assert blocks.zero_points is not None
    assert blocks.zero_points.shape == (6, 128 // size)
    assert blocks.codes.dtype == blocks.zero_points.dtype == np.uint8
    assert blocks.scales.dtype == np.float32
    assert blocks.codes.max() < 2**bits
    assert blocks.zero_points.max() < 2**bits
    assert (blocks.scales > 0).all()
    assert blocks.dequantize().dtype == np.float32


def test_a_block_on_the_grid_is_kept_exactly() -> None:
    """By hand: -8 … 7 in steps of 0.5 need codes 0 … 15, zero point 8, scale 0.5."""
    weights = floats([(i - 8) * 0.5 for i in range(16)])
    blocks = quantize(weights, 4, 16)
    assert blocks.zero_points is not None
    np.testing.assert_array_equal(blocks.codes[0], np.arange(16))
    np.testing.assert_array_equal(blocks.zero_points, [[8]])
    np.testing.assert_allclose(blocks.scales, [[0.5]], rtol=1e-6)
    np.testing.assert_allclose(blocks.dequantize(), weights, rtol=1e-6)


@pytest.mark.parametrize("bits", [4, 8])
def test_no_weight_is_further_off_than_two_steps(bits: int) -> None:
    """A block that overflows its codes wraps around: one weight of the opposite sign. A narrower grid may cut ends."""
    weights = random(20, 256)
    blocks = quantize(weights, bits, 32)
    step = np.repeat(blocks.scales, 32, axis=1)
    assert (np.abs(blocks.dequantize() - weights) <= step * 2).all()


def test_eight_bits_are_within_half_a_step_of_the_range() -> None:
    """The bound of plain rounding, plus half a step for the zero point at the range's ends."""
    weights = random(20, 256)
    grouped = weights.reshape(20, 8, 32)
    step = (np.maximum(grouped.max(-1), 0) - np.minimum(grouped.min(-1), 0)) / 255
    error = np.abs(quantize(weights, 8, 32).dequantize() - weights).reshape(20, 8, 32).max(-1)
    assert (error <= step * 1.01).all()


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("values", [[0.0], [3.0], [-2.5], [1e-30], [0.0] * 31 + [7.0], [0.0] * 31 + [-7.0]], ids=str)
def test_constant_and_empty_blocks_survive(bits: int, values: list[float]) -> None:
    """A range of zero divides by zero; a constant block must not become 0, nor a zero block noise."""
    weights = floats((values * 32)[:32])
    blocks = quantize(weights, bits, 32)
    assert np.isfinite(blocks.scales).all()
    np.testing.assert_allclose(blocks.dequantize(), weights, rtol=1e-6)
    if not weights.any():
        np.testing.assert_array_equal(blocks.dequantize(), 0)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_blocks_of_one_sign_keep_zero_in_their_range(bits: int, sign: int) -> None:
    """A zero point beyond the codes: weights from 10 to 11 have it at -150 unless the range is widened to 0."""
    weights = sign * (10 + random(4, 64, scale=0.3))
    blocks = quantize(weights, bits, 32)
    assert blocks.zero_points is not None
    assert set(np.unique(blocks.zero_points)) <= {0, 2**bits - 1}
    assert np.abs(blocks.dequantize() - weights).max() <= 12 / (2**bits - 1)


ARRAYS = hnp.arrays(
    np.float32, st.tuples(st.integers(1, 4), st.sampled_from([16, 32, 64])),
    elements=st.one_of(
        st.floats(-10, 10, width=32).filter(lambda v: v == 0 or abs(v) > 1e-20), st.sampled_from([0.0, 1.0, 100.0])
    ),
)  # fmt: skip


@given(ARRAYS, st.sampled_from([4, 8]))
def test_never_worse_than_plain_rounding(weights: Floats, bits: int) -> None:
    """The search for better grids must keep the plain one where it is the best: tails of real weights are odd."""
    found = squared_error(quantize(weights, bits, 16).dequantize(), weights)
    plain = squared_error(min_max(weights, bits, 16), weights)
    assert found <= plain * (1 + 1e-3) + 1e-12 * float(np.abs(weights).max()) ** 2


def test_better_than_plain_rounding_on_random_weights() -> None:
    """At 4 bits the zero point's rounding costs up to half a step: without the search this gains nothing."""
    weights = random(64, 512)
    found, plain = quantize(weights, 4, 32).dequantize(), min_max(weights, 4, 32)
    assert squared_error(found, weights) < 0.95 * squared_error(plain, weights)


@pytest.mark.parametrize("bits", [4, 8])
def test_blocks_do_not_see_each_other(bits: int) -> None:
    """Reshaping by the wrong axis: quantising rows or blocks together or apart must be the same."""
    weights = random(5, 96)
    whole = quantize(weights, bits, 32).dequantize()
    for row in range(5):
        for block in range(3):
            columns = slice(32 * block, 32 * block + 32)
            alone = quantize(weights[row : row + 1, columns].copy(), bits, 32).dequantize()
            np.testing.assert_array_equal(alone[0], whole[row, columns])


@pytest.mark.parametrize("scale", [1e-12, 1e-6, 1e6, 1e12])
def test_scale_does_not_matter(scale: float) -> None:
    """Squares of small weights underflow in float32: every grid then looks equally good."""
    weights = random(4, 64)
    small = quantize((weights * np.float32(scale)).astype(np.float32), 4, 32).dequantize() / np.float32(scale)
    assert squared_error(small, weights) <= 1.01 * squared_error(quantize(weights, 4, 32).dequantize(), weights) + 1e-9


# With a minimum in half precision instead of a zero point.


@pytest.mark.parametrize("bits", [4, 8])
def test_affine_scales_and_minima_are_half_precision_numbers(bits: int) -> None:
    """Codes chosen for a scale that is then rounded are codes for another grid."""
    blocks = quantize_affine(random(20, 256, shift=0.02), bits, 32)
    assert blocks.zero_points is None
    assert blocks.minima is not None
    for values in (blocks.scales, blocks.minima):
        assert values.shape == (20, 8)
        np.testing.assert_array_equal(values, values.astype(np.float16))
    assert blocks.codes.dtype == np.uint8
    assert blocks.codes.max() < 2**bits


@pytest.mark.parametrize("shift", [0.0, 0.3, -7.0])
def test_affine_eight_bits_are_within_half_a_step(shift: float) -> None:
    """Ends rounded inwards would cut weights off; a range that must hold 0 would waste codes far from it."""
    weights = random(20, 256, shift=shift)
    blocks = quantize_affine(weights, 8, 32)
    half = np.repeat(blocks.scales, 32, axis=1) / 2
    assert (np.abs(blocks.dequantize() - weights) <= half * (1 + 1e-3)).all()
    span = np.ptp(weights.reshape(20, 8, 32), axis=-1)
    assert (blocks.scales <= (span + 2 * np.abs(weights).max() / 1024) / 255 * (1 + 1 / 512)).all()


def test_affine_four_bits_beat_whole_zero_points_and_plain_rounding() -> None:
    """Without the refit the first gains nothing over the second."""
    weights = random(64, 512)
    found = squared_error(quantize_affine(weights, 4, 32).dequantize(), weights)
    assert found < squared_error(quantize(weights, 4, 32).dequantize(), weights)
    grouped = weights.reshape(64, 16, 32)
    low, step = grouped.min(-1)[..., None], np.ptp(grouped, axis=-1)[..., None] / 15
    plain = np.rint((grouped - low) / step) * step + low
    assert found < 0.95 * squared_error(plain.reshape(64, 512), weights)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize(
    "values", [[0.0], [3.0], [-2.5], [0.1], [-1e-9], [0.0] * 31 + [7.0], [0.0] * 31 + [-7.0]], ids=str
)
def test_affine_constant_and_empty_blocks_survive(bits: int, values: list[float]) -> None:
    """A range of zero divides by zero; 0.1 is no half-precision number, and lies a code above its minimum."""
    weights = floats((values * 32)[:32])
    found = quantize_affine(weights, bits, 32).dequantize()
    np.testing.assert_allclose(found, weights, rtol=0, atol=1e-7 + 1e-3 * float(np.abs(weights).max()))


def test_affine_blocks_on_the_grid_are_kept_exactly() -> None:
    """By hand: codes 0 to 15 of scale 0.25 from -1.5 on."""
    weights = floats([-1.5 + 0.25 * i for i in range(16)])
    blocks = quantize_affine(weights, 4, 16)
    np.testing.assert_array_equal(blocks.codes[0], np.arange(16))
    np.testing.assert_array_equal(blocks.dequantize(), weights)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("value", "bits"), [(1e6, 4), (2e7, 8), (3e38, 8), (-1e6, 4), (-1e6, 8), (-3e38, 8)])
def test_affine_values_beyond_half_precision_come_out_as_not_finite(value: float, bits: int) -> None:
    """So that whoever stores them can refuse; nothing warns on the way."""
    blocks = quantize_affine(floats([0.0] * 31 + [value]), bits, 32)
    assert blocks.minima is not None
    assert not (np.isfinite(blocks.scales).all() and np.isfinite(blocks.minima).all())


def test_affine_values_beyond_half_precision_are_kept_where_scale_and_minimum_are_not() -> None:
    """A million is no half-precision number, and its 255th part is."""
    weights = floats([0.0] * 31 + [1e6])
    np.testing.assert_allclose(quantize_affine(weights, 8, 32).dequantize(), weights, rtol=0, atol=1e6 / 255 / 2)


# Blocks and bytes.


def signed_blocks(bits: int, zero_points: Codes | None = None) -> Blocks:
    rng = np.random.default_rng(1)
    codes = rng.integers(0, 2**bits, (3, 64)).astype(np.uint8)
    return Blocks(bits, 32, codes, rng.random((3, 2)).astype(np.float32), zero_points)


def test_dequantize_by_hand() -> None:
    """(code - zero point) * scale, where no zero point means the middle of the codes."""
    codes = np.asarray([[0, 8, 15, 9]], dtype=np.uint8)
    scales = floats([0.5, 2.0])
    np.testing.assert_array_equal(Blocks(4, 2, codes, scales).dequantize(), [[-4, 0, 14, 2]])
    zeros = np.asarray([[1, 15]], dtype=np.uint8)
    np.testing.assert_array_equal(Blocks(4, 2, codes, scales, zeros).dequantize(), [[-0.5, 3.5, 0, -12]])
    np.testing.assert_array_equal(Blocks(8, 4, codes, floats([1.0])).dequantize(), [[-128, -120, -113, -119]])


def test_minima_by_hand() -> None:
    """code * scale + minimum; symmetric blocks spelt out so are the same weights."""
    codes = np.asarray([[0, 8, 15, 9]], dtype=np.uint8)
    blocks = Blocks(4, 2, codes, floats([0.5, 2.0]), minima=floats([-1.0, 3.0]))
    np.testing.assert_array_equal(blocks.dequantize(), [[-1, 3, 33, 21]])
    wide = blocks.widened(8)
    assert wide.bits == 8
    np.testing.assert_array_equal(wide.dequantize(), blocks.dequantize())
    assert wide.affine() is wide
    symmetric = replace(signed_blocks(4), scales=signed_blocks(4).scales.astype(np.float16).astype(np.float32))
    assert symmetric.affine().minima is not None
    np.testing.assert_array_equal(symmetric.affine().dequantize(), symmetric.dequantize())


@pytest.mark.parametrize("explicit", [False, True])
@pytest.mark.parametrize("with_zeros", [False, True])
def test_widened_blocks_hold_the_same_weights_exactly(explicit: bool, with_zeros: bool) -> None:
    """Q4_0 stored at 8 bits must be the checkpoint's weights, not nearly: codes and zero points shift together."""
    zeros = np.asarray([[0, 15], [8, 7], [3, 9]], dtype=np.uint8) if with_zeros else None
    narrow = signed_blocks(4, zeros)
    wide = narrow.widened(8, explicit_zero_points=explicit)
    assert wide.bits == 8
    assert (wide.zero_points is not None) == (explicit or with_zeros)
    np.testing.assert_array_equal(wide.dequantize(), narrow.dequantize())
    same = narrow.widened(4, explicit_zero_points=explicit)
    np.testing.assert_array_equal(same.dequantize(), narrow.dequantize())
    np.testing.assert_array_equal(same.codes, narrow.codes)


def test_a_byte_holds_the_lower_half_first() -> None:
    """MatMulNBits' order; swapped, every pair of weights changes places and the model talks nonsense."""
    np.testing.assert_array_equal(pack(np.asarray([[1, 2, 15, 0]], dtype=np.uint8), 4), [[0x21, 0x0F]])


def test_an_odd_tail_is_padded_per_row() -> None:
    """Zero points of an odd number of blocks: rows must not run into each other."""
    packed = pack(np.asarray([[1, 2, 3], [4, 5, 6]], dtype=np.uint8), 4)
    np.testing.assert_array_equal(packed, [[0x21, 0x03], [0x54, 0x06]])
    assert packed.dtype == np.uint8


def test_eight_bit_codes_are_bytes_already() -> None:
    """Packing them would halve them."""
    codes = np.asarray([[1, 2, 255]], dtype=np.uint8)
    np.testing.assert_array_equal(pack(codes, 8), codes)


@given(hnp.arrays(np.uint8, st.tuples(st.integers(1, 4), st.integers(1, 9)), elements=st.integers(0, 15)))
def test_packed_codes_can_be_read_back(codes: Codes) -> None:
    """Shifts in a type that overflows."""
    packed = pack(codes, 4)
    assert packed.shape == (codes.shape[0], -(-codes.shape[1] // 2))
    unpacked = np.stack([packed & 15, packed >> 4], axis=-1).reshape(codes.shape[0], -1)
    np.testing.assert_array_equal(unpacked[:, : codes.shape[1]], codes)
    assert not unpacked[:, codes.shape[1] :].any()
