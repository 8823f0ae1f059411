"""Drafter names as users write them, and the drafters they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from ..errors import UsageError, unknown_name
from ..models.manifest import Manifest
from .controller import AutoDrafter, paying_exit
from .drafters.base import MAX_DRAFT_TOKENS, Drafter, NoDrafter
from .drafters.early_exit import DEFAULT_DRAFT_TOKENS as EARLY_EXIT_TOKENS
from .drafters.early_exit import EarlyExit
from .drafters.prompt_lookup import DEFAULT_DRAFT_TOKENS as LOOKUP_TOKENS
from .drafters.prompt_lookup import PromptLookup
from .exit_policy import best_exit, exit_costs
from .profile import Profile

DRAFTERS = ("none", "early-exit", "prompt-lookup", "auto")


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """``--draft``, ``--exit-layer`` and ``--num-draft-tokens``; None where the user said nothing."""

    name: str = "auto"
    exit_layer: int | None = None
    num_draft_tokens: int | None = None

    def check(self, manifest: Manifest, *, custom: bool = False) -> None:
        """``custom``: the drafter is an object of the caller's, which no option reaches.

        Raises:
            UsageError: an unknown drafter, an exit that does not exist, or an option without effect.
        """
        for name, value in (("--exit-layer", self.exit_layer), ("--num-draft-tokens", self.num_draft_tokens)):
            if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
                raise UsageError(f"{name} {value!r}: it must be a whole number.")
        if custom:
            if self.exit_layer is not None or self.num_draft_tokens is not None:
                raise UsageError("exit_layer and num_draft_tokens have no effect on a drafter of your own.")
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
        if self.num_draft_tokens is not None:
            if self.name == "none":
                raise UsageError("--num-draft-tokens has no effect with --draft none.")
            if not 1 <= self.num_draft_tokens <= MAX_DRAFT_TOKENS:
                raise UsageError(
                    f"--num-draft-tokens {self.num_draft_tokens}: it must be between 1 and {MAX_DRAFT_TOKENS}; "
                    "to draft nothing, use --draft none."
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
    if options.name == "early-exit" and options.exit_layer is not None:
        return EarlyExit(options.exit_layer, count or EARLY_EXIT_TOKENS)
    profile = measured()
    if options.name == "early-exit":
        return _profiled_exit(profile, count)
    return AutoDrafter(profile, count or MAX_DRAFT_TOKENS, min_rows)


def _profiled_exit(profile: Profile, count: int | None) -> Drafter:
    choice = best_exit(profile)
    if choice is None:
        raise UsageError("no exit of this artifact was measured; name one with --exit-layer.")
    if count is not None:
        choice = replace(choice, num_tokens=count)
    return paying_exit(profile, choice, exit_costs(profile, choice.exit_layer))[0]
