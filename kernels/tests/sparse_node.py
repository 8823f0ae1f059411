"""A graph of one SparseMLPTiles, and what it computes in NumPy."""

from dataclasses import asdict, dataclass

import numpy as np
import onnxruntime as ort
from hypothesis import strategies as st
from library import open_graph
from onnx import TensorProto, helper, numpy_helper
from selfspec_kernels import tiles

FLOAT, UINT8, INT32, INT64 = (TensorProto.FLOAT, TensorProto.UINT8, TensorProto.INT32, TensorProto.INT64)
INPUTS = {"x": FLOAT, "router": FLOAT, "experts_per_token": INT64, "gate_up": UINT8, "down": UINT8}
OUTPUTS = {"y": FLOAT, "selected": INT32}


@dataclass(frozen=True)
class Experts:
    """One node, its attributes by their own names."""

    num_experts: int
    k: int
    K: int
    I: int  # noqa: E741
    bits: int = 4
    down_bits: int = 8
    activation: str = "silu"
    softmax: str = "all"
    normalize: int = 0
    scale: float = 1.0
    N: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "N", self.N or self.K)

    def attributes(self) -> dict[str, object]:
        return asdict(self)


@dataclass(frozen=True)
class Matrices:
    """router [E, K] float32; gate_up and down as tiles of the experts one after the other."""

    router: np.ndarray
    gate_up: np.ndarray
    down: np.ndarray

    def expert(self, experts: Experts, e: int) -> tuple[np.ndarray, np.ndarray]:
        """The tiles of one expert."""
        return tuple(np.split(w, experts.num_experts)[e] for w in (self.gate_up, self.down))

    def poisoned(self, experts: Experts, spared: set[int]) -> "Matrices":
        """The same with NaN for every scale and minimum of the experts that are not spared."""
        copies = []
        for w, bits in ((self.gate_up, experts.bits), (self.down, experts.down_bits)):
            copies.append(w.copy())
            for e, part in enumerate(np.split(copies[-1], experts.num_experts)):
                if e not in spared:
                    part[:, :, tiles.COLUMNS * tiles.BLOCK * bits // 8 :] = 0xFF  # a NaN in fp16
        return Matrices(self.router, *copies)


def packed(rng: np.random.Generator, n: int, k: int, bits: int) -> np.ndarray:
    scales = rng.uniform(0.001, 0.02, (n, k // 32)) * 16 / (1 << bits)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    return tiles.pack(codes, scales, -scales * ((1 << bits) - 1) / 2, bits)


def matrices(experts: Experts, seed: int = 0) -> Matrices:
    rng = np.random.default_rng(seed)
    router = rng.standard_normal((experts.num_experts, experts.K)).astype(np.float32)
    return Matrices(
        router / np.float32(experts.K**0.5),
        packed(rng, 2 * experts.num_experts * experts.I, experts.K, experts.bits),
        packed(rng, experts.num_experts * experts.N, experts.I, experts.down_bits),
    )


def rows(experts: Experts, count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, count, experts.K)).astype(np.float32)


def build(
    op: str,
    attributes: dict[str, object],
    inputs: dict[str, int],
    outputs: dict[str, int],
    given: dict[str, np.ndarray],
    threads: int = 1,
) -> ort.InferenceSession:
    """Inputs and outputs by element type; the `given` ones are weights in the model."""
    graph = helper.make_graph(
        [helper.make_node(op, list(inputs), list(outputs), domain="selfspec", **attributes)],
        "g",
        [helper.make_tensor_value_info(name, kind, None) for name, kind in inputs.items() if name not in given],
        [helper.make_tensor_value_info(name, kind, None) for name, kind in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in given.items()],
    )
    return open_graph(graph, threads)


def sparse(attributes: dict[str, object], given: dict[str, np.ndarray], threads: int = 1) -> ort.InferenceSession:
    return build("SparseMLPTiles", attributes, INPUTS, OUTPUTS, given, threads)


def session(experts: Experts, w: Matrices | None = None, threads: int = 1) -> ort.InferenceSession:
    return sparse(experts.attributes(), asdict(w or matrices(experts)), threads)


def gated(
    experts: Experts, gate_up: np.ndarray, down: np.ndarray, gate: np.ndarray | None = None, threads: int = 1
) -> ort.InferenceSession:
    """GatedMLPTiles with the weights of one expert; x is its input."""
    names = ("bits", "down_bits", "activation", "N", "K", "I")
    attributes = {name: value for name, value in experts.attributes().items() if name in names}
    inputs = {"x": FLOAT, **dict.fromkeys(("gate_up", "down"), UINT8), **({} if gate is None else {"gate": FLOAT})}
    weights = {"gate_up": gate_up, "down": down, **({} if gate is None else {"gate": gate})}
    return build("GatedMLPTiles", attributes, inputs, {"y": FLOAT}, weights, threads)


def run(op: ort.InferenceSession, x: np.ndarray, chosen: int) -> tuple[np.ndarray, np.ndarray]:
    """x [1, M, K] → y [1, M, N], selected [1, M, k]."""
    y, selected = op.run(None, {"x": x, "experts_per_token": np.array([chosen])})
    return y, selected


def quantized(x: np.ndarray) -> np.ndarray:
    """x as the kernels see it: int8 per row and block of 32."""
    blocks = x.astype(np.float32).reshape(len(x), x.shape[1] // 32, 32).astype(np.float64)
    scales = np.abs(blocks).max(axis=2, keepdims=True) / 127
    return (np.rint(blocks / np.where(scales == 0, 1, scales)) * scales).reshape(x.shape)


def activated(name: str, x: np.ndarray) -> np.ndarray:
    if name == "silu":
        return x / (1 + np.exp(-x))
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def expert_mlp(experts: Experts, w: Matrices, e: int, x: np.ndarray) -> np.ndarray:
    """x [M, K] → [M, N] by expert e alone."""
    gate_up, down = w.expert(experts, e)
    both = quantized(x) @ tiles.dequantize(gate_up, experts.bits).astype(np.float64).T
    hidden = activated(experts.activation, both[:, : experts.I]) * both[:, experts.I :]
    return quantized(hidden) @ tiles.dequantize(down, experts.down_bits).astype(np.float64).T


def reference(experts: Experts, w: Matrices, x: np.ndarray, chosen: int) -> tuple[np.ndarray, np.ndarray]:
    """y [1, M, N] in float64 and selected [1, M, k], softmax and normalisation as transformers writes them."""
    x = x[0]
    logits = x.astype(np.float64) @ w.router.astype(np.float64).T
    best = np.argsort(-logits, axis=1, kind="stable")[:, :chosen]
    taken = np.take_along_axis(logits, best, axis=1)
    over = logits if experts.softmax == "all" else taken
    weights = np.exp(taken) / np.exp(over).sum(axis=1, keepdims=True)
    if experts.normalize:
        weights /= weights.sum(axis=1, keepdims=True)
    y = np.zeros((len(x), experts.N))
    for e in range(experts.num_experts):
        row, rank = np.nonzero(best == e)
        y[row] += experts.scale * weights[row, rank, None] * expert_mlp(experts, w, e, x[row])
    selected = np.full((len(x), experts.k), -1, np.int32)
    selected[:, :chosen] = best
    return y[None], selected[None]


def bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).view(np.int32)


@st.composite
def shapes(draw: st.DrawFn) -> Experts:
    count = draw(st.integers(1, 9))
    return Experts(
        count,
        draw(st.integers(1, count)),
        32 * draw(st.integers(1, 4)),
        32 * draw(st.integers(1, 3)),
        draw(st.sampled_from([4, 8])),
        draw(st.sampled_from([4, 8])),
        draw(st.sampled_from(["silu", "gelu_tanh"])),
        draw(st.sampled_from(["all", "selected"])),
        draw(st.integers(0, 1)),
        draw(st.sampled_from([1.0, 2.5])),
        draw(st.sampled_from([0, 8, 40, 72])),
    )
