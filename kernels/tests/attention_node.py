"""A graph of one GroupedAttention, the same of ONNX Runtime's GroupQueryAttention, and what both compute in NumPy."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import onnxruntime as ort
from hypothesis import strategies as st
from library import open_graph
from onnx import TensorProto, helper

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
    return open_graph(graph, threads)


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


shapes = st.builds(
    lambda kv_heads, group, dim, window, rotary, gains: Heads(kv_heads * group, kv_heads, dim, window, rotary, gains),
    st.integers(1, 3),
    st.sampled_from([1, 2, 3, 4, 7]),
    st.sampled_from([8, 16, 24, 64, 80]),
    st.sampled_from([0, 1, 5, 64, 130]),
    st.booleans(),
    st.booleans(),
)
