"""What a family provides: the tensors it needs, and how its graphs are assembled."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import onnx_ir as ir

from .components import Kernels
from .config import ModelConfig
from .graph import GraphBuilder
from .tensors import StoredTensor, TensorSpec

ROTARY, LOCAL_ROTARY = "rotary", "rotary.local"
"""Names of the stored rotary tables, each a .cos and a .sin: made by the exporter, not read from a checkpoint."""

Weights = Mapping[str, StoredTensor]


class Family(Protocol):
    """One architecture. Every method only assembles components."""

    @property
    def norm_offset(self) -> float:
        """What is added to a norm's weight to make its gain."""

    @property
    def mlp_input(self) -> str:
        """The layer's submodule, by Hugging Face's name, that the residual stream enters before the MLP."""

    def tensor_specs(self, config: ModelConfig) -> list[TensorSpec]:
        """Every tensor of the checkpoint, each in exactly one spec, in the order of a forward pass."""

    def embed(
        self, g: GraphBuilder, kernels: Kernels, config: ModelConfig, weights: Weights, ids: ir.Value
    ) -> ir.Value:
        """[1, T] int64 → [1, T, d]."""

    def sublayers(
        self,
        g: GraphBuilder,
        kernels: Kernels,
        config: ModelConfig,
        weights: Weights,
        hidden: ir.Value,
        start: int,
        stop: int,
    ) -> ir.Value:
        """Sublayers ``start`` to ``stop - 1`` (2i attention, 2i+1 MLP), [1, T, d] → [1, T, d]."""

    def head(
        self,
        g: GraphBuilder,
        kernels: Kernels,
        config: ModelConfig,
        weights: Weights,
        hidden: ir.Value,
        ranges: Sequence[tuple[int, int]],
    ) -> list[ir.Value]:
        """Final norm and LM head: one [1, T, stop - start] a range of token ids."""
