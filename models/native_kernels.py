"""The operators of the package selfspec-kernels, over matrices in tiles: every row alike, weights used in place."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .components import Attention, GatedMLP, Positions
from .graph import SELFSPEC, GraphBuilder
from .manifest import EXPERTS_OPERATOR
from .moe import SparseMLP
from .tensors import StoredTensor


class NativeKernels:
    """Implements :class:`~selfspec.models.components.Kernels`."""

    def product(self, g: GraphBuilder, x: ir.Value, w: StoredTensor) -> ir.Value:
        return g.op("MatMulTiles", [x, _tiles(g, w)], _dimensions(w), SELFSPEC)

    def embedding(self, g: GraphBuilder, ids: ir.Value, w: StoredTensor) -> ir.Value:
        return g.op("GatherTiles", [ids, _tiles(g, w)], _dimensions(w), SELFSPEC)

    def attend(
        self, g: GraphBuilder, attention: Attention, packed: ir.Value, past: Sequence[ir.Value], pos: Positions
    ) -> Sequence[ir.Value]:
        norm = attention.qk_norm
        gains: list[ir.Value | None] = [None, None]
        if norm is not None and norm.per_head:
            gains = [g.weight(gain.name, gain.codes) for gain in (norm.q, norm.k)]
        elif norm is not None:  # of whole q and k: not part of the operator
            packed = g.op("Concat", attention.normed_parts(g, packed, norm), {"axis": -1})
        packed = attention.clipped(g, packed)  # a configuration with norms of heads has no clip
        tables = attention.rotary_tables(g)
        return g.op_multi(
            "GroupedAttention",
            [packed, *past, pos.seqlens_k, pos.total_sequence_length, *(tables or (None, None)), *gains],
            3,
            {
                "num_heads": attention.num_heads, "kv_num_heads": attention.num_kv_heads,
                "head_dim": attention.head_dim, "scale": float(attention.scale), "window": attention.window or 0,
                "do_rotary": len(tables) // 2, "eps": 0.0 if norm is None else float(norm.eps),
            },
            SELFSPEC,
        )  # fmt: skip

    def gated_mlp(self, g: GraphBuilder, mlp: GatedMLP, x: ir.Value) -> ir.Value:
        if mlp.gate_up_bias is not None or mlp.down_bias is not None:
            return mlp.by_parts(g, self, x)
        rows, inner = mlp.down.shape
        gate = mlp.sigmoid_gate
        gates = [] if gate is None else [g.weight(gate.name, gate.codes)]
        return g.op(
            "GatedMLPTiles",
            [x, _tiles(g, mlp.gate_up), _tiles(g, mlp.down), *gates],
            {
                "bits": mlp.gate_up.bits, "down_bits": mlp.down.bits, "activation": mlp.activation,
                "N": rows, "K": mlp.gate_up.shape[1], "I": inner,
            },
            SELFSPEC,
        )  # fmt: skip

    def sparse_mlp(
        self, g: GraphBuilder, moe: SparseMLP, x: ir.Value, experts_per_token: ir.Value
    ) -> tuple[ir.Value, ir.Value]:
        router = g.weight(moe.router.name, moe.router.codes)
        update, selected = g.op_multi(
            EXPERTS_OPERATOR,
            [x, router, experts_per_token, _tiles(g, moe.gate_up), _tiles(g, moe.down)],
            2,
            {
                "bits": moe.gate_up.bits, "down_bits": moe.down.bits, "activation": moe.activation,
                "N": moe.hidden_size, "K": moe.hidden_size, "I": moe.width, "num_experts": moe.num_experts,
                "k": moe.experts_per_token, "softmax": moe.softmax, "normalize": int(moe.normalize),
                "scale": float(moe.scale),
            },
            SELFSPEC,
        )  # fmt: skip
        return update, selected


def _tiles(g: GraphBuilder, w: StoredTensor) -> ir.Value:
    return g.weight(f"{w.name}.tiles", w.codes)


def _dimensions(w: StoredTensor) -> dict[str, int]:
    rows, cols = w.shape
    return {"bits": w.bits, "N": rows, "K": cols}
