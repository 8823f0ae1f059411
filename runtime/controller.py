"""The controller: which drafter and how many tokens, round by round, from measured costs and observed acceptance.

A drafter like any other. At most three arms: no draft, prompt lookup, and the exit, or the pass with fewer experts,
that the profile expects to pay.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .conversation import Conversation
from .drafters.base import MAX_DRAFT_TOKENS, Draft, Round
from .drafters.early_exit import EarlyExit
from .drafters.prompt_lookup import PromptLookup
from .exit_policy import Calibration, ExitChoice, ExitCosts, PayingRule, best_exit, best_fewer
from .profile import Profile, interpolate

_MARGIN = 1.05  # a draft must promise this much before it replaces a plain step
_EXIT_MARGIN = 1.1  # and an exit this much in the profile, whose replay knows the text that it was calibrated on
_PROBE_SHARE = 0.005  # of the time spent may go into drafts that do not promise to pay
_COST_RATE = 0.05  # how fast measured round times replace the profile's
_PRIOR_COST, _ROUND_MEMORY = 20.0, 0.97  # one-row passes that a prior is worth; of past rounds, at each new one
_PRIOR_TRIALS = 12.0
_MEMORY = 0.98  # of past trials, at each new one

# First guesses of how often a copied token is right, by match length; what is observed in the conversation replaces
# them. Below the mean of 327 recorded answers of SmolLM2-135M (.27, .57, .68, .79, .92) where matches are short: many
# conversations repeat nothing, and would pay for the mean until they have shown it.
_MATCH_BUCKETS = (1, 2, 4, 8)
_MATCH_PRIORS = (0.12, 0.35, 0.6, 0.75, 0.9)


class AcceptanceRate:
    """A running acceptance probability with a prior worth ``_PRIOR_TRIALS`` trials."""

    def __init__(self, prior: float) -> None:
        self._trials = _PRIOR_TRIALS
        self._hits = prior * _PRIOR_TRIALS

    def add(self, accepted: bool) -> None:
        self._trials = _MEMORY * self._trials + 1
        self._hits = _MEMORY * self._hits + accepted

    @property
    def value(self) -> float:
        return self._hits / self._trials


@dataclass(frozen=True, slots=True)
class Choice:
    """An arm's best draft length and what it promises, in tokens per one-row pass."""

    num_tokens: int
    rate: float


class ArmRate:
    """Tokens per one-row pass that an arm has made lately, with a prior worth ``_PRIOR_COST`` of them."""

    def __init__(self, prior: float) -> None:
        self._tokens, self._cost = prior * _PRIOR_COST, _PRIOR_COST

    def add(self, tokens: int, cost: float) -> None:
        self._tokens = _ROUND_MEMORY * self._tokens + tokens
        self._cost = _ROUND_MEMORY * self._cost + cost

    @property
    def value(self) -> float:
        return self._tokens / self._cost


class CostModel:
    """Round costs in units of a one-row pass: the profile's, corrected by what rounds really take."""

    def __init__(self, profile: Profile, min_rows: int = 1) -> None:
        """``min_rows``: what every pass is padded to."""
        self._profile = profile
        self._min_rows = min_rows
        self._seconds = dict(profile.step_seconds)

    def verify(self, rows: int) -> float:
        """V(m), as measured lately."""
        return self._at(rows) / self._at(1)

    def passes(self, seconds: float, expected: float) -> float:
        """``seconds`` in one-row passes, at most twice what was expected: a round may have been preempted."""
        return min(seconds / self._at(1), 2 * expected)

    def observe(self, rows: int, seconds: float) -> None:
        """A verification over ``rows`` rows with a draft that cost nothing took this long."""
        rows = max(rows, self._min_rows)
        if rows in self._seconds:
            bounded = min(seconds, 2 * self._seconds[rows])  # one preempted round must not change the policy
            self._seconds[rows] += _COST_RATE * (bounded - self._seconds[rows])

    def _at(self, rows: int) -> float:
        return interpolate(self._seconds, max(rows, self._min_rows))


def best_length(rates: Sequence[float], verify: Callable[[int], float]) -> Choice:
    """The draft length whose round commits most tokens for its cost.

    A round commits 1 + Σ Π of the acceptance ``rates``, each given that all before it were accepted, and costs
    ``verify`` of one row more than it drafts. Where even accepting all that is left would not pay, the search ends.
    """
    best, best_rate, expected, survival = 0, 0.0, 1.0, 1.0
    for n, rate in enumerate(rates, start=1):
        survival *= rate
        expected += survival
        cost = verify(n + 1)
        if expected > best_rate * cost:
            best, best_rate = n, expected / cost
        elif expected + survival * (len(rates) - n) <= best_rate * cost:
            break
    return Choice(best, best_rate)


class AutoDrafter:
    """Picks an arm and a length each round; not drafting is a choice."""

    def __init__(self, profile: Profile, max_draft_tokens: int = MAX_DRAFT_TOKENS, min_rows: int = 1) -> None:
        self._limit = max_draft_tokens
        self._costs = CostModel(profile, min_rows)
        self._lookup = PromptLookup(max_draft_tokens)
        self._match_rates = [AcceptanceRate(p) for p in _MATCH_PRIORS]
        self._exit: ExitArm | None = None
        candidates = [choice for choice in (best_exit(profile), best_fewer(profile)) if choice is not None]
        promising = max(candidates, key=lambda choice: choice.rate, default=None)
        if promising is not None and promising.rate > _EXIT_MARGIN:
            self._exit = ExitArm(profile, promising, self._costs.verify)
        self._spent = 0.0  # units of a one-row pass
        self._probed = 0.0
        self.arm = "none"
        """Which one made the last proposal: 'none', 'lookup' or 'exit', which a pass with fewer experts is too."""
        self._match = 0

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        limit = min(max_tokens, self._limit)
        self._match = self._lookup.match_length(conversation)
        lookup = self._lookup_choice(limit)
        exit_rate = self._exit.rate if self._exit is not None and limit else 0.0
        if max(lookup.rate, exit_rate) <= _MARGIN:
            return self._probe(lookup)
        if lookup.rate >= exit_rate or self._exit is None:
            self.arm = "lookup"
            return self._lookup.copy(lookup.num_tokens)
        self.arm = "exit"
        return self._exit.propose(conversation, limit)

    def _lookup_choice(self, limit: int) -> Choice:
        if not self._match:
            return Choice(0, 0.0)
        by_bucket = [rate.value for rate in self._match_rates]
        return best_length([by_bucket[_bucket(self._match + i)] for i in range(limit)], self._costs.verify)

    def _probe(self, lookup: Choice) -> Draft:
        """Plain step, or, rarely, one looked-up token: arms that are never tried are never learnt about."""
        extra = self._costs.verify(2) - 1.0
        if lookup.num_tokens and self._probed + extra <= _PROBE_SHARE * self._spent:
            self._probed += extra
            self.arm = "lookup"
            return self._lookup.copy(1)
        self.arm = "none"
        return Draft()

    def observe(self, result: Round) -> None:
        if self.arm == "exit" and self._exit is not None:
            self._spent += self._exit.settle(result, self._costs)
            return
        self._spent += self._costs.verify(result.num_drafted + 1)
        self._costs.observe(result.num_drafted + 1, result.seconds)
        if self.arm == "lookup":
            self._learn([self._match_rates[_bucket(self._match + i)] for i in range(result.num_drafted)], result)

    @staticmethod
    def _learn(rates: Sequence[AcceptanceRate], result: Round) -> None:
        """Every accepted position was a hit, the next one, if drafted, a miss; later ones were never judged."""
        for i in range(min(result.num_accepted + 1, result.num_drafted)):
            rates[i].add(i < result.num_accepted)


class ExitArm:
    """Early exit by a :class:`PayingRule`, and what it has brought so far."""

    def __init__(self, profile: Profile, choice: ExitChoice, verify: Callable[[int], float]) -> None:
        self._costs = choice.costs(profile, verify)
        self._drafter, self._rule = paying_exit(profile, choice, self._costs)
        self._rate = ArmRate(choice.rate)

    @property
    def rate(self) -> float:
        """Tokens per one-row pass."""
        return self._rate.value

    def propose(self, conversation: Conversation, limit: int) -> Draft:
        return self._drafter.propose(conversation, limit)

    def settle(self, result: Round, costs: CostModel) -> float:
        """Learn from a round of its own; returns what it cost."""
        cost = costs.passes(result.seconds, self._costs.round(self._drafter.steps, result.num_drafted))
        self._drafter.observe(result)
        self._rate.add(len(result.tokens), cost)
        self._rule.rate = max(1.0, self.rate)
        return cost


def paying_exit(profile: Profile, choice: ExitChoice, costs: ExitCosts) -> tuple[EarlyExit, PayingRule]:
    """The drafter that ``choice`` describes, and the rule that it drafts by."""
    found = choice.found(profile)
    calibration = Calibration(zip(found.confidences, found.hits, strict=True))
    rule = PayingRule(costs, calibration, max(1.0, choice.rate))
    fewer = choice.experts is not None
    return EarlyExit(choice.exit_layer, choice.num_tokens, rule=rule, full_head=fewer, experts=choice.experts), rule


def _bucket(match_length: int) -> int:
    return bisect_left(_MATCH_BUCKETS, match_length)
