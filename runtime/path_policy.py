"""When drafting with the model's own weights pays: how far to draft in a round, and along which path. Arithmetic on
measured numbers.

All costs are in units of a one-row pass of the full model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from .costs import MeasuredPath, Profile

MAX_PATH_TOKENS = 7
_EDGES = (0.2, 0.4, 0.6, 0.8, 0.9, 0.97)  # of the confidence's buckets; raw confidences are too high
_PRIOR_TRIALS = 2.0  # with which a bucket begins, at its own middle
_MEMORY = 0.995  # of past trials, at each new one
_SETTLING = 3  # replays until the rate and the rule that depends on it agree


class Calibration:
    """How often a drafted token is right, by the confidence it was drafted with: measured, then learnt on."""

    def __init__(self, samples: Iterable[tuple[float, bool]] = ()) -> None:
        edges = (0.0, *_EDGES, 1.0)
        self._trials = [_PRIOR_TRIALS] * (len(_EDGES) + 1)
        self._hits = [_PRIOR_TRIALS * (a + b) / 2 for a, b in pairwise(edges)]
        for confidence, accepted in samples:
            self._count(confidence, accepted)

    def rate(self, confidence: float) -> float:
        bucket = bisect_right(_EDGES, confidence)
        return self._hits[bucket] / self._trials[bucket]

    def outlook(self) -> list[tuple[float, float]]:
        """(share, acceptance rate) of every bucket: what the next token may be like."""
        total = sum(self._trials)
        return [(n / total, hits / n) for n, hits in zip(self._trials, self._hits, strict=True)]

    def add(self, confidence: float, accepted: bool) -> None:
        self._trials = [_MEMORY * n for n in self._trials]
        self._hits = [_MEMORY * n for n in self._hits]
        self._count(confidence, accepted)

    def _count(self, confidence: float, accepted: bool) -> None:
        bucket = bisect_right(_EDGES, confidence)
        self._trials[bucket] += 1
        self._hits[bucket] += accepted


@dataclass(frozen=True, slots=True)
class DraftCosts:
    """What a round is made of: ``step`` is one draft step, ``shared`` the part of it that verification takes over, and
    ``verify(m)`` is V(m)."""

    step: float
    shared: float
    verify: Callable[[int], float]

    def round(self, rows: int, kept: int) -> float:
        """``rows`` draft steps of which ``kept`` tokens are verified. Where all are kept, the last one has not run
        through the shared part yet; a dropped token's step has done that for the row before it."""
        if not rows:
            return self.verify(1)
        rest = (1 - self.shared) * self.verify(kept + 1)
        return rows * self.step + (self.shared if kept == rows else 0.0) + rest

    def widening(self, kept: int) -> float:
        """The cost of one more row in the rest of the model after ``kept`` drafted ones."""
        return (1 - self.shared) * (self.verify(kept + 2) - self.verify(kept + 1))


class PayingRule:
    """Drafts while that promises more tokens than the same time is worth at ``rate`` tokens a unit.

    A threshold on the probability that all tokens so far are right, as in SpecDec++ (2405.19715) and DSpark, with
    confidences calibrated by what was accepted.
    """

    def __init__(self, costs: DraftCosts, calibration: Calibration, rate: float) -> None:
        self._costs = costs
        self._calibration = calibration
        self.rate = rate

    def keep(self, confidences: Sequence[float]) -> bool:
        kept = len(confidences) - 1
        return self._survival(confidences) >= self.rate * (self._costs.shared + self._costs.widening(kept))

    def go_on(self, confidences: Sequence[float]) -> bool:
        """Whether one more draft step is expected to pay. If its token is dropped, what verification does not share
        is lost; if it is kept, we pay a step and one more verified row."""
        kept, survival = len(confidences), self._survival(confidences)
        wasted = -self.rate * (self._costs.step - self._costs.shared)
        price = self.rate * (self._costs.step + self._costs.widening(kept))
        return sum(share * max(wasted, survival * p - price) for share, p in self._calibration.outlook()) > 0

    def learn(self, confidence: float, accepted: bool) -> None:
        self._calibration.add(confidence, accepted)

    def _survival(self, confidences: Sequence[float]) -> float:
        survival = 1.0
        for confidence in confidences:
            survival *= self._calibration.rate(confidence)
        return survival


@dataclass(frozen=True, slots=True)
class PathChoice:
    """A path, the longest draft along it, and what that promises: tokens per one-row pass."""

    path: str
    num_tokens: int
    rate: float


def draft_costs(profile: Profile, path: str, verify: Callable[[int], float] | None = None) -> DraftCosts:
    """Costs of drafting along ``path``; ``verify`` replaces the profile's V(m) by what is known better."""
    found, unit = profile.paths[path], profile.step_seconds[1]
    return DraftCosts(found.seconds / unit, min(1.0, found.shared_seconds / unit), verify or profile.verify_cost)


def best_path(profile: Profile, names: Iterable[str]) -> PathChoice | None:
    """Of the paths ``names``, the one and the draft length that the profile expects most of; None where it has none."""
    steps = tuple(profile.step_seconds.items())
    tried = [_best_length(name, profile.paths[name], steps) for name in names if name in profile.paths]
    return max(tried, key=lambda choice: choice.rate, default=None)


@lru_cache(maxsize=256)
def _best_length(name: str, found: MeasuredPath, steps: tuple[tuple[int, float], ...]) -> PathChoice:
    """Every generation asks, and the replays of a profile take a tenth of a second: they are done once."""
    costs = draft_costs(Profile(dict(steps), {name: found}, None), name)
    tried = [PathChoice(name, n, replay(found, costs, n)) for n in range(1, MAX_PATH_TOKENS + 1)]
    return max(tried, key=lambda choice: choice.rate)


def replay(found: MeasuredPath, costs: DraftCosts, limit: int) -> float:
    """Tokens per unit that :class:`PayingRule` would have made of the measured text, drafting at most ``limit``.

    The text is the model's own; after a wrong token the path's further confidences are taken from the right text.
    """
    rate, calibration = 1.0, Calibration(zip(found.confidences, found.hits, strict=True))
    for _ in range(_SETTLING):
        rule = PayingRule(costs, calibration, max(1.0, rate))
        position, tokens, cost = 0, 0, 0.0
        while position < len(found.hits):
            confidences = found.confidences[position : position + limit]
            rows, kept = _drafted(rule, confidences)
            hits = found.hits[position : position + kept]
            accepted = hits.index(False) if False in hits else kept
            cost += costs.round(rows, kept)
            tokens += accepted + 1
            position += accepted + 1
        rate = tokens / cost if cost else 0.0
    return rate


def _drafted(rule: PayingRule, confidences: Sequence[float]) -> tuple[int, int]:
    """(draft steps, tokens kept) of one round."""
    for kept in range(len(confidences)):
        if not rule.go_on(confidences[:kept]):
            return kept, kept
        if not rule.keep(confidences[: kept + 1]):
            return kept + 1, kept
    return len(confidences), len(confidences)
