"""``auto``: which drafter and how many tokens, round by round, from measured costs and observed acceptance.

A drafter like any other. It weighs the arms that the other drafters bring; not drafting is always a choice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...models.manifest import Manifest
from ..conversation import Conversation
from ..rates import Choice, CostModel
from .base import MAX_DRAFT_TOKENS, Draft, Drafter, Round
from .free_arm import settle_free
from .kind import Arm, DraftContext, DrafterKind
from .limits import check_tokens

_MARGIN = 1.05  # a draft must promise this much before it replaces a plain step
_PROBE_SHARE = 0.005  # of the time spent may go into drafts that do not promise to pay


@dataclass(frozen=True, slots=True)
class Options:
    """``tokens``: the longest draft of a round."""

    tokens: int | None = None


class AutoDrafter:
    """Picks an arm and a draft length each round."""

    def __init__(self, arms: Sequence[Arm], costs: CostModel, max_draft_tokens: int = MAX_DRAFT_TOKENS) -> None:
        """Where two arms promise the same, the earlier one drafts."""
        self._arms = tuple(arms)
        self._costs = costs
        self._limit = max_draft_tokens
        self._spent = 0.0  # one-row passes
        self._probed = 0.0
        self._chosen: Arm | None = None

    @property
    def arm(self) -> str:
        """The name of the drafter that made the last proposal."""
        return "none" if self._chosen is None else self._chosen.name

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        limit = min(max_tokens, self._limit)
        promises = [(arm, arm.promise(conversation, limit)) for arm in self._arms] if limit else []
        self._chosen, choice = self._best(promises)
        return Draft() if self._chosen is None else self._chosen.propose(conversation, choice.num_tokens)

    def _best(self, promises: Sequence[tuple[Arm, Choice]]) -> tuple[Arm | None, Choice]:
        """The arm that promises most. Where none promises to pay, a plain step or, rarely, one token of a free arm:
        arms that are never tried are never learnt about."""
        if not promises:
            return None, Choice(0, 0.0)
        arm, choice = max(promises, key=lambda promised: promised[1].rate)
        if choice.rate > _MARGIN:
            return arm, choice
        extra = self._costs.verify(2) - 1.0
        free = [promised for promised in promises if promised[0].free and promised[1].num_tokens]
        if not free or self._probed + extra > _PROBE_SHARE * self._spent:
            return None, choice
        self._probed += extra
        return max(free, key=lambda promised: promised[1].rate)[0], Choice(1, choice.rate)

    def observe(self, result: Round) -> None:
        if self._chosen is None:
            self._spent += settle_free(result, self._costs)
        else:
            self._spent += self._chosen.settle(result)


def _check(options: Options, manifest: Manifest) -> None:
    check_tokens(options.tokens)


def _make(options: Options, context: DraftContext) -> Drafter:
    costs = CostModel(context.measured(), context.min_rows)
    arms = [arm for kind in context.kinds for arm in kind.arms(context, costs)]
    return AutoDrafter(arms, costs, options.tokens or MAX_DRAFT_TOKENS)


KIND = DrafterKind("auto", "chooses each round what pays here, and how far", Options, _make, _check)
