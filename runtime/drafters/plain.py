"""``none``: no drafts, one pass a token. What every other drafter is compared with."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Drafter, NoDrafter
from .kind import DraftContext, DrafterKind


@dataclass(frozen=True, slots=True)
class Options:
    """There is nothing to choose."""


def _make(options: Options, context: DraftContext) -> Drafter:
    return NoDrafter()


KIND = DrafterKind("none", "plain decoding, one token a pass", Options, _make)
