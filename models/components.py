"""The parts that families are assembled from. Each takes a builder, values and stored tensors; none reads a config.

Shapes: ``hidden`` [1, T, d] float32; key and value buffers [1, kv_heads, capacity, head_dim] float32, updated in
place because the runtime binds one buffer as past and present.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .graph import MICROSOFT, Dims, GraphBuilder
from .tensors import FLOAT_BITS, Segment, StoredTensor

FLOAT, INT32, INT64 = ir.DataType.FLOAT, ir.DataType.INT32, ir.DataType.INT64
_INT8_ACTIVATIONS = 4  # MatMulNBits accuracy_level: activations rounded per row and block, so rows never mix


def linear(g: GraphBuilder, x: ir.Value, w: StoredTensor) -> ir.Value:
    """``x @ w.T`` for a matrix stored as [out, in], float32 or quantised."""
    if w.bits == FLOAT_BITS:
        return g.op("FusedMatMul", [x, g.weight(w.name, w.codes)], {"transB": 1}, MICROSOFT)
    rows, cols = w.shape
    return g.op(
        "MatMulNBits",
        [x, *_quantised_inputs(g, w, blocked=True)],
        {"K": cols, "N": rows, "bits": w.bits, "block_size": w.block_size, "accuracy_level": _INT8_ACTIVATIONS},
        MICROSOFT,
    )


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
    """Graph inputs shared by every attention of a graph, and the rotary tables."""

    seqlens_k: ir.Value
    total_sequence_length: ir.Value
    cos: StoredTensor
    sin: StoredTensor

    @classmethod
    def declare(cls, g: GraphBuilder, cos: StoredTensor, sin: StoredTensor) -> Positions:
        return cls(g.input("seqlens_k", INT32, [1]), g.input("total_sequence_length", INT32, [1]), cos, sin)


@dataclass(frozen=True, slots=True)
class AttentionShape:
    num_heads: int
    num_kv_heads: int
    head_dim: int


def attention(
    g: GraphBuilder,
    x: ir.Value,
    layer: int,
    shape: AttentionShape,
    qkv: StoredTensor,
    out: StoredTensor,
    pos: Positions,
) -> ir.Value:
    """Causal grouped-query attention with rotary inside; reads and appends layer ``layer``'s KV buffers."""
    dims: Dims = [1, shape.num_kv_heads, "capacity", shape.head_dim]
    past_key = g.input(f"past_key_values.{layer}.key", FLOAT, dims)
    past_value = g.input(f"past_key_values.{layer}.value", FLOAT, dims)
    mixed, present_key, present_value = g.op_multi(
        "GroupQueryAttention",
        [
            linear(g, x, qkv), None, None, past_key, past_value, pos.seqlens_k, pos.total_sequence_length,
            g.weight(pos.cos.name, pos.cos.codes), g.weight(pos.sin.name, pos.sin.codes),
        ],
        3,
        {
            "num_heads": shape.num_heads, "kv_num_heads": shape.num_kv_heads, "do_rotary": 1,
            "rotary_interleaved": 0, "scale": shape.head_dim**-0.5,
        },
        MICROSOFT,
    )  # fmt: skip
    g.output(f"present.{layer}.key", present_key, dims)
    g.output(f"present.{layer}.value", present_value, dims)
    return linear(g, mixed, out)


def gated_mlp(g: GraphBuilder, x: ir.Value, gate_up: StoredTensor, down: StoredTensor) -> ir.Value:
    """``down(silu(gate(x)) * up(x))``. QuickGelu with alpha 1 is SiLU, in one node."""
    gate, up = g.op_multi("Split", [linear(g, x, gate_up)], 2, {"axis": -1, "num_outputs": 2})
    activated = g.op("QuickGelu", [gate], {"alpha": 1.0}, MICROSOFT)
    return linear(g, g.op("Mul", [activated, up]), down)
