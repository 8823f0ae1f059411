"""Drafter names as users write them, and the drafters they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import UsageError, unknown_name
from ..models.config import ModelConfig
from ..models.manifest import Manifest
from .controller import AutoDrafter, paying_exit
from .drafters.base import MAX_DRAFT_TOKENS, Drafter, NoDrafter
from .drafters.early_exit import DEFAULT_DRAFT_TOKENS as EARLY_EXIT_TOKENS
from .drafters.early_exit import EarlyExit
from .drafters.prompt_lookup import DEFAULT_DRAFT_TOKENS as LOOKUP_TOKENS
from .drafters.prompt_lookup import PromptLookup
from .exit_policy import best_exit
from .profile import Profile

DRAFTERS = ("none", "early-exit", "fewer-experts", "prompt-lookup", "auto")
_WITH_EXPERTS = ("early-exit", "fewer-experts")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """``--draft``, ``--exit-layer``, ``--num-draft-tokens``, ``--draft-experts``; None where the user said nothing."""

    name: str = "auto"
    exit_layer: int | None = None
    num_draft_tokens: int | None = None
    draft_experts: int | None = None

    def check(self, manifest: Manifest, *, custom: bool = False) -> None:
        """``custom``: the drafter is an object of the caller's, which no option reaches.

        Raises:
            UsageError: an unknown drafter, an exit that does not exist, or an option without effect.
        """
        numbers = {
            "--exit-layer": self.exit_layer,
            "--num-draft-tokens": self.num_draft_tokens,
            "--draft-experts": self.draft_experts,
        }
        for name, value in numbers.items():
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"{name} {value!r}: it must be a whole number.")
        if custom:
            if any(value is not None for value in numbers.values()):
                raise UsageError(
                    "exit_layer, num_draft_tokens and draft_experts have no effect on a drafter of your own."
                )
            return
        if self.name not in DRAFTERS:
            raise UsageError(unknown_name("drafter", self.name, DRAFTERS))
        if self.exit_layer is not None:
            known = ", ".join(map(str, (*manifest.exit_layers, manifest.model.num_layers)))
            if self.name != "early-exit":
                raise UsageError(f"--exit-layer has no effect with --draft {self.name}; it goes with early-exit.")
            if self.exit_layer not in (*manifest.exit_layers, manifest.model.num_layers):
                raise UsageError(
                    f"--exit-layer {self.exit_layer}: this artifact has exits {known} (the last one: all layers and a "
                    "short head); export again with other --exit-layers to have others."
                )
        self._check_experts(manifest)
        if self.num_draft_tokens is not None:
            if self.name == "none":
                raise UsageError("--num-draft-tokens has no effect with --draft none.")
            if not 1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
                raise UsageError(
                    f"--num-draft-tokens {self.num_draft_tokens}: it must be between 1 and {MAX_DRAFT_TOKENS}; "
                    "to draft nothing, use --draft none."
                )

    def _check_experts(self, manifest: Manifest) -> None:
        if self.draft_experts is not None and self.name not in _WITH_EXPERTS:
            raise UsageError(
                f"--draft-experts has no effect with --draft {self.name}; it goes with {' and '.join(_WITH_EXPERTS)}."
            )
        if self.name != "fewer-experts" and self.draft_experts is None:
            return
        moe = manifest.model.moe
        if moe is None:
            option = "--draft fewer-experts" if self.draft_experts is None else "--draft-experts"
            raise UsageError(f"{option}: {manifest.name} ({manifest.model.model_type}) has no experts; leave it out.")
        if self.draft_experts is not None and not 1 <= self.draft_experts <= moe.experts_per_token:
            raise UsageError(
                f"--draft-experts {self.draft_experts}: it must be between 1 and {moe.experts_per_token}, as many as "
                "this model runs for a token."
            )
        if self.name == "fewer-experts" and self.draft_experts is None and moe.experts_per_token == 1:
            raise UsageError(
                f"--draft fewer-experts: {manifest.name} runs one expert a token, so there is none to leave out; use "
                "another --draft."
            )


def make_drafter(
    options: DraftOptions,
    manifest: Manifest,
    measured: Callable[[], Profile],
    min_rows: int = 1,
) -> Drafter:
    """The drafter that ``options``, already checked, ask for.

    Args:
        measured: the machine's profile, measured if need be.
        min_rows: what every pass is padded to.
    """
    count = options.num_draft_tokens
    if options.name == "none":
        return NoDrafter()
    if options.name == "prompt-lookup":
        return PromptLookup(count or LOOKUP_TOKENS)
    if options.name == "fewer-experts":
        last, fewer = manifest.model.num_layers, options.draft_experts or default_draft_experts(manifest)
        experts = effective_experts(manifest.model, last, fewer)
        return EarlyExit(last, count or EARLY_EXIT_TOKENS, full_head=True, experts=experts)
    if options.name == "early-exit" and options.exit_layer is not None:
        experts = effective_experts(manifest.model, options.exit_layer, options.draft_experts)
        return EarlyExit(options.exit_layer, count or EARLY_EXIT_TOKENS, experts=experts)
    profile = measured()
    if options.name == "early-exit":
        return _profiled_exit(profile, manifest.model, count, options.draft_experts)
    return AutoDrafter(profile, count or MAX_DRAFT_TOKENS, min_rows)


def effective_experts(config: ModelConfig, exit_layer: int, experts: int | None) -> int | None:
    """``experts`` where they change what the layers before ``exit_layer`` compute, else None: then the draft's rows are
    the target's own, and verification starts from them."""
    moe = config.moe
    if moe is None or experts == moe.experts_per_token or min(moe.layers) >= exit_layer:
        return None
    return experts


def default_draft_experts(manifest: Manifest) -> int:
    """A quarter of what the model runs for a token, at least one."""
    return 1 if manifest.model.moe is None else max(1, manifest.model.moe.experts_per_token // 4)


def _profiled_exit(profile: Profile, config: ModelConfig, count: int | None, experts: int | None) -> Drafter:
    """Fewer experts than measured make other confidences and costs, to which the profile's rule does not apply."""
    choice = best_exit(profile)
    if choice is None:
        raise UsageError("no exit of this artifact was measured; name one with --exit-layer.")
    experts = effective_experts(config, choice.exit_layer, experts)
    if experts is not None:
        return EarlyExit(choice.exit_layer, count or EARLY_EXIT_TOKENS, experts=experts)
    if count is not None:
        choice = replace(choice, num_tokens=count)
    return paying_exit(profile, choice, choice.costs(profile))[0]
