"""ONNX Runtime's own operators: float32 matrices, and quantised ones in the layout of MatMulNBits."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .components import Attention, GatedMLP, Positions
from .graph import MICROSOFT, GraphBuilder
from .moe import SparseMLP
from .ort_experts import sparse_mlp
from .tensors import FLOAT_BITS, Segment, StoredTensor

_INT8_ACTIVATIONS = 4  # MatMulNBits accuracy_level: activations rounded per row and block, so rows never mix


class OrtKernels:
    """Implements :class:`~selfspec.models.components.Kernels`."""

    def product(self, g: GraphBuilder, x: ir.Value, w: StoredTensor) -> ir.Value:
        if w.bits == FLOAT_BITS:
            return g.op("FusedMatMul", [x, g.weight(w.name, w.codes)], {"transB": 1}, MICROSOFT)
        rows, cols = w.shape
        return g.op(
            "MatMulNBits",
            [x, *_quantised_inputs(g, w, blocked=True)],
            {"K": cols, "N": rows, "bits": w.bits, "block_size": w.block_size, "accuracy_level": _INT8_ACTIVATIONS},
            MICROSOFT,
        )

    def embedding(self, g: GraphBuilder, ids: ir.Value, w: StoredTensor) -> ir.Value:
        if w.bits == FLOAT_BITS:
            return g.op("Gather", [g.weight(w.name, w.codes), ids], {"axis": 0})
        codes, scales, *zero_points = _quantised_inputs(g, w, blocked=False)
        attributes = {"bits": w.bits, "block_size": w.block_size, "gather_axis": 0, "quantize_axis": 1}
        return g.op("GatherBlockQuantized", [codes, ids, scales, *zero_points], attributes, MICROSOFT)

    def attend(
        self, g: GraphBuilder, attention: Attention, packed: ir.Value, past: Sequence[ir.Value], pos: Positions
    ) -> Sequence[ir.Value]:
        # Packed in the first input where nothing comes between projection and attention, else apart.
        norm = attention.qk_norm
        parts: list[ir.Value | None]
        if norm is None:
            parts = [attention.clipped(g, packed), None, None]
        else:
            parts = [attention.clipped(g, part) for part in attention.normed_parts(g, packed, norm)]
        tables = attention.rotary_tables(g)
        return g.op_multi(
            "GroupQueryAttention",
            [*parts, *past, pos.seqlens_k, pos.total_sequence_length, *tables],
            3,
            {
                "num_heads": attention.num_heads, "kv_num_heads": attention.num_kv_heads,
                "do_rotary": len(tables) // 2, "rotary_interleaved": 0, "scale": attention.scale,
                **({} if attention.window is None else {"local_window_size": attention.window}),
            },
            MICROSOFT,
        )  # fmt: skip

    def gated_mlp(self, g: GraphBuilder, mlp: GatedMLP, x: ir.Value) -> ir.Value:
        return mlp.by_parts(g, self, x)

    def sparse_mlp(
        self, g: GraphBuilder, moe: SparseMLP, x: ir.Value, experts_per_token: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        return sparse_mlp(g, moe, x, experts_per_token)


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
