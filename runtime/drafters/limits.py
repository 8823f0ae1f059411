"""Checks of options that several drafters have."""

from __future__ import annotations

from ...errors import UsageError
from ...models.manifest import Manifest
from .base import MAX_DRAFT_TOKENS


def check_tokens(tokens: int | None) -> None:
    """Raises: UsageError for a longest draft that no verification can take."""
    if tokens is not None and not 1 <= tokens <= MAX_DRAFT_TOKENS:
        raise UsageError(
            f"`num_draft_tokens` {tokens}: it must be between 1 and {MAX_DRAFT_TOKENS}; to draft nothing, use the "
            "drafter none.",
            parameter="num_draft_tokens",
        )


def check_experts(experts: int | None, drafter: str, manifest: Manifest) -> None:
    """Raises: UsageError for a number of experts that the model does not run for a token, or where it has none."""
    moe = manifest.model.moe
    if moe is None:
        raise UsageError(
            f"`draft` {drafter}: {manifest.name} ({manifest.model.model_type}) has no experts to leave out; use "
            "another drafter.",
            parameter="draft",
        )
    if experts is not None and not 1 <= experts <= moe.experts_per_token:
        raise UsageError(
            f"`draft_experts` {experts}: it must be between 1 and {moe.experts_per_token}, as many as this model runs "
            "for a token.",
            parameter="draft_experts",
        )
