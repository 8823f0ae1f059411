"""The parts that families are assembled from. Each takes a builder, values and stored tensors; none reads a config.

Shapes: ``hidden`` [1, T, d] float32; key and value buffers [1, kv_heads, capacity, head_dim] float32, updated in
place because the runtime binds one buffer as past and present.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import onnx_ir as ir

from .graph import MICROSOFT, Dims, GraphBuilder
from .tensors import FLOAT_BITS, Segment, StoredTensor

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
_INT8_ACTIVATIONS = 4  # MatMulNBits accuracy_level: activations rounded per row and block, so rows never mix


def linear(g: GraphBuilder, x: ir.Value, w: StoredTensor, bias: StoredTensor | None = None) -> ir.Value:
    """``x @ w.T + bias`` for a matrix stored as [out, in], float32 or quantised."""
    if w.bits == FLOAT_BITS:
        product = g.op("FusedMatMul", [x, g.weight(w.name, w.codes)], {"transB": 1}, MICROSOFT)
    else:
        rows, cols = w.shape
        product = g.op(
            "MatMulNBits",
            [x, *_quantised_inputs(g, w, blocked=True)],
            {"K": cols, "N": rows, "bits": w.bits, "block_size": w.block_size, "accuracy_level": _INT8_ACTIVATIONS},
            MICROSOFT,
        )
    return product if bias is None else g.op("Add", [product, g.weight(bias.name, bias.codes)])


def scaled(g: GraphBuilder, x: ir.Value, factor: float) -> ir.Value:
    """``x * factor``; nothing where the factor is 1."""
    return x if factor == 1.0 else g.op("Mul", [x, g.constant(float(factor))])


def embedding(g: GraphBuilder, ids: ir.Value, w: StoredTensor) -> ir.Value:
    """Rows of ``w``, dequantised where needed. ``ids`` [1, T] int64 → [1, T, d] float32."""
    if w.bits == FLOAT_BITS:
        return g.op("Gather", [g.weight(w.name, w.codes), ids], {"axis": 0})
    codes, scales, *zero_points = _quantised_inputs(g, w, blocked=False)
    attributes = {"bits": w.bits, "block_size": w.block_size, "gather_axis": 0, "quantize_axis": 1}
    return g.op("GatherBlockQuantized", [codes, ids, scales, *zero_points], attributes, MICROSOFT)


def _quantised_inputs(g: GraphBuilder, w: StoredTensor, *, blocked: bool) -> list[ir.Value]:
    """Codes, scales and, where stored, zero points. The gather wants the codes flat, MatMulNBits by block:
    two initialisers with different dims over the same bytes, since a Reshape would be folded into a copy."""
    if w.scales is None:
        raise ValueError(f"{w.name} has {w.bits} bits but no scales")
    rows, blocks = w.scales.shape
    shape = (rows, blocks, w.block_size * w.bits // 8) if blocked else (rows, blocks * w.block_size * w.bits // 8)
    codes = g.weight(f"{w.name}.codes", Segment("uint8", shape, w.codes.offset))
    values = [codes, g.weight(f"{w.name}.scales", w.scales)]
    if w.zero_points is not None:
        values.append(g.weight(f"{w.name}.zero_points", w.zero_points))
    return values


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
        return cls(g.input("seqlens_k", INT32, [1]), g.input("total_sequence_length", INT32, [1]))


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
    without ``rotary`` the layer does not turn q and k."""

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

    def apply(self, g: GraphBuilder, x: ir.Value, pos: Positions) -> ir.Value:
        """Causal grouped-query attention with rotary inside; reads and appends the layer's KV buffers."""
        dims: Dims = [1, self.num_kv_heads, "capacity", self.head_dim]
        past_key = g.input(f"past_key_values.{self.layer}.key", FLOAT, dims)
        past_value = g.input(f"past_key_values.{self.layer}.value", FLOAT, dims)
        tables = [] if self.rotary is None else [self.rotary.cos, self.rotary.sin]
        mixed, present_key, present_value = g.op_multi(
            "GroupQueryAttention",
            [
                *self._queries_keys_values(g, x), past_key, past_value, pos.seqlens_k, pos.total_sequence_length,
                *(g.weight(table.name, table.codes) for table in tables),
            ],
            3,
            {
                "num_heads": self.num_heads, "kv_num_heads": self.num_kv_heads, "do_rotary": len(tables) // 2,
                "rotary_interleaved": 0, "scale": self.scale,
                **({} if self.window is None else {"local_window_size": self.window}),
            },
            MICROSOFT,
        )  # fmt: skip
        g.output(f"present.{self.layer}.key", present_key, dims)
        g.output(f"present.{self.layer}.value", present_value, dims)
        return linear(g, mixed, self.output, self.output_bias)

    def _queries_keys_values(self, g: GraphBuilder, x: ir.Value) -> list[ir.Value | None]:
        """Packed in the first where nothing comes between projection and attention, else apart."""
        packed = linear(g, x, self.qkv, self.qkv_bias)
        if self.qk_norm is None:
            return [packed, None, None]
        norm, heads, kv_heads = self.qk_norm, self.num_heads, self.num_kv_heads
        sizes = [heads * self.head_dim, kv_heads * self.head_dim, kv_heads * self.head_dim]
        q, k, v = g.op_multi("Split", [packed, g.constant(sizes)], 3, {"axis": -1})
        if not norm.per_head:
            return [rms_norm(g, q, norm.q, norm.eps), rms_norm(g, k, norm.k, norm.eps), v]
        return [self._head_norm(g, q, heads, norm.q), self._head_norm(g, k, kv_heads, norm.k), v]

    def _head_norm(self, g: GraphBuilder, x: ir.Value, heads: int, gain: StoredTensor) -> ir.Value:
        eps = 0.0 if self.qk_norm is None else self.qk_norm.eps
        by_head = g.op("Reshape", [x, g.constant([1, -1, heads, self.head_dim])])
        return g.op("Reshape", [rms_norm(g, by_head, gain, eps), g.constant([1, -1, heads * self.head_dim])])


@dataclass(frozen=True, slots=True)
class GatedMLP:
    """``down(activation(gate(x)) * up(x))``, with gate and up stacked."""

    gate_up: StoredTensor
    down: StoredTensor
    activation: str
    gate_up_bias: StoredTensor | None = None
    down_bias: StoredTensor | None = None

    def apply(self, g: GraphBuilder, x: ir.Value) -> ir.Value:
        both = linear(g, x, self.gate_up, self.gate_up_bias)
        gate, up = g.op_multi("Split", [both], 2, {"axis": -1, "num_outputs": 2})
        activated = _ACTIVATIONS[self.activation](g, gate)
        return linear(g, g.op("Mul", [activated, up]), self.down, self.down_bias)


def _silu(g: GraphBuilder, x: ir.Value) -> ir.Value:
    return g.op("QuickGelu", [x], {"alpha": 1.0}, MICROSOFT)  # x * sigmoid(alpha * x), in one node


def _gelu_tanh(g: GraphBuilder, x: ir.Value) -> ir.Value:
    return g.op("FastGelu", [x], None, MICROSOFT)


_ACTIVATIONS: dict[str, Callable[[GraphBuilder, ir.Value], ir.Value]] = {"silu": _silu, "gelu_tanh": _gelu_tanh}
