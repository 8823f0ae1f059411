"""The parts that families are assembled from. Each takes a builder, kernels, values and stored tensors; none reads a
config, and none knows which kernels it is given.

Shapes: ``hidden`` [1, T, d] float32; key and value buffers [1, kv_heads, capacity, head_dim] float32, updated in
place because the runtime binds one buffer as past and present.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import onnx_ir as ir

from .graph import MICROSOFT, Dims, GraphBuilder
from .interface import SEQLENS_K, TOTAL_SEQUENCE_LENGTH, kv_names
from .tensors import StoredTensor

if TYPE_CHECKING:
    from .moe import SparseMLP

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64


class Kernels(Protocol):
    """The operators that read matrices and attend, of one kernel library. Norms and residuals are ONNX Runtime's."""

    def product(self, g: GraphBuilder, x: ir.Value, w: StoredTensor) -> ir.Value:
        """``x @ w.T`` for a matrix stored as [out, in]."""

    def embedding(self, g: GraphBuilder, ids: ir.Value, w: StoredTensor) -> ir.Value:
        """Rows of ``w`` as float32. ``ids`` [1, T] int64 → [1, T, d]."""

    def attend(
        self, g: GraphBuilder, attention: Attention, packed: ir.Value, past: Sequence[ir.Value], pos: Positions
    ) -> Sequence[ir.Value]:
        """(mixed [1, T, heads · head_dim], present keys, present values), given q, k and v side by side in ``packed``
        and the past keys and values. Norms of q and k and rotary are part of it."""

    def gated_mlp(self, g: GraphBuilder, mlp: GatedMLP, x: ir.Value) -> ir.Value:
        """All of ``mlp``; :meth:`GatedMLP.by_parts` where no operator does it at once."""

    def sparse_mlp(
        self, g: GraphBuilder, moe: SparseMLP, x: ir.Value, experts_per_token: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        """Router and experts of ``moe``, without its shared one: (update [1, T, d], selected experts [1, T, k] int32).

        Only the best ``experts_per_token`` (int64 [1], between 1 and k) of each row run, and no other expert's weights
        are read; weights are normalised over those that run. ``selected``: by falling logit, the lower index first
        where they are equal; -1 beyond those that run.
        """


def linear(
    g: GraphBuilder, kernels: Kernels, x: ir.Value, w: StoredTensor, bias: StoredTensor | None = None
) -> ir.Value:
    """``x @ w.T + bias`` for a matrix stored as [out, in]."""
    product = kernels.product(g, x, w)
    return product if bias is None else g.op("Add", [product, g.weight(bias.name, bias.codes)])


def scaled(g: GraphBuilder, x: ir.Value, factor: float) -> ir.Value:
    """``x * factor``; nothing where the factor is 1."""
    return x if factor == 1.0 else g.op("Mul", [x, g.constant(float(factor))])


@dataclass(frozen=True, slots=True)
class Residual:
    """The residual stream, and an update not yet added to it: the sum is fused into the next norm."""

    stream: ir.Value
    update: ir.Value | None = None

    def normed(self, g: GraphBuilder, weight: StoredTensor, eps: float) -> tuple[ir.Value, Residual]:
        """(RMS norm of the sum, the summed stream)."""
        gain = g.weight(weight.name, weight.codes)
        if self.update is None:
            return rms_norm(g, self.stream, weight, eps), self
        normed, _, _, total = g.op_multi(
            "SkipSimplifiedLayerNormalization", [self.update, self.stream, gain], 4, {"epsilon": eps}, MICROSOFT
        )
        return normed, Residual(total)

    def add(self, g: GraphBuilder, update: ir.Value) -> Residual:
        return Residual(self.sum(g), update)

    def sum(self, g: GraphBuilder) -> ir.Value:
        return self.stream if self.update is None else g.op("Add", [self.update, self.stream])


def rms_norm(g: GraphBuilder, x: ir.Value, weight: StoredTensor, eps: float) -> ir.Value:
    gain = g.weight(weight.name, weight.codes)
    return g.op("SimplifiedLayerNormalization", [x, gain], {"axis": -1, "epsilon": eps, "stash_type": 1})


@dataclass(frozen=True, slots=True)
class Positions:
    """Graph inputs shared by every attention of a graph."""

    seqlens_k: ir.Value
    total_sequence_length: ir.Value

    @classmethod
    def declare(cls, g: GraphBuilder) -> Positions:
        return cls(g.input(SEQLENS_K, INT32, [1]), g.input(TOTAL_SEQUENCE_LENGTH, INT32, [1]))


@dataclass(frozen=True, slots=True)
class Rotary:
    """Tables of cosines and sines, [positions, head_dim // 2]."""

    cos: StoredTensor
    sin: StoredTensor


@dataclass(frozen=True, slots=True)
class QKNorm:
    """RMS norm of q and k before they turn: per head, or over the whole projection."""

    q: StoredTensor
    k: StoredTensor
    eps: float
    per_head: bool


@dataclass(frozen=True, slots=True)
class Attention:
    """One attention sublayer. ``scale`` multiplies q·k; ``window`` is how many positions are seen, None for all;
    without ``rotary`` the layer does not turn q and k; ``clip`` bounds the elements of q, k and v, behind a norm."""

    layer: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    qkv: StoredTensor
    output: StoredTensor
    qkv_bias: StoredTensor | None = None
    output_bias: StoredTensor | None = None
    qk_norm: QKNorm | None = None
    rotary: Rotary | None = None
    window: int | None = None
    clip: float | None = None

    def apply(self, g: GraphBuilder, kernels: Kernels, x: ir.Value, pos: Positions) -> ir.Value:
        """Causal grouped-query attention with rotary inside; reads and appends the layer's KV buffers."""
        dims: Dims = [1, self.num_kv_heads, "capacity", self.head_dim]
        (past_key, key), (past_value, value) = kv_names(self.layer)
        past = [g.input(past_key, FLOAT, dims), g.input(past_value, FLOAT, dims)]
        packed = linear(g, kernels, x, self.qkv, self.qkv_bias)
        mixed, present_key, present_value = kernels.attend(g, self, packed, past, pos)
        g.output(key, present_key, dims)
        g.output(value, present_value, dims)
        return linear(g, kernels, mixed, self.output, self.output_bias)

    def rotary_tables(self, g: GraphBuilder) -> list[ir.Value]:
        tables = [] if self.rotary is None else [self.rotary.cos, self.rotary.sin]
        return [g.weight(table.name, table.codes) for table in tables]

    def normed_parts(self, g: GraphBuilder, packed: ir.Value, norm: QKNorm) -> list[ir.Value]:
        """q, k and v apart, q and k normed."""
        heads, kv_heads = self.num_heads, self.num_kv_heads
        sizes = [heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.head_dim]
        q, k, v = g.op_multi("Split", [packed, g.constant(sizes)], 3, {"axis": -1})
        if not norm.per_head:
            return [rms_norm(g, q, norm.q, norm.eps), rms_norm(g, k, norm.k, norm.eps), v]
        return [self._head_norm(g, q, heads, norm.q, norm.eps), self._head_norm(g, k, kv_heads, norm.k, norm.eps), v]

    def clipped(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        return x if self.clip is None else g.op("Clip", [x, g.constant(-self.clip), g.constant(self.clip)])

    def _head_norm(self, g: GraphBuilder, x: ir.Value, heads: int, gain: StoredTensor, eps: float) -> ir.Value:
        by_head = g.op("Reshape", [x, g.constant([1, -1, heads, self.head_dim])])
        return g.op("Reshape", [rms_norm(g, by_head, gain, eps), g.constant([1, -1, heads * self.head_dim])])


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """``down(activation(gate(x)) * up(x))``, with gate and up stacked; multiplied by ``sigmoid(sigmoid_gate · x)``
    where there is such a row."""

    gate_up: StoredTensor
    down: StoredTensor
    activation: str
    gate_up_bias: StoredTensor | None = None
    down_bias: StoredTensor | None = None
    sigmoid_gate: StoredTensor | None = None

    def by_parts(self, g: GraphBuilder, kernels: Kernels, x: ir.Value) -> ir.Value:
        """Two products with ONNX Runtime's activation between them."""
        both = linear(g, kernels, x, self.gate_up, self.gate_up_bias)
        gate, up = g.op_multi("Split", [both], 2, {"axis": -1, "num_outputs": 2})
        activated = _ACTIVATIONS[self.activation](g, gate)
        out = linear(g, kernels, g.op("Mul", [activated, up]), self.down, self.down_bias)
        return self.gated(g, x, out)

    def gated(self, g: GraphBuilder, x: ir.Value, out: ir.Value) -> ir.Value:
        """``out`` times the sigmoid's gate. A sum of products, not a matrix product: those with one column may add up
        a row otherwise beside others."""
        if self.sigmoid_gate is None:
            return out
        products = g.op("Mul", [x, g.weight(self.sigmoid_gate.name, self.sigmoid_gate.codes)])
        dot = g.op("ReduceSum", [products, g.constant([-1])], {"keepdims": 1})
        return g.op("Mul", [out, g.op("Sigmoid", [dot])])


def _silu(g: GraphBuilder, x: ir.Value) -> ir.Value:
    return g.op("QuickGelu", [x], {"alpha": 1.0}, MICROSOFT)  # x * sigmoid(alpha * x), in one node


def _gelu_tanh(g: GraphBuilder, x: ir.Value) -> ir.Value:
    return g.op("FastGelu", [x], None, MICROSOFT)


_ACTIVATIONS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}
