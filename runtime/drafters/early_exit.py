"""Early exit (LayerSkip, Elhoushi et al. 2404.16710): draft with the first layers and a short head.

No head is trained here: final norm and LM head are applied at the exit as they are. Leaving after the last layer is an
exit too: then only the head is short, and verification only has to score the rest of the vocabulary. Of a model with
experts, a draft may run fewer of them besides.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from ...errors import UsageError
from ...models.manifest import Manifest
from ..path_policy import best_path, draft_costs
from ..paths import HOT, DraftPath, draft_path, exit_name, exit_path
from ..rates import CostModel
from ..stack import Plan
from .base import Drafter
from .kind import Arm, DraftContext, DrafterKind
from .limits import check_experts, check_tokens
from .model_path import DEFAULT_DRAFT_TOKENS, PathDrafter
from .path_arm import paying_drafter, promising_arm


@dataclass(frozen=True, slots=True)
class Options:
    """``layer``: draft with this many layers, by default as many as the profile found best. ``experts``: run this many
    experts a token, by default the model's own number. ``tokens``: the longest draft of a round."""

    layer: int | None = None
    experts: int | None = None
    tokens: int | None = None


def exits(manifest: Manifest) -> tuple[DraftPath, ...]:
    """Every exit of the artifact, and the one after all layers, where only the head is short."""
    return tuple(exit_path(layer) for layer in (*manifest.exit_layers, manifest.model.num_layers))


def _path(manifest: Manifest, layer: int, experts: int | None) -> DraftPath:
    if experts is None:
        return exit_path(layer)
    plan = Plan.layers(0, layer, experts)
    return draft_path(f"{exit_name(layer)},experts={experts}", plan, HOT, manifest)


def _check(options: Options, manifest: Manifest) -> None:
    check_tokens(options.tokens)
    known = (*manifest.exit_layers, manifest.model.num_layers)
    if options.layer is not None and options.layer not in known:
        raise UsageError(
            f"`exit_layer` {options.layer}: this artifact has exits {', '.join(map(str, known))} (the last one: all "
            "layers and a short head); export again with selfspec-export --exit-layers to have others.",
            parameter="exit_layer",
        )
    if options.experts is not None:
        check_experts(options.experts, f"{KIND.name}:experts={options.experts}", manifest)


def _make(options: Options, context: DraftContext) -> Drafter:
    manifest, tokens = context.manifest, options.tokens or DEFAULT_DRAFT_TOKENS
    if options.layer is not None:
        return PathDrafter(_path(manifest, options.layer, options.experts), tokens)
    profile = context.measured()
    paths = {path.name: path for path in exits(manifest)}
    choice = best_path(profile, paths)
    if choice is None:
        raise UsageError("no exit of this artifact was measured; name one with `exit_layer`.", parameter="exit_layer")
    if options.experts is not None:
        fewer = _path(manifest, len(paths[choice.path].plan.sublayers) // 2, options.experts)
        if fewer.plan.experts is not None:  # other confidences and costs than measured: the profile's rule does not fit
            return PathDrafter(fewer, tokens)
    if options.tokens is not None:
        choice = replace(choice, num_tokens=options.tokens)
    return paying_drafter(profile, paths[choice.path], choice, draft_costs(profile, choice.path))[0]


def _arms(context: DraftContext, costs: CostModel) -> Sequence[Arm]:
    return promising_arm(KIND.name, exits(context.manifest), context.measured(), costs)


KIND = DrafterKind("early-exit", "drafts with the first layers and a short head", Options, _make, _check, exits, _arms)
