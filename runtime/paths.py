"""Draft paths: cheaper ways through the model, each of them a set of sublayers, a number of experts and a head."""

from __future__ import annotations

from dataclasses import dataclass

from ..models.manifest import Manifest
from ..models.sublayers import first_sublayer, split_sublayer
from .stack import Plan

HOT, FULL = "hot", "full"
"""The head's short part and the whole of it; an artifact may list further heads by name."""


@dataclass(frozen=True, slots=True)
class DraftPath:
    """A way to draft with the model's own weights.

    ``name`` is the path's name in a profile. ``plan`` says which sublayers run, and ``head`` which head scores what
    comes out of them. The first ``shared`` sublayers compute what the full model computes, so verification starts from
    their hidden states and KV rows; the rest is run again.
    """

    name: str
    plan: Plan
    head: str
    shared: int

    @property
    def shared_plan(self) -> Plan:
        """The sublayers whose results verification takes over."""
        return Plan(self.plan.sublayers[: self.shared])

    @property
    def own_plan(self) -> Plan:
        """The sublayers whose results only the draft uses."""
        return Plan(self.plan.sublayers[self.shared :], self.plan.experts)


def exit_name(layer: int) -> str:
    """The name under which a profile knows the exit after ``layer`` layers."""
    return f"early-exit:layer={layer}"


def exit_path(layer: int, head: str = HOT) -> DraftPath:
    """The path through the first ``layer`` layers and ``head``."""
    name = exit_name(layer) if head == HOT else f"{exit_name(layer)} head={head}"
    return DraftPath(name, Plan.layers(0, layer), head, first_sublayer(layer))


def draft_path(name: str, plan: Plan, head: str, manifest: Manifest) -> DraftPath:
    """The path through ``manifest``'s model that runs ``plan``; works out what it shares with the full model.

    What is shared ends at an exit layer, so that verification runs whole blocks from there on, even where the artifact
    is cut at every sublayer. A number of experts that is the model's own is left out of the plan.
    """
    moe = manifest.model.moe
    if moe is not None and plan.experts == moe.experts_per_token:
        plan = Plan(plan.sublayers)
    own = first_own_sublayer(plan, () if moe is None else moe.layers)
    if own == len(plan.sublayers):
        return DraftPath(name, Plan(plan.sublayers), head, own)
    cuts = [first_sublayer(layer) for layer in (0, *manifest.exit_layers)]
    return DraftPath(name, plan, head, max(cut for cut in cuts if cut <= own))


def first_own_sublayer(plan: Plan, sparse_layers: tuple[int, ...]) -> int:
    """How many sublayers ``plan`` runs, from the first one on, as the full model runs them.

    It ends where the plan skips a sublayer, and before an MLP with experts where it runs fewer of them.
    """
    for position, sublayer in enumerate(plan.sublayers):
        layer, is_mlp = split_sublayer(sublayer)
        fewer = plan.experts is not None and is_mlp and layer in sparse_layers
        if sublayer != position or fewer:
            return position
    return len(plan.sublayers)
