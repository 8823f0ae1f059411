"""The operators of the package selfspec-kernels, over matrices in tiles: every row alike, weights used in place."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .components import Attention, GatedMLP, Positions
from .graph import SELFSPEC, GraphBuilder
from .ort_kernels import OrtKernels
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
        return OrtKernels().attend(g, attention, packed, past, pos)

    def gated_mlp(self, g: GraphBuilder, mlp: GatedMLP, x: ir.Value) -> ir.Value:
        if mlp.gate_up_bias is not None or mlp.down_bias is not None:
            return mlp.by_parts(g, self, x)
        rows, inner = mlp.down.shape
        return g.op(
            "GatedMLPTiles",
            [x, _tiles(g, mlp.gate_up), _tiles(g, mlp.down)],
            {
                "bits": mlp.gate_up.bits, "down_bits": mlp.down.bits, "activation": mlp.activation,
                "N": rows, "K": mlp.gate_up.shape[1], "I": inner,
            },
            SELFSPEC,
        )  # fmt: skip


def _tiles(g: GraphBuilder, w: StoredTensor) -> ir.Value:
    return g.weight(f"{w.name}.tiles", w.codes)


def _dimensions(w: StoredTensor) -> dict[str, int]:
    rows, cols = w.shape
    return {"bits": w.bits, "N": rows, "K": cols}
