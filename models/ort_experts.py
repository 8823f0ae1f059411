"""Sparse experts by ONNX Runtime's own operators: routing in standard ones, experts in MoE (float32) or QMoE.

Both operators would choose and weigh experts themselves, and then add up a row's experts in an order that depends on
the other rows. So a row comes to them once for each of its experts, with no other to choose from, and is weighed and
added up behind them. The rest of the experts is never read.

Both may compute an expert's product with one row by a kernel of its own, faster and of other bits than with several:
MoE does on every x86, QMoE with 4 bits on those without VNNI. So the only row of an expert comes twice,
unless the whole pass has one row, as attention's bits are others then too.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import onnx_ir as ir

from .components import INT32, scaled
from .graph import MICROSOFT, GraphBuilder
from .moe import SparseMLP
from .tensors import FLOAT_BITS, Segment, StoredTensor

_INT8_ACTIVATIONS = 4  # QMoE accuracy_level, as that of MatMulNBits
# SwiGLU as every family has it: gate * sigmoid(gate) * up. The defaults of both attributes have been others.
_ATTRIBUTES = {
    "k": 1, "activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0,
    "normalize_routing_weights": 1,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Routing:
    """``experts`` [T, k'] int64 and their ``weights`` [T, k', 1], k' as the graph is told; ``selected`` [1, T, k]
    int32: the same experts, -1 behind them."""

    experts: ir.Value
    weights: ir.Value
    selected: ir.Value


def sparse_mlp(g: GraphBuilder, moe: SparseMLP, x: ir.Value, experts_per_token: ir.Value) -> tuple[ir.Value, ir.Value]:
    """See :meth:`~selfspec.models.components.Kernels.sparse_mlp`. Rows of gate and up must lie in pairs."""
    d = moe.hidden_size
    routing = _route(g, moe, g.op("Reshape", [x, g.constant([-1, d])]), experts_per_token)
    by_row = g.op("Reshape", [x, g.constant([-1, 1, d])])
    repeats = g.op("Concat", [g.constant([1]), experts_per_token, g.constant([1])], {"axis": 0})
    tokens = g.op("Reshape", [g.op("Expand", [by_row, repeats]), g.constant([-1, d])])
    out = _experts(g, moe, tokens, routing.experts)
    shape = g.op("Concat", [g.constant([-1]), experts_per_token, g.constant([d])], {"axis": 0})
    weighed = g.op("Mul", [g.op("Reshape", [out, shape]), routing.weights])
    total = g.op("ReduceSum", [weighed, g.constant([1])], {"keepdims": 0})
    return g.op("Reshape", [scaled(g, total, moe.scale), g.constant([1, -1, d])]), routing.selected


def _route(g: GraphBuilder, moe: SparseMLP, rows: ir.Value, experts_per_token: ir.Value) -> Routing:
    k = moe.experts_per_token
    router = g.weight(moe.router.name, moe.router.codes)
    logits = g.op("FusedMatMul", [rows, router], {"transB": 1}, MICROSOFT)
    best, indices = g.op_multi("TopK", [logits, g.constant([k])], 2)  # the lower index first where logits are equal

    def first(values: ir.Value) -> ir.Value:
        return g.op("Slice", [values, g.constant([0]), experts_per_token, g.constant([1])])

    experts = first(indices)
    if moe.weights_sum_to_one:
        weights = g.op("Softmax", [first(best)], {"axis": -1})
    else:
        weights = g.op("GatherElements", [g.op("Softmax", [logits], {"axis": -1}), experts], {"axis": 1})
    runs = g.op("Less", [g.constant(list(range(k))), experts_per_token])
    selected = g.op("Cast", [g.op("Where", [runs, indices, g.constant([-1])])], {"to": INT32})
    return Routing(
        experts, g.op("Unsqueeze", [weights, g.constant([2])]), g.op("Unsqueeze", [selected, g.constant([0])])
    )


def _experts(g: GraphBuilder, moe: SparseMLP, tokens: ir.Value, experts: ir.Value) -> ir.Value:
    """Every token through its one expert: ``tokens`` [N, d] and ``experts`` [T, k'], N = T k', to [N, d]."""
    flat = g.op("Reshape", [experts, g.constant([-1])])
    off_on = g.op("Constant", [], {"value_floats": [0.0, 1.0]})
    scores = g.op("OneHot", [flat, g.constant([moe.num_experts]), off_on])  # the best is the token's expert
    counts = g.op("Gather", [g.op("ReduceSum", [scores, g.constant([0])], {"keepdims": 0}), flat])
    several = g.op("Greater", [g.op("Shape", [experts], {"start": 0, "end": 1}), g.constant([1])])
    lonely = g.op("And", [g.op("Less", [counts, g.constant(2.0)]), several])
    with_twins = [
        g.op("Concat", [values, g.op("Compress", [values, lonely], {"axis": 0})], {"axis": 0})
        for values in (tokens, scores)
    ]
    out = (_floats if moe.gate_up.bits == FLOAT_BITS else _quantised)(g, moe, *with_twins)
    count = g.op("Shape", [tokens], {"start": 0, "end": 1})
    return g.op("Slice", [out, g.constant([0]), count, g.constant([0])])


def _floats(g: GraphBuilder, moe: SparseMLP, tokens: ir.Value, scores: ir.Value) -> ir.Value:
    up, down = (g.weight(w.name, _by_expert(moe, w.codes)) for w in (moe.gate_up, moe.down))
    return g.op("MoE", [tokens, scores, up, None, down], _ATTRIBUTES, MICROSOFT)


def _quantised(g: GraphBuilder, moe: SparseMLP, tokens: ir.Value, scores: ir.Value) -> ir.Value:
    check_fast(moe)
    up, down = moe.gate_up, moe.down
    *up_parts, up_zeros = _parts(g, moe, up)
    *down_parts, down_zeros = _parts(g, moe, down)
    inputs = [tokens, scores, *up_parts, None, *down_parts, *[None] * 4, up_zeros, down_zeros]  # no biases, no third
    attributes: Mapping[str, object] = {
        "expert_weight_bits": up.bits, "block_size": up.block_size, "accuracy_level": _INT8_ACTIVATIONS,
    }  # fmt: skip
    return g.op("QMoE", inputs, {**_ATTRIBUTES, **attributes}, MICROSOFT)


def check_fast(moe: SparseMLP) -> None:
    """QMoE has int8 kernels for whole blocks and for both matrices alike; whatever else it is given, it unpacks to
    floats on every call.

    Raises:
        ValueError: the matrices would be.
    """
    up, down = moe.gate_up, moe.down
    whole = all(w.block_size and w.shape[1] % w.block_size == 0 and w.scales is not None for w in (up, down))
    if not whole or (up.bits, up.block_size) != (down.bits, down.block_size) or up.bits not in (4, 8):
        raise ValueError(f"{up.name} and {down.name} are not stored in whole blocks of one kind")


def _parts(g: GraphBuilder, moe: SparseMLP, w: StoredTensor) -> list[ir.Value | None]:
    """Codes, scales and zero points, None where there are none."""
    segments = {"codes": w.codes, "scales": w.scales, "zero_points": w.zero_points}
    return [
        None if segment is None else g.weight(f"{w.name}.{name}", _by_expert(moe, segment))
        for name, segment in segments.items()
    ]


def _by_expert(moe: SparseMLP, segment: Segment) -> Segment:
    """The same bytes with a dimension of experts in front."""
    rows, cols = segment.shape
    return Segment(segment.dtype, (moe.num_experts, rows // moe.num_experts, cols), segment.offset)
