"""What a drafter brings to the registry: its name, options, the paths it wants measured, and its arms of ``auto``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...models.manifest import Manifest
from ..conversation import Conversation
from ..costs import Profile
from ..paths import DraftPath
from ..rates import Choice, CostModel
from .base import Draft, Drafter, Round


class Arm(Protocol):
    """A way to draft as ``auto`` weighs it against others: it promises, drafts when it is chosen, and learns."""

    name: str
    """The drafter's name, as users type it."""

    free: bool
    """Whether drafting takes no pass of the model. A free arm is tried now and then even if it promises nothing."""

    def promise(self, conversation: Conversation, limit: int) -> Choice:
        """The best draft of at most ``limit`` tokens that may follow ``conversation.tokens``."""

    def propose(self, conversation: Conversation, count: int) -> Draft:
        """Draft at most ``count`` tokens. Called after :meth:`promise`, with no token in between."""

    def settle(self, result: Round) -> float:
        """Learn from a round that this arm drafted; returns what the round cost, in one-row passes."""


@dataclass(frozen=True, slots=True)
class DraftContext:
    """What a drafter may ask about when it is made.

    ``measured`` returns this machine's profile and measures it if need be. ``min_rows`` is the number of rows that
    every pass is padded to. ``kinds`` are all drafters there are.
    """

    manifest: Manifest
    measured: Callable[[], Profile]
    min_rows: int = 1
    kinds: tuple[DrafterKind, ...] = ()


def _accept(options: Any, manifest: Manifest) -> None:
    """Every value that the options can hold works with every model."""


def _no_paths(manifest: Manifest) -> tuple[DraftPath, ...]:
    return ()


def _no_arms(context: DraftContext, costs: CostModel) -> Sequence[Arm]:
    return ()


@dataclass(frozen=True, slots=True)
class DrafterKind:
    """One entry of the registry. A drafter's module ends with one.

    Args:
        name: what users type, for instance in ``--draft``.
        summary: what it does, in a few words, for help texts.
        options: a frozen dataclass. Each field is an option that users may set, has a default, and is annotated as
            ``int | None``, ``float | None``, ``str | None`` or ``tuple[int, ...] | None``.
        make: a drafter from options that have been checked.
        check: raises UsageError where the options do not fit the model.
        candidates: the draft paths that a profile of this model measures.
        arms: how ``auto`` may use it; no arm leaves it out.
    """

    name: str
    summary: str
    options: type[Any]
    make: Callable[[Any, DraftContext], Drafter]
    check: Callable[[Any, Manifest], None] = _accept
    candidates: Callable[[Manifest], tuple[DraftPath, ...]] = _no_paths
    arms: Callable[[DraftContext, CostModel], Sequence[Arm]] = _no_arms
