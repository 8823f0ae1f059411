"""Drafts of a model with experts: all layers and the whole head, with fewer experts for each token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...errors import UsageError
from ...models.config import ModelConfig
from ...models.manifest import Manifest
from ..paths import FULL, DraftPath, draft_path
from ..rates import CostModel
from ..stack import Plan
from .base import Drafter
from .kind import Arm, DraftContext, DrafterKind
from .limits import check_experts, check_tokens
from .model_path import DEFAULT_DRAFT_TOKENS, PathDrafter
from .path_arm import promising_arm


@dataclass(frozen=True, slots=True)
class Options:
    """``experts``: run this many experts a token, by default a quarter of the model's own number. ``tokens``: the
    longest draft of a round."""

    experts: int | None = None
    tokens: int | None = None


def experts_path(manifest: Manifest, experts: int) -> DraftPath:
    """The path through all layers and the whole head with ``experts`` experts a token."""
    plan = Plan.layers(0, manifest.model.num_layers, experts)
    return draft_path(f"fewer-experts:experts={experts}", plan, FULL, manifest)


def default_draft_experts(manifest: Manifest) -> int:
    """A quarter of what the model runs for a token, at least one."""
    return 1 if manifest.model.moe is None else max(1, manifest.model.moe.experts_per_token // 4)


def tried_experts(config: ModelConfig) -> tuple[int, ...]:
    """The numbers of experts a token that a profile measures: one, a quarter and half of the model's."""
    if config.moe is None:
        return ()
    most = config.moe.experts_per_token
    return tuple(sorted({k for k in (1, most // 4, most // 2) if 0 < k < most}))


def _paths(manifest: Manifest) -> tuple[DraftPath, ...]:
    return tuple(experts_path(manifest, k) for k in tried_experts(manifest.model))


def _check(options: Options, manifest: Manifest) -> None:
    check_tokens(options.tokens)
    check_experts(options.experts, KIND.name, manifest)
    moe = manifest.model.moe
    if options.experts is None and moe is not None and moe.experts_per_token == 1:
        raise UsageError(
            f"`draft` {KIND.name}: {manifest.name} runs one expert a token, so there is none to leave out; use another "
            "drafter.",
            parameter="draft",
        )


def _make(options: Options, context: DraftContext) -> Drafter:
    experts = options.experts or default_draft_experts(context.manifest)
    return PathDrafter(experts_path(context.manifest, experts), options.tokens or DEFAULT_DRAFT_TOKENS)


def _arms(context: DraftContext, costs: CostModel) -> Sequence[Arm]:
    paths = _paths(context.manifest)
    return promising_arm(KIND.name, paths, context.measured(), costs) if paths else ()


KIND = DrafterKind(
    "fewer-experts", "drafts with fewer experts a token (models with experts)", Options, _make, _check, _paths, _arms
)
