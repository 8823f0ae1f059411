"""GroupedAttention: right numbers, ONNX Runtime's meaning of every attribute, and rows that never depend on others."""

import ctypes
import mmap
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise

import numpy as np
import onnxruntime as ort
import pytest
import selfspec_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

try:
    LIBRARY = str(kernels.library_path())
except kernels.KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

FLOAT, INT32 = TensorProto.FLOAT, TensorProto.INT32
PAST = ("past_key", "past_value")
PRESENT = ("present_key", "present_value")
EPS = 1e-5


@dataclass(frozen=True)
class Heads:
    """One attention node. `window` 0: none."""

    heads: int
    kv_heads: int
    dim: int
    window: int = 0
    rotary: bool = True
    gains: bool = False

    @property
    def width(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.dim

    @property
    def scale(self) -> float:
        return float(np.float32(self.dim**-0.5 * 1.25))

    def attributes(self) -> dict[str, object]:
        return {
            "num_heads": self.heads,
            "kv_num_heads": self.kv_heads,
            "head_dim": self.dim,
            "scale": self.scale,
            "window": self.window,
            "do_rotary": int(self.rotary),
            "eps": EPS,
        }

    def optional(self) -> list[str]:
        return [
            name if there else ""
            for name, there in zip(
                ("cos", "sin", "q_gain", "k_gain"), [self.rotary] * 2 + [self.gains] * 2, strict=True
            )
        ]


@dataclass
class Cache:
    """Keys and values of one head layout, [1, kv_heads, capacity, dim]."""

    keys: np.ndarray
    values: np.ndarray

    @classmethod
    def of(cls, heads: Heads, capacity: int, fill: float = np.nan) -> "Cache":
        """Rows that nobody wrote are NaN: they show when they are used."""
        shape = (1, heads.kv_heads, capacity, heads.dim)
        return cls(np.full(shape, fill, np.float32), np.full(shape, fill, np.float32))

    def copy(self) -> "Cache":
        return Cache(self.keys.copy(), self.values.copy())


@cache
def tables(dim: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosines and sines of 700 positions."""
    angles = np.arange(700)[:, None] * 10000.0 ** (-np.arange(dim // 2) / (dim // 2))
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


@cache
def gains(dim: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(dim)
    return rng.uniform(0.5, 1.5, dim).astype(np.float32), rng.uniform(0.5, 1.5, dim).astype(np.float32)


def rows(heads: Heads, count: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, count, heads.width)).astype(np.float32)


def build(node, extra: list[tuple[str, int]], threads: int) -> ort.InferenceSession:
    inputs = [(name, FLOAT) for name in ("qkv", *PAST)] + [(n, INT32) for n in ("seqlens_k", "total")] + extra
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs],
        [helper.make_tensor_value_info(name, FLOAT, None) for name in ("mixed", *PRESENT)],
    )
    opsets = [helper.make_opsetid(*opset) for opset in (("", 17), ("selfspec", 1), ("com.microsoft", 1))]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(LIBRARY)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


@cache
def session(heads: Heads, threads: int = 1) -> ort.InferenceSession:
    names = ["qkv", *PAST, "seqlens_k", "total", *heads.optional()]
    node = helper.make_node("GroupedAttention", names, ["mixed", *PRESENT], domain="selfspec", **heads.attributes())
    return build(node, [(name, FLOAT) for name in heads.optional() if name], threads)


@cache
def theirs(heads: Heads) -> ort.InferenceSession:
    """GroupQueryAttention, the node that ours replaces."""
    attributes = {
        "num_heads": heads.heads,
        "kv_num_heads": heads.kv_heads,
        "do_rotary": int(heads.rotary),
        "rotary_interleaved": 0,
        "scale": heads.scale,
        **({"local_window_size": heads.window} if heads.window else {}),
    }
    names = ["qkv", "", "", *PAST, "seqlens_k", "total", *heads.optional()[:2]]
    node = helper.make_node("GroupQueryAttention", names, ["mixed", *PRESENT], domain="com.microsoft", **attributes)
    return build(node, [(name, FLOAT) for name in heads.optional()[:2] if name], 1)


def feeds(heads: Heads, qkv: np.ndarray, position: int) -> dict[str, np.ndarray]:
    last = position + qkv.shape[1] - 1
    values = {"qkv": qkv, "seqlens_k": np.array([last], np.int32), "total": np.array([last + 1], np.int32)}
    given = dict(zip(("cos", "sin", "q_gain", "k_gain"), (*tables(heads.dim), *gains(heads.dim)), strict=True))
    return values | {name: given[name] for name in heads.optional() if name}


def run(op: ort.InferenceSession, heads: Heads, qkv: np.ndarray, memory: Cache, position: int) -> np.ndarray:
    """[1, T, width] → [1, T, heads * dim]; appends to the cache in place."""
    binding = op.io_binding()
    wanted = {node.name for node in op.get_inputs()}
    inputs = feeds(heads, qkv, position)  # the binding points at them
    for name, array in inputs.items():
        if name in wanted:
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    for past, present, array in zip(PAST, PRESENT, (memory.keys, memory.values), strict=True):
        value = ort.OrtValue.ortvalue_from_numpy(array)
        binding.bind_ortvalue_input(past, value)
        binding.bind_ortvalue_output(present, value)
    mixed = np.full((1, qkv.shape[1], heads.heads * heads.dim), 77, np.float32)
    binding.bind_ortvalue_output("mixed", ort.OrtValue.ortvalue_from_numpy(mixed))
    op.run_with_iobinding(binding)
    return mixed


def normed(x: np.ndarray, gain: np.ndarray) -> np.ndarray:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + EPS) * gain


def turned(x: np.ndarray, positions: np.ndarray) -> np.ndarray:
    cos, sin = (table[positions].astype(np.float64)[:, None] for table in tables(x.shape[-1]))
    a, b = np.split(x, 2, axis=-1)
    return np.concatenate([a * cos - b * sin, a * sin + b * cos], axis=-1)


def reference(heads: Heads, qkv: np.ndarray, memory: Cache, position: int) -> np.ndarray:
    """What `run` computes, in float64, row by row and head by head; the cache is float32 as there."""
    count, group = qkv.shape[1], heads.heads // heads.kv_heads
    by_head = qkv[0].astype(np.float64).reshape(count, -1, heads.dim)
    q, k, v = np.split(by_head, [heads.heads, heads.heads + heads.kv_heads], axis=1)
    positions = position + np.arange(count)
    if heads.gains:
        q, k = (normed(x, gain.astype(np.float64)) for x, gain in zip((q, k), gains(heads.dim), strict=True))
    if heads.rotary:
        q, k = turned(q, positions), turned(k, positions)
    memory.keys[0, :, positions], memory.values[0, :, positions] = k, v
    mixed = np.empty((count, heads.heads, heads.dim))
    for row, at in enumerate(positions):
        seen = slice(max(0, at - heads.window + 1) if heads.window else 0, at + 1)
        for head in range(heads.heads):
            keys, values = (x[0, head // group, seen].astype(np.float64) for x in (memory.keys, memory.values))
            scores = keys @ q[row, head] * heads.scale
            weights = np.exp(scores - scores.max())
            mixed[row, head] = weights / weights.sum() @ values
    return mixed.reshape(1, count, -1)


def bits(x: np.ndarray) -> np.ndarray:
    return x.view(np.int32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=5e-6 * max(1.0, np.abs(want).max()))


@pytest.fixture
def every_path() -> Iterator[tuple[str, ...]]:
    yield kernels.paths()
    kernels.use_path(kernels.paths()[0])


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


shapes = st.builds(
    lambda kv_heads, group, dim, window, rotary, gains: Heads(kv_heads * group, kv_heads, dim, window, rotary, gains),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.sampled_from([8, 16, 24, 64, 80]),
    st.sampled_from([0, 1, 5, 64, 130]),
    st.booleans(),
    st.booleans(),
)


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
    try:
        for path in kernels.paths():
            kernels.use_path(path)
            results.append((run(session(heads), heads, qkv, mine := memory.copy(), past), mine))
    finally:
        kernels.use_path(kernels.paths()[0])
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
def test_nothing_is_read_behind_the_cache(dim: int, every_path: tuple[str, ...]) -> None:
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
    for path in every_path:
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


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible_and_in_the_rows_that_see_it(
    bad: float, every_path: tuple[str, ...]
) -> None:
    """A NaN that became a plausible token, or that reached rows before it, would go unnoticed."""
    heads = Heads(6, 2, 32, window=40)
    qkv = rows(heads, 150)
    good = run(session(heads), heads, qkv, Cache.of(heads, 150), 0)
    qkv[0, 70] = bad
    for path in every_path:
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


NODE = Heads(4, 2, 16)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_heads": 0}, "num_heads is 0; it must be positive"),
        ({"num_heads": -4}, "num_heads is -4"),
        ({"num_heads": 2**40}, "num_heads is 1099511627776"),
        ({"kv_num_heads": 3}, "4 heads cannot share 3 key heads evenly"),
        ({"head_dim": 12}, "head_dim is 12; it must be a positive multiple of 8"),
        ({"window": -1}, "window is -1"),
        ({"do_rotary": 2}, "do_rotary is 2; 0 and 1 are known"),
        ({"scale": float("nan")}, "scale is not a finite number"),
        ({"eps": -1.0}, "eps must be a finite number and not negative"),
        ({"window": None}, "lacks the integer attribute window"),
        ({"scale": None}, "lacks the float attribute scale"),
        ({"eps": 1}, "lacks the float attribute eps"),
    ],
)
def test_a_node_that_makes_no_sense_is_refused_at_load(change: dict, sentence: str) -> None:
    attributes = {k: v for k, v in (NODE.attributes() | change).items() if v is not None}
    names = ["qkv", *PAST, "seqlens_k", "total", "cos", "sin"]
    node = helper.make_node("GroupedAttention", names, ["mixed", *PRESENT], domain="selfspec", **attributes)
    with pytest.raises(Exception, match=sentence):
        build(node, [("cos", FLOAT), ("sin", FLOAT)], 1)


def shaped(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"qkv": shaped(1, 3, 120)}, r"qkv is \[1, 3, 120\]; \[1, rows, 128\] is needed"),
        ({"qkv": shaped(2, 3, 128)}, r"qkv is \[2, 3, 128\]"),
        ({"qkv": shaped(3, 128)}, r"qkv is \[3, 128\]"),
        ({"qkv": shaped(1, 0, 128)}, "one row or more"),
        ({"past_key": shaped(1, 2, 20)}, "four dimensions"),
        ({"past_key": shaped(1, 1, 20, 16)}, r"past_key is \[1, 1, 20, 16\]; \[1, 2, 20, 16\] is needed"),
        ({"past_value": shaped(1, 2, 19, 16)}, r"past_value is \[1, 2, 19, 16\]"),
        ({"past_value": shaped(1, 2, 20, 8)}, "past_value is"),
        ({"seqlens_k": numbers(20), "total": numbers(21)}, "3 rows ending at position 20 do not fit a cache of 20"),
        ({"seqlens_k": numbers(1), "total": numbers(2)}, "3 rows ending at position 1 do not fit"),
        ({"seqlens_k": numbers(-1), "total": numbers(0)}, "position -1"),
        ({"seqlens_k": numbers(2**31 - 1), "total": numbers(-(2**31))}, "it must be one more"),
        ({"total": numbers(14)}, "total_sequence_length is 14 where seqlens_k is 12; it must be one more"),
        ({"seqlens_k": numbers(12, 12)}, r"seqlens_k is \[2\]; \[1\] is needed"),
        ({"seqlens_k": np.empty(0, np.int32)}, r"seqlens_k is \[0\]"),
        ({"cos": shaped(12, 8)}, r"sin is \[700, 8\]; \[12, 8\] is needed"),
        ({"cos": shaped(12, 8), "sin": shaped(12, 8)}, "cos and sin have 12 positions; this pass needs 13"),
        ({"cos": shaped(700, 4)}, r"cos is \[700, 4\]; \[700, 8\] is needed"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(change: dict, sentence: str) -> None:
    """Otherwise memory behind a buffer is read, or written."""
    memory = Cache.of(NODE, 20, fill=0)
    good = feeds(NODE, rows(NODE, 3), 10) | {"past_key": memory.keys, "past_value": memory.values}
    session(NODE).run(None, good)
    with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=sentence):
        session(NODE).run(None, good | change)


@pytest.mark.parametrize("rotary", [False, True])
def test_tables_and_the_attribute_must_agree(rotary: bool) -> None:
    """Tables that are there and not used, or the other way round, are a mistake of whoever made the graph."""
    heads = Heads(4, 2, 16, rotary=rotary)
    names = ["qkv", *PAST, "seqlens_k", "total", *replace(heads, rotary=not rotary).optional()]
    node = helper.make_node("GroupedAttention", names, ["mixed", *PRESENT], domain="selfspec", **heads.attributes())
    op = build(node, [(name, FLOAT) for name in names[5:7] if name], 1)
    memory = Cache.of(heads, 20, fill=0)
    given = feeds(replace(heads, rotary=not rotary), rows(heads, 3), 10)
    with pytest.raises(Exception, match="do_rotary is"):
        op.run(None, given | {"past_key": memory.keys, "past_value": memory.values})


@pytest.mark.parametrize("name", ["q_gain", "k_gain"])
def test_a_gain_of_another_size_is_refused(name: str) -> None:
    heads = Heads(4, 2, 16, gains=True)
    memory = Cache.of(heads, 20, fill=0)
    given = feeds(heads, rows(heads, 3), 10) | {"past_key": memory.keys, "past_value": memory.values}
    with pytest.raises(Exception, match=rf"{name} is \[15\]; \[16\] is needed"):
        session(heads).run(None, given | {name: np.ones(15, np.float32)})
