"""The layout in NumPy: byte for byte, and back."""

import numpy as np
import pytest
from selfspec_kernels import tiles


def test_bytes_of_a_block_are_where_the_drawing_says() -> None:
    """Column 2 of tile 0: k = 9 is byte 4 * 2 + 1 of group 2 (low nibble), k = 25 the same byte's high nibble."""
    codes = np.zeros((8, 32), np.uint8)
    codes[2, 9], codes[2, 25] = 5, 11
    scales, minima = np.zeros((8, 1), np.float16), np.zeros((8, 1), np.float16)
    scales[2], minima[2] = 1.5, -2.0
    four, eight = (tiles.pack(codes, scales, minima, bits)[0, 0] for bits in (4, 8))
    assert four.shape == (160,)
    assert four[32 * 2 + 9] == 11 << 4 | 5
    assert eight.shape == (288,)
    assert (eight[32 * 2 + 9], eight[32 * 6 + 9]) == (5, 11)
    for block in (four, eight):
        assert np.count_nonzero(block[:-32]) == (1 if block is four else 2)
        halves = block[-32:].view(np.float16)
        assert (halves[2], halves[10]) == (1.5, -2.0)


@pytest.mark.parametrize("bits", [4, 8])
def test_symmetric_tiles_store_no_minima(bits: int) -> None:
    codes, scales = np.arange(256, dtype=np.uint8).reshape(8, 32) % (1 << bits - 1), np.full((8, 1), 0.5, np.float16)
    packed = tiles.pack(codes, scales, None, bits)
    assert packed.shape == tiles.shape(8, 32, bits, minima=False) == (1, 1, 32 * bits + 16)
    back = tiles.unpack(packed, bits)
    np.testing.assert_array_equal(back[0], codes)
    np.testing.assert_array_equal(back[1], scales)
    assert back[2] is None
    np.testing.assert_array_equal(tiles.dequantize(packed, bits), 0.5 * (codes - float(1 << bits - 1)))


@pytest.mark.parametrize("bits", [4, 8])
def test_unpack_undoes_pack(bits: int) -> None:
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 1 << bits, (24, 96), dtype=np.uint8)
    scales, minima = rng.standard_normal((2, 24, 3)).astype(np.float16)
    back = tiles.unpack(tiles.pack(codes, scales, minima, bits), bits)
    for got, want in zip(back, (codes, scales, minima), strict=True):
        np.testing.assert_array_equal(got, want)


def test_q4_0_and_q8_0_come_over_exactly() -> None:
    """GGUF: w = d * (q - 8) and w = d * q; as scale and minimum both are exact in fp16 short of its largest scales."""
    rng = np.random.default_rng(0)
    d = rng.uniform(-0.1, 0.1, (8, 2)).astype(np.float16)
    q4, q8 = rng.integers(0, 16, (8, 64), dtype=np.uint8), rng.integers(-128, 128, (8, 64)).astype(np.int8)
    wide = np.repeat(d.astype(np.float32), 32, axis=1)
    np.testing.assert_array_equal(
        tiles.dequantize(tiles.pack(q4, d, d * np.float16(-8), 4), 4), wide * (q4.astype(np.float32) - 8)
    )
    codes = (q8.astype(np.int16) + 128).astype(np.uint8)
    np.testing.assert_array_equal(tiles.dequantize(tiles.pack(codes, d, d * np.float16(-128), 8), 8), wide * q8)


def test_misfits_are_refused_by_name() -> None:
    codes, scales = np.zeros((8, 32), np.uint8), np.zeros((8, 1))
    for bad, sentence in (
        ((codes[:7], scales[:7], scales[:7], 4), "multiple of 8"),
        ((codes[:, :16], scales, scales, 4), "of 32"),
        ((codes, scales[:4], scales, 4), "scales have shape"),
        ((codes, scales, np.zeros((8, 2)), 4), "minima have shape"),
        ((codes + 16, scales, scales, 4), "below 16"),
        ((codes, scales, scales, 5), "5 bits"),
        ((codes, scales + 1e5, scales, 4), "100000 is beyond fp16"),
    ):
        with pytest.raises(ValueError, match=sentence):
            tiles.pack(*bad)
