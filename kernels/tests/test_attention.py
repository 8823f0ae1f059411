"""GroupedAttention computes attention, and every attribute means what it means to ONNX Runtime."""

from dataclasses import replace

import numpy as np
import pytest
import selfspec_kernels as kernels
from attention_node import Cache, Heads, bits, close, reference, rows, run, session, shapes, theirs
from hypothesis import given, settings
from hypothesis import strategies as st

PLAIN = Heads(1, 1, 8, rotary=False)


def test_attention_by_hand() -> None:
    """Keys of zero weigh alike, so rows are means of the values up to their own, or of the last two with a window."""
    qkv = np.zeros((1, 4, 24), np.float32)
    qkv[0, :, :8] = 3
    qkv[0, :, 16:] = np.array([1, 2, 6, 7])[:, None]
    for window, want in ((0, [1, 1.5, 3, 4]), (2, [1, 1.5, 4, 6.5]), (1, [1, 2, 6, 7])):
        heads = replace(PLAIN, window=window)
        mixed = run(session(heads), heads, qkv, Cache.of(heads, 4), 0)
        np.testing.assert_array_equal(mixed[0], np.array(want, np.float32)[:, None] * np.ones(8, np.float32))


def test_scores_are_scaled_and_weighed_by_hand() -> None:
    """Two keys whose scores differ by ln 3: weights of 1/4 and 3/4."""
    qkv = np.zeros((1, 2, 24), np.float32)
    qkv[0, 1, 0] = np.log(3) / PLAIN.scale
    qkv[0, 1, 8] = 1
    qkv[0, :, 16:] = [[4.0] * 8, [8.0] * 8]
    np.testing.assert_allclose(run(session(PLAIN), PLAIN, qkv, Cache.of(PLAIN, 2), 0)[0, 1], 7, rtol=1e-6)


@settings(max_examples=60, deadline=None)
@given(heads=shapes, past=st.integers(0, 300), count=st.integers(1, 80), seed=st.integers(0, 2**32 - 1))
def test_every_path_is_numpys_and_the_scalar_paths_bits(heads: Heads, past: int, count: int, seed: int) -> None:
    """Any shape, any place: the numbers are attention's, and they do not depend on the processor."""
    memory = Cache.of(heads, past + count)
    if past:
        run(session(heads), heads, rows(heads, past, seed), memory, 0)
    qkv, want_memory = rows(heads, count, seed + 1), memory.copy()
    want = reference(heads, qkv, want_memory, past)
    results = []
    for path in kernels.paths():
        kernels.use_path(path)
        results.append((run(session(heads), heads, qkv, mine := memory.copy(), past), mine))
    for mixed, mine in results:
        close(mixed, want)
        close(mine.keys, want_memory.keys)
        np.testing.assert_array_equal(mine.values, want_memory.values)
        np.testing.assert_array_equal(bits(mixed), bits(results[-1][0]))
        np.testing.assert_array_equal(bits(mine.keys), bits(results[-1][1].keys))


@pytest.mark.parametrize("window", [0, 1, 33, 128, 200])
@pytest.mark.parametrize("kv_heads", [1, 2, 6])
@pytest.mark.parametrize("dim", [16, 32, 64, 128, 256])
def test_it_is_onnx_runtimes_attention(dim: int, kv_heads: int, window: int) -> None:
    """Every attribute means what GroupQueryAttention's means: which end the window has, how heads share keys."""
    heads = Heads(6, kv_heads, dim, window)
    for past in (0, 1, 127, 301):
        memory = Cache.of(heads, 512, fill=0)
        if past:
            run(session(heads), heads, rows(heads, past), memory, 0)
        for count in (1, 2, 7, 33, 200):
            qkv, other, mine = rows(heads, count, seed=count), memory.copy(), memory.copy()
            close(run(session(heads), heads, qkv, mine, past), run(theirs(heads), heads, qkv, other, past))
            close(mine.keys, other.keys)
            np.testing.assert_array_equal(mine.values, other.values)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible_and_in_the_rows_that_see_it(bad: float) -> None:
    """A NaN that became a plausible token, or that reached rows before it, would go unnoticed."""
    heads = Heads(6, 2, 32, window=40)
    qkv = rows(heads, 150)
    good = run(session(heads), heads, qkv, Cache.of(heads, 150), 0)
    qkv[0, 70] = bad
    for path in kernels.paths():
        kernels.use_path(path)
        got = run(session(heads), heads, qkv, Cache.of(heads, 150), 0)
        assert np.isnan(got[0, 70:110]).all()
        np.testing.assert_array_equal(bits(np.delete(got, slice(70, 110), 1)), bits(np.delete(good, slice(70, 110), 1)))


def test_scores_far_apart_do_not_overflow() -> None:
    """The largest is taken off before exp, in each chunk and between chunks; the best key alone remains."""
    qkv = np.zeros((1, 200, 24), np.float32)
    qkv[0, :, 0] = 1e4
    qkv[0, :, 8] = np.arange(200)
    qkv[0, :, 16:] = np.arange(200)[:, None]
    mixed = run(session(PLAIN), PLAIN, qkv, Cache.of(PLAIN, 200), 0)
    np.testing.assert_allclose(mixed[0], qkv[0, :, 16:], rtol=1e-6, atol=1e-20)
