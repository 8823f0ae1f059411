"""Arms of ``auto`` whose drafts take no pass of the model: what they cost is one verified row a token."""

from __future__ import annotations

from collections.abc import Sequence

from ..conversation import Conversation
from ..rates import AcceptanceRate, Choice, CostModel, best_length
from .base import Draft, Drafter, Round

_PRIOR = 0.3


class FreeArm:
    """Any drafter that only reads. Each position of its drafts has an acceptance rate of its own.

    The drafter proposes in every round, so that ``auto`` can weigh what it would draft, and hears of those rounds that
    it drafted. Proposing must therefore leave nothing behind.
    """

    free = True

    def __init__(self, name: str, drafter: Drafter, costs: CostModel) -> None:
        self.name = name
        self._drafter = drafter
        self._costs = costs
        self._rates: list[AcceptanceRate] = []
        self._draft = Draft()

    def promise(self, conversation: Conversation, limit: int) -> Choice:
        self._draft = self._drafter.propose(conversation, limit)
        count = len(self._draft.tokens)
        self._rates += [AcceptanceRate(_PRIOR) for _ in range(count - len(self._rates))]
        return best_length([rate.value for rate in self._rates[:count]], self._costs.verify)

    def propose(self, conversation: Conversation, count: int) -> Draft:
        return Draft(self._draft.tokens[:count])

    def settle(self, result: Round) -> float:
        self._drafter.observe(result)
        return settle_free(result, self._costs, self._rates)


def settle_free(result: Round, costs: CostModel, rates: Sequence[AcceptanceRate] = ()) -> float:
    """Learn from a round whose draft took no pass; returns what it cost, in one-row passes.

    Every accepted position was a hit, and the next one, if it was drafted, a miss. Later ones were never judged.

    Args:
        rates: one for each drafted position, or none where nothing was drafted.
    """
    rows = result.num_drafted + 1
    cost = costs.verify(rows)
    costs.observe(rows, result.seconds)
    for i in range(min(result.num_accepted + 1, result.num_drafted)):
        rates[i].add(i < result.num_accepted)
    return cost
