"""The product against NumPy, and the promise of the package: rows never depend on each other."""

import platform

import numpy as np
import pytest
import selfspec_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from selfspec_kernels import tiles

try:
    PATHS = kernels.paths()
except kernels.KernelError as error:
    pytest.skip(str(error), allow_module_level=True)
each_path = pytest.mark.parametrize("path", PATHS)
each_width = pytest.mark.parametrize("bits", [4, 8])


def weights(n: int, k: int, bits: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.02, (n, k // 32))
    return tiles.pack(codes, scales, -scales * rng.uniform(0, (1 << bits) - 1, scales.shape), bits)


def rows(m: int, k: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((m, k)).astype(np.float32)


def quantized(x: np.ndarray) -> np.ndarray:
    """x as the kernels see it: int8 per row and block of 32."""
    blocks = x.reshape(len(x), -1, 32).astype(np.float64)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / 127
    return (np.rint(blocks / np.where(scales == 0, 1, scales)) * scales).reshape(x.shape)


@each_path
@each_width
@pytest.mark.parametrize("m", [1, 3, 9])
def test_product_is_numpys_of_the_dequantised_weights(path: str, bits: int, m: int) -> None:
    """A wrong lane, nibble, scale or sum shows at once: only float32 rounding and rare ties remain."""
    w, x = weights(40, 96, bits), rows(m, 96)
    want = quantized(x) @ tiles.dequantize(w, bits).astype(np.float64).T
    np.testing.assert_allclose(kernels.matmul(x, w, bits, path), want, rtol=0, atol=2e-3 * np.abs(want).max())


@each_width
def test_product_by_hand(bits: int) -> None:
    """Activations of 127 times a power of two are kept exactly, so the result is known to the last bit."""
    codes = (np.arange(8 * 32) % (1 << bits)).astype(np.uint8).reshape(8, 32)
    w = tiles.pack(codes, np.full((8, 1), 0.5), np.full((8, 1), -2.0), bits)
    x = np.zeros((1, 32), np.float32)
    x[0, 5], x[0, 31] = 127, -3
    want = (0.5 * codes[:, 5] - 2) * 127 - (0.5 * codes[:, 31] - 2) * 3
    for path in PATHS:
        np.testing.assert_array_equal(kernels.matmul(x, w, bits, path)[0], want)


@each_path
@each_width
def test_symmetric_weights_have_the_bits_of_stored_minima(path: str, bits: int) -> None:
    """Leaving the minima out saves memory traffic and must change nothing."""
    rng, n, k = np.random.default_rng(3), 40, 160
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    scales = rng.uniform(-0.1, 0.1, (n, k // 32)).astype(np.float16)
    without, stored = (tiles.pack(codes, scales, m, bits) for m in (None, scales * np.float16(-(1 << bits - 1))))
    assert stored.nbytes - without.nbytes == 2 * scales.size
    for m in (1, 5, 11):
        want, got = (kernels.matmul(rows(m, k), w, bits, path) for w in (stored, without))
        np.testing.assert_array_equal(got, want)


@each_path
@pytest.mark.parametrize("activation", [127.0, -127.0])
def test_no_sum_saturates(path: str, activation: float) -> None:
    """255 * 127 * 2 does not fit into the 16 bits of maddubs; the largest codes and activations must still be exact."""
    for bits in (4, 8):
        w = tiles.pack(np.full((8, 32), (1 << bits) - 1, np.uint8), np.ones((8, 1)), np.zeros((8, 1)), bits)
        x = np.full((1, 32), activation, np.float32)
        np.testing.assert_array_equal(kernels.matmul(x, w, bits, path)[0], 32 * activation * ((1 << bits) - 1))


@each_path
@each_width
@pytest.mark.parametrize("m", [*range(2, 17), 33, 64, 129])
def test_a_row_has_the_same_bits_alone_and_among_others(path: str, bits: int, m: int) -> None:
    """Register tiles of several rows, their remainder, and the split over threads must not change one bit.

    N * K * m is large enough to be split, N / 8 is odd so that pairs of tiles leave one over.
    """
    n, k = (1032, 512) if path != "scalar" else (264, 256)
    w, x = weights(n, k, bits), rows(m, k)
    alone = np.concatenate([kernels.matmul(x[r : r + 1], w, bits, path) for r in range(m)])
    for threads in (1, 2, 3, 4):
        np.testing.assert_array_equal(kernels.matmul(x, w, bits, path, threads).view(np.int32), alone.view(np.int32))


@settings(max_examples=60, deadline=None)
@given(
    bits=st.sampled_from([4, 8]),
    n=st.integers(1, 9).map(lambda i: 8 * i),
    k=st.integers(1, 5).map(lambda i: 32 * i),
    m=st.integers(1, 17),
    magnitude=st.floats(-38, 38),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_path_has_the_scalar_paths_bits(bits: int, n: int, k: int, m: int, magnitude: float, seed: int) -> None:
    """One order and one rounding sequence for all: an artifact's output does not depend on the processor."""
    w = weights(n, k, bits, seed)
    with np.errstate(over="ignore"):
        x = (rows(m, k, seed) * 10.0**magnitude).astype(np.float32)
    want = kernels.matmul(x, w, bits, "scalar")
    for path in PATHS:
        np.testing.assert_array_equal(kernels.matmul(x, w, bits, path), want)


@each_path
@each_width
def test_every_half_float_is_read_alike(path: str, bits: int) -> None:
    """Subnormal, infinite and NaN scales too: a damaged file gives other numbers, the same everywhere."""
    scales = np.arange(65536, dtype=np.uint16).view(np.float16).reshape(2048, 32)
    w = tiles.pack(np.full((2048, 1024), 3, np.uint8), scales, np.zeros_like(scales), bits)
    x = np.zeros((1, 1024), np.float32)
    for block in range(32):
        x[:] = 0
        x[0, 32 * block] = 127
        got, want = (kernels.matmul(x, w, bits, p) for p in (path, "scalar"))
        np.testing.assert_array_equal(got, want)


@each_path
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible_and_in_its_row(path: str, bad: float) -> None:
    """A NaN that became a plausible token, or that leaked into the rows of other tokens, would go unnoticed."""
    w, x = weights(16, 64, 4), rows(6, 64)
    good = kernels.matmul(x, w, 4, path)
    x[2, 40] = bad
    got = kernels.matmul(x, w, 4, path)
    assert np.isnan(got[2]).all()
    np.testing.assert_array_equal(np.delete(got, 2, axis=0), np.delete(good, 2, axis=0))


@each_path
def test_zero_and_tiny_rows_are_zero(path: str) -> None:
    """A scale of zero must not become 0 / 0, nor an inverse scale overflow."""
    w = weights(8, 32, 4)
    for value in (0.0, 1e-45, 1e-38, 9e-36):
        np.testing.assert_array_equal(kernels.matmul(np.full((2, 32), value, np.float32), w, 4, path), 0)


def test_no_rows_give_no_rows() -> None:
    assert kernels.matmul(np.empty((0, 32), np.float32), weights(8, 32, 4), 4).shape == (0, 8)


def test_self_test_passes() -> None:
    kernels.self_test()
    assert PATHS[-1] == "scalar"


def test_compiled_paths_are_those_of_the_machine_and_the_usable_ones_among_them_in_order() -> None:
    """What a compiler left out is the reason of a slow machine that is otherwise looked for in vain."""
    known = {"x86_64": ("avx512vnni", "avxvnni", "avx2", "scalar"), "aarch64": ("neon", "scalar")}
    known["arm64"] = known["aarch64"]
    compiled = kernels.compiled_paths()
    assert set(known.get(platform.machine(), ())) - {"avxvnni"} <= set(compiled)
    assert compiled == tuple(path for path in known.get(platform.machine(), ("scalar",)) if path in compiled)
    assert tuple(path for path in compiled if path in PATHS) == PATHS


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"bits": 3}, "3 bits"),
        ({"x": rows(1, 48)}, "multiple of 32"),
        ({"x": rows(1, 96)}, "bytes"),
        ({"bits": 8}, "bytes"),
        ({"path": "sse9"}, "usable are"),
        ({"threads": 0}, "at least 1"),
        ({"x": np.zeros(32, np.float32)}, "are needed"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict, sentence: str) -> None:
    """Reading past the tiles would crash the process or, worse, not."""
    call = {"x": rows(1, 64), "weights": weights(16, 64, 4), "bits": 4, **change}
    with pytest.raises(kernels.KernelError, match=sentence):
        kernels.matmul(**call)
