"""A row of GroupedAttention has the same bits in any pass, and a pass touches what is its own."""

import ctypes
import mmap
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import selfspec_kernels as kernels
from attention_node import Cache, Heads, bits, feeds, rows, run, session, shapes
from hypothesis import given, settings
from hypothesis import strategies as st

LAYOUTS = [
    Heads(9, 3, 64),
    Heads(4, 1, 256, window=100, gains=True),
    Heads(4, 4, 16, window=7),
    Heads(14, 2, 24, rotary=False),
]


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
@pytest.mark.parametrize("heads", LAYOUTS, ids=str)
def test_a_row_has_the_same_bits_in_any_pass(heads: Heads, threads: int) -> None:
    """Rows beside it, where its pass begins, whether its keys came in it or before, and the threads: none may show."""
    count = 420
    qkv = rows(heads, count)
    alone = Cache.of(heads, count)
    want = np.concatenate([run(session(heads), heads, qkv[:, i : i + 1], alone, i) for i in range(count)], axis=1)
    op = session(heads, threads)
    for width, first in ((count, 0), (1, 0), (2, 1), (3, 0), (5, 3), (8, 0), (16, 9), (33, 0), (64, 5), (200, 0)):
        memory = Cache.of(heads, count)
        cuts = sorted({0, *range(first, count, width), count})
        got = np.concatenate([run(op, heads, qkv[:, a:b], memory, a) for a, b in pairwise(cuts)], axis=1)
        np.testing.assert_array_equal(bits(got), bits(want))
        np.testing.assert_array_equal(bits(memory.keys), bits(alone.keys))
        np.testing.assert_array_equal(bits(memory.values), bits(alone.values))


@pytest.mark.parametrize(
    ("heads", "count"),
    [(Heads(16, 16, 232), 700), (Heads(16, 16, 232, 540), 700), (Heads(32, 32, 512, 150), 300)],
    ids=str,
)
def test_chunks_that_do_not_fit_side_by_side_show_in_no_bit(heads: Heads, count: int) -> None:
    """The sums of all chunks would take more memory with every position, so they are merged a few chunks at a time: 64
    rows of the first take four chunks of six at once, those of the last one, where rows begin to see in later ones; a
    row alone takes all."""
    qkv, memory, first = rows(heads, count), Cache.of(heads, count), count - 64
    run(session(heads, 2), heads, qkv[:, :first], memory, 0)
    got = run(session(heads, 2), heads, qkv[:, first:], memory, first)
    for i in (0, 1, 30, 63):
        want = run(session(heads), heads, qkv[:, first + i : first + i + 1], memory, first + i)
        np.testing.assert_array_equal(bits(got[:, i : i + 1]), bits(want))


@settings(max_examples=60, deadline=None)
@given(heads=shapes, cuts=st.sets(st.integers(1, 299), max_size=12), seed=st.integers(0, 2**32 - 1))
def test_rows_do_not_depend_on_the_cuts(heads: Heads, cuts: set[int], seed: int) -> None:
    """The same for shapes and cuts nobody thought of; a draft that was thrown away stands behind each pass."""
    qkv, wrong = rows(heads, 300, seed), rows(heads, 3, seed + 1)
    whole, parts = Cache.of(heads, 310), Cache.of(heads, 310)
    want = run(session(heads, 2), heads, qkv, whole, 0)
    for a, b in pairwise([0, *sorted(cuts), 300]):
        run(session(heads, 2), heads, wrong, parts, a)
        np.testing.assert_array_equal(bits(run(session(heads, 2), heads, qkv[:, a:b], parts, a)), bits(want[:, a:b]))


@pytest.mark.parametrize("count", [1, 4, 50])
@pytest.mark.parametrize("window", [0, 20])
def test_nothing_is_used_but_what_a_row_sees(count: int, window: int) -> None:
    """Rows behind a pass hold thrown-away drafts, those before a window are out of sight: not even a NaN may show."""
    heads = Heads(6, 2, 32, window)
    memory = Cache.of(heads, 300, fill=0)
    run(session(heads), heads, rows(heads, 150), memory, 0)
    spoilt, qkv = memory.copy(), rows(heads, count, seed=1)
    for array in (spoilt.keys, spoilt.values):
        array[:, :, 150 + count :] = np.nan
        if window:
            array[:, :, : 150 - window + 1] = np.inf
    want, got = (run(session(heads), heads, qkv, each, 150) for each in (memory, spoilt))
    np.testing.assert_array_equal(bits(got), bits(want))


@pytest.mark.skipif(not hasattr(mmap, "MAP_ANONYMOUS"), reason="needs mmap")
@pytest.mark.parametrize("dim", [8, 64, 128])
def test_nothing_is_read_behind_the_cache(dim: int) -> None:
    """Keys are taken 64 at a time; where the cache ends before, the next page may not be there."""
    heads, capacity = Heads(2, 1, dim), min(700, 3 * mmap.PAGESIZE // (4 * dim))
    size = 4 * dim * capacity
    guarded = [mmap.mmap(-1, -(-size // mmap.PAGESIZE) * mmap.PAGESIZE + mmap.PAGESIZE) for _ in range(2)]
    arrays = []
    for memory in guarded:
        end = len(memory) - mmap.PAGESIZE
        array = np.frombuffer(memory, np.float32, size // 4, end - size).reshape(1, 1, capacity, dim)
        address = array.ctypes.data + size
        assert address % mmap.PAGESIZE == 0
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        arrays.append(array)
    memory = Cache(*arrays)
    for path in kernels.paths():
        kernels.use_path(path)
        for first, last in ((0, capacity - 5), (capacity - 5, capacity - 1), (capacity - 1, capacity)):
            mixed = run(session(heads), heads, rows(heads, last - first), memory, first)
            assert np.isfinite(mixed).all()


def test_the_cache_is_changed_in_place_and_nowhere_else() -> None:
    heads = Heads(4, 2, 16)
    memory = Cache.of(heads, 40, fill=5)
    run(session(heads), heads, rows(heads, 3), memory, 10)
    for array in (memory.keys, memory.values):
        np.testing.assert_array_equal(np.delete(array, [10, 11, 12], axis=2), 5)
        assert (array[:, :, 10:13] != 5).all()


def test_another_buffer_gets_the_rows_before_and_zeros_behind() -> None:
    """Without a bound output ONNX Runtime allocates one: what is not copied must not be whatever lay there."""
    heads = Heads(4, 2, 16)
    memory = Cache.of(heads, 40, fill=5)
    run(session(heads), heads, rows(heads, 10), memory, 0)
    qkv, before = rows(heads, 3, seed=1), memory.copy()
    mixed, keys, values = session(heads).run(
        None, feeds(heads, qkv, 10) | {"past_key": memory.keys, "past_value": memory.values}
    )
    np.testing.assert_array_equal(memory.keys, before.keys)
    np.testing.assert_array_equal(bits(mixed), bits(run(session(heads), heads, qkv, memory, 10)))
    for present, bound in ((keys, memory.keys), (values, memory.values)):
        np.testing.assert_array_equal(bits(present[:, :, :13]), bits(bound[:, :, :13]))
        np.testing.assert_array_equal(present[:, :, 13:], 0)


def test_one_session_may_run_in_several_threads() -> None:
    """Working memory belongs to the calling thread; shared, two callers would mix their rows."""
    heads = Heads(4, 2, 64)
    passes = [rows(heads, count, seed=count) for count in (1, 4, 40, 130)]
    want = [run(session(heads, 2), heads, qkv, Cache.of(heads, 130), 0) for qkv in passes]

    def again(i: int) -> np.ndarray:
        return run(session(heads, 2), heads, passes[i % 4], Cache.of(heads, 130), 0)

    with ThreadPoolExecutor(4) as pool:
        for i, got in enumerate(pool.map(again, range(80))):
            np.testing.assert_array_equal(got, want[i % 4])
