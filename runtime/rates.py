"""What a conversation shows of drafts: acceptance probabilities, tokens per cost, and what passes really take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from .costs import Profile, interpolate

_COST_RATE = 0.05  # how fast measured round times replace the profile's
_PRIOR_COST, _ROUND_MEMORY = 20.0, 0.97  # one-row passes that a prior is worth; of past rounds, at each new one
_PRIOR_TRIALS = 12.0
_MEMORY = 0.98  # of past trials, at each new one


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
    """A draft length and what it promises, in tokens per one-row pass."""

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
