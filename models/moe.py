"""Sparse experts: which tensors they are in a checkpoint, and the sublayer that they make.

All experts of a layer are stored as two matrices: rows of expert 0, then of expert 1, and so on. How the rows of one
expert's gate and up are ordered, and whether its width is padded, is the layout's choice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import onnx_ir as ir

from .components import INT32, GatedMLP, Kernels
from .config import MoEConfig
from .graph import GraphBuilder
from .interface import selected_name
from .tensors import Role, StoredTensor, TensorSpec

if TYPE_CHECKING:
    from .family import Weights

ROUTER, _GATE_UP, _DOWN = ".mlp.gate.weight", "mlp.experts.gate_up_proj", "mlp.experts.down_proj"
_SHARED, _SHARED_GATE = "mlp.shared_expert", "mlp.shared_expert_gate.weight"


@dataclass(frozen=True, slots=True)
class ExpertNames:
    """Where a family keeps its experts, by Hugging Face's names within a layer, older ones first.

    ``single``: gate, up and down of expert number {}; ``fused``: pairs of one tensor [E, 2 · width, d] with the rows of
    gate before those of up, and one [E, d, width].
    """

    router: tuple[str, ...]
    single: tuple[str, str, str] | None
    fused: tuple[tuple[str, str], ...]


_TRANSFORMERS_5 = (_GATE_UP, _DOWN)
PROJECTIONS = ExpertNames(
    router=("mlp.gate.weight",),
    single=("mlp.experts.{}.gate_proj.weight", "mlp.experts.{}.up_proj.weight", "mlp.experts.{}.down_proj.weight"),
    fused=(_TRANSFORMERS_5,),
)
_SPARSE = "block_sparse_moe"
MIXTRAL = ExpertNames(
    router=(f"{_SPARSE}.gate.weight", "mlp.gate.weight"),
    single=(
        f"{_SPARSE}.experts.{{}}.w1.weight",
        f"{_SPARSE}.experts.{{}}.w3.weight",
        f"{_SPARSE}.experts.{{}}.w2.weight",
    ),
    fused=(_TRANSFORMERS_5,),
)
GRANITE = ExpertNames(
    router=(f"{_SPARSE}.router.layer.weight", f"{_SPARSE}.router.weight"),
    single=None,
    fused=(
        (f"{_SPARSE}.input_linear.weight", f"{_SPARSE}.output_linear.weight"),
        (f"{_SPARSE}.experts.gate_up_proj", f"{_SPARSE}.experts.down_proj"),
    ),
)


def expert_specs(layer: str, names: ExpertNames, moe: MoEConfig, d: int) -> Iterator[TensorSpec]:
    """Router and experts of the layer called ``layer``, in every form that a checkpoint may have them in. The tensors
    of a shared expert are a gated MLP's."""
    count, width = moe.num_experts, moe.expert_size
    router = [TensorSpec(f"{layer}{ROUTER}", (f"{layer}.{name}",), ((count, d),), Role.ROUTER) for name in names.router]
    yield _any_of(router)
    gate_ups, downs = list[TensorSpec](), list[TensorSpec]()
    if names.single is not None:
        gate, up, down = (f"{layer}.{name}" for name in names.single)
        pairs = tuple(name.format(e) for e in range(count) for name in (gate, up))
        singles = tuple(down.format(e) for e in range(count))
        gate_ups.append(_experts(layer, _GATE_UP, pairs, ((width, d),) * (2 * count), count))
        downs.append(_experts(layer, _DOWN, singles, ((d, width),) * count, count))
    for gate_up, down in names.fused:
        gate_ups.append(_experts(layer, _GATE_UP, (f"{layer}.{gate_up}",), ((count, 2 * width, d),), count))
        downs.append(_experts(layer, _DOWN, (f"{layer}.{down}",), ((count, d, width),), count))
    yield _any_of(gate_ups)
    yield _any_of(downs)
    if moe.shared_gate:
        yield TensorSpec(f"{layer}.{_SHARED_GATE}", (f"{layer}.{_SHARED_GATE}",), ((1, d),), Role.ROUTER)


def shared_expert(layer: str) -> str:
    """The submodule of a layer that holds its shared expert."""
    return f"{layer}.{_SHARED}"


def _experts(
    layer: str, name: str, parts: tuple[str, ...], shapes: tuple[tuple[int, ...], ...], count: int
) -> TensorSpec:
    role = Role.EXPERTS_IN if name == _GATE_UP else Role.EXPERTS_OUT
    return TensorSpec(f"{layer}.{name}", parts, shapes, role, experts=count)


def _any_of(forms: list[TensorSpec]) -> TensorSpec:
    return replace(forms[0], alternatives=tuple(forms[1:]))


@dataclass(frozen=True, slots=True)
class SparseMLP:
    """``Σ weight_e · expert_e(x)`` over the best experts of each row, and a shared expert.

    ``router`` [E, d]; ``gate_up`` [E · 2 · width, d] and ``down`` [E · d, width] as stored, where ``width`` may be
    padded with zeros. For ``softmax``, ``normalize`` and ``scale`` see :class:`~selfspec.models.config.MoEConfig`.
    """

    layer: int
    router: StoredTensor
    gate_up: StoredTensor
    down: StoredTensor
    activation: str
    num_experts: int
    experts_per_token: int
    softmax: str
    normalize: bool
    scale: float
    shared: GatedMLP | None = None

    @property
    def width(self) -> int:
        """Of one expert, as stored."""
        return self.down.shape[1]

    @property
    def hidden_size(self) -> int:
        return self.gate_up.shape[1]

    @property
    def weights_sum_to_one(self) -> bool:
        """Before ``scale``. A softmax over all experts, normalised over some, is the softmax over those."""
        return self.softmax == "selected" or self.normalize

    def apply(self, g: GraphBuilder, kernels: Kernels, x: ir.Value, experts_per_token: ir.Value) -> ir.Value:
        """[1, T, d] → [1, T, d]; the graph also tells which experts ran."""
        update, selected = kernels.sparse_mlp(g, self, x, experts_per_token)
        g.output(selected_name(self.layer), selected, [1, "rows", self.experts_per_token], INT32)
        return update if self.shared is None else g.op("Add", [update, kernels.gated_mlp(g, self.shared, x)])


def sparse_mlp(moe: MoEConfig, weights: Weights, layer: int, activation: str) -> SparseMLP:
    """The experts of layer number ``layer``."""
    name = f"model.layers.{layer}"
    shared = None
    if moe.shared_size:
        module = shared_expert(name)
        shared = GatedMLP(
            weights[f"{module}.gate_up_proj.weight"],
            weights[f"{module}.down_proj.weight"],
            activation,
            sigmoid_gate=weights.get(f"{name}.{_SHARED_GATE}"),
        )
    return SparseMLP(
        layer,
        weights[f"{name}{ROUTER}"],
        weights[f"{name}.{_GATE_UP}"],
        weights[f"{name}.{_DOWN}"],
        activation,
        moe.num_experts,
        moe.experts_per_token,
        moe.softmax,
        moe.normalize,
        moe.scale,
        shared,
    )
