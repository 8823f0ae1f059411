"""A draft path for ``auto``, and the drafter that stops where another token does not pay."""

from __future__ import annotations

from collections.abc import Sequence

from ..conversation import Conversation
from ..costs import Profile
from ..path_policy import Calibration, DraftCosts, PathChoice, PayingRule, best_path, draft_costs
from ..paths import DraftPath
from ..rates import ArmRate, Choice, CostModel
from .base import Draft, Round
from .kind import Arm
from .model_path import PathDrafter

_MARGIN = 1.1  # the profile's replay is optimistic, since it is scored on its own calibration text


class PathArm:
    """Drafts along one path by a :class:`PayingRule`, and keeps count of what that has brought."""

    free = False

    def __init__(self, name: str, path: DraftPath, choice: PathChoice, profile: Profile, costs: CostModel) -> None:
        self.name = name
        self.num_tokens = choice.num_tokens
        self._round_costs = costs
        self._costs = draft_costs(profile, path.name, costs.verify)
        self._drafter, self._rule = paying_drafter(profile, path, choice, self._costs)
        self._rate = ArmRate(choice.rate)

    def promise(self, conversation: Conversation, limit: int) -> Choice:
        count = min(limit, self.num_tokens)
        return Choice(count, self._rate.value if count else 0.0)

    def propose(self, conversation: Conversation, count: int) -> Draft:
        return self._drafter.propose(conversation, count)

    def settle(self, result: Round) -> float:
        expected = self._costs.round(self._drafter.steps, result.num_drafted)
        cost = self._round_costs.passes(result.seconds, expected)
        self._drafter.observe(result)
        self._rate.add(len(result.tokens), cost)
        self._rule.rate = max(1.0, self._rate.value)
        return cost


def paying_drafter(
    profile: Profile, path: DraftPath, choice: PathChoice, costs: DraftCosts
) -> tuple[PathDrafter, PayingRule]:
    """The drafter that ``choice`` describes, and the rule that it drafts by."""
    found = profile.paths[path.name]
    calibration = Calibration(zip(found.confidences, found.hits, strict=True))
    rule = PayingRule(costs, calibration, max(1.0, choice.rate))
    return PathDrafter(path, choice.num_tokens, rule=rule), rule


def promising_arm(name: str, paths: Sequence[DraftPath], profile: Profile, costs: CostModel) -> Sequence[Arm]:
    """An arm for the path that the profile expects most of, if it expects that to pay at all."""
    choice = best_path(profile, [path.name for path in paths])
    if choice is None or choice.rate <= _MARGIN:
        return ()
    path = next(path for path in paths if path.name == choice.path)
    return (PathArm(name, path, choice, profile, costs),)
