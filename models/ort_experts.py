"""Sparse experts by ONNX Runtime's own operators: routing in standard ones, experts in MoE (float32) or QMoE.

Both operators pick the k best of the scores they are given and weigh experts by a softmax over those. They are given
the router's logits where a row's expert shall run and ``_NOWHERE`` elsewhere: an expert whose weight underflows to zero
is never run and its weights are never read, so that one graph serves every number of experts up to k.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from .components import INT32, scaled
from .graph import MICROSOFT, GraphBuilder
from .moe import SparseMLP
from .tensors import FLOAT_BITS, Segment, StoredTensor

_NOWHERE = -1e30
_INT8_ACTIVATIONS = 4  # QMoE accuracy_level, as that of MatMulNBits
# SwiGLU as every family has it: gate * sigmoid(gate) * up. The defaults of both attributes have been others.
_SWIGLU = {"activation_type": "swiglu", "swiglu_fusion": 1, "activation_alpha": 1.0, "activation_beta": 0.0}


@dataclass(frozen=True, slots=True)
class Routing:
    """``scores`` [T, E] for the operators; ``total`` [T, 1]: what the weights of a row add up to, None where that is 1;
    ``selected`` [1, T, k] int32."""

    scores: ir.Value
    total: ir.Value | None
    selected: ir.Value


def sparse_mlp(
    g: GraphBuilder, moe: SparseMLP, x: ir.Value, experts_per_token: ir.Value
) -> tuple[ir.Value, ir.Value]:
    """See :meth:`~selfspec.models.components.Kernels.sparse_mlp`. Rows of gate and up must lie in pairs."""
    rows = g.op("Reshape", [x, g.constant([-1, moe.hidden_size])])
    routing = _route(g, moe, rows, experts_per_token)
    shared = {"k": moe.experts_per_token, "normalize_routing_weights": 1} | _SWIGLU
    if moe.gate_up.bits == FLOAT_BITS:
        gate_up, down = _floats(g, moe, moe.gate_up), _floats(g, moe, moe.down)
        out = g.op("MoE", [rows, routing.scores, gate_up, None, down], shared, MICROSOFT)
    else:
        out = _quantised(g, moe, rows, routing.scores, shared)
    if routing.total is not None:
        out = g.op("Mul", [out, routing.total])
    out = g.op("Reshape", [scaled(g, out, moe.scale), g.constant([1, -1, moe.hidden_size])])
    return out, routing.selected


def _route(g: GraphBuilder, moe: SparseMLP, rows: ir.Value, experts_per_token: ir.Value) -> Routing:
    k = moe.experts_per_token
    router = g.weight(moe.router.name, moe.router.codes)
    logits = g.op("FusedMatMul", [rows, router], {"transB": 1}, MICROSOFT)
    best, indices = g.op_multi("TopK", [logits, g.constant([k])], 2)  # the lower index first where logits are equal
    runs = g.op("Less", [g.constant(list(range(k))), experts_per_token])
    nowhere = g.constant(_NOWHERE)
    everywhere = g.op("Expand", [nowhere, g.op("Shape", [logits])])
    scores = g.op("ScatterElements", [everywhere, indices, g.op("Where", [runs, best, nowhere])], {"axis": 1})
    selected = g.op("Cast", [g.op("Where", [runs, indices, g.constant([-1])])], {"to": INT32})
    selected = g.op("Unsqueeze", [selected, g.constant([0])])
    total = None
    if not moe.weights_sum_to_one:
        shares = g.op("GatherElements", [g.op("Softmax", [logits], {"axis": -1}), indices], {"axis": 1})
        kept = g.op("Where", [runs, shares, g.constant(0.0)])
        total = g.op("ReduceSum", [kept, g.constant([-1])], {"keepdims": 1})
    return Routing(scores, total, selected)


def _floats(g: GraphBuilder, moe: SparseMLP, w: StoredTensor) -> ir.Value:
    rows, cols = w.shape
    shape = (moe.num_experts, rows // moe.num_experts, cols)
    return g.weight(w.name, Segment("float32", shape, w.codes.offset))


def _quantised(
    g: GraphBuilder, moe: SparseMLP, rows: ir.Value, scores: ir.Value, shared: dict[str, object]
) -> ir.Value:
    check_fast(moe)
    up_codes, up_scales, up_zeros = _parts(g, moe, moe.gate_up)
    down_codes, down_scales, down_zeros = _parts(g, moe, moe.down)
    inputs = [
        rows, scores, up_codes, up_scales, None, down_codes, down_scales, None, None, None, None, up_zeros, down_zeros,
    ]  # fmt: skip
    attributes = {
        "expert_weight_bits": moe.gate_up.bits,
        "block_size": moe.gate_up.block_size,
        "accuracy_level": _INT8_ACTIVATIONS,
    }
    return g.op("QMoE", inputs, shared | attributes, MICROSOFT)


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
    """Codes, scales and zero points with a dimension of experts in front."""

    def by_expert(name: str, segment: Segment | None) -> ir.Value | None:
        if segment is None:
            return None
        rows, cols = segment.shape
        shape = (moe.num_experts, rows // moe.num_experts, cols)
        return g.weight(f"{w.name}.{name}", Segment(segment.dtype, shape, segment.offset))

    return [by_expert("codes", w.codes), by_expert("scales", w.scales), by_expert("zero_points", w.zero_points)]
