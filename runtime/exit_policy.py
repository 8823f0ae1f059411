"""When an early exit pays: how far to draft in a round, and which exit to draft from. Arithmetic on measured numbers.

All costs are in units of a one-row pass of the full model.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from .profile import ExitProfile, Profile

MAX_EXIT_TOKENS = 7
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
class ExitCosts:
    """``step``: one draft step; ``prefix``: the same without its head; ``verify(m)``: V(m)."""

    step: float
    prefix: float
    verify: Callable[[int], float]

    def round(self, rows: int, kept: int) -> float:
        """``rows`` draft steps of which ``kept`` tokens are verified. Where all are kept, the last one has not run
        through the prefix yet; a dropped token's step has done that for the row before it."""
        if not rows:
            return self.verify(1)
        rest = (1 - self.prefix) * self.verify(kept + 1)
        return rows * self.step + (self.prefix if kept == rows else 0.0) + rest

    def widening(self, kept: int) -> float:
        """One more row in the rest of the model, behind ``kept`` drafted ones."""
        return (1 - self.prefix) * (self.verify(kept + 2) - self.verify(kept + 1))


class PayingRule:
    """Drafts while that promises more tokens than the same time is worth at ``rate`` tokens a unit.

    A threshold on the probability that all tokens so far are right, as in SpecDec++ (2405.19715) and DSpark, with
    confidences calibrated by what was accepted.
    """

    def __init__(self, costs: ExitCosts, calibration: Calibration, rate: float) -> None:
        self._costs = costs
        self._calibration = calibration
        self.rate = rate

    def keep(self, confidences: Sequence[float]) -> bool:
        kept = len(confidences) - 1
        return self._survival(confidences) >= self.rate * (self._costs.prefix + self._costs.widening(kept))

    def go_on(self, confidences: Sequence[float]) -> bool:
        """Another step and, if its token is dropped, its head wasted; or kept, for a step and a row of the rest."""
        kept, survival = len(confidences), self._survival(confidences)
        wasted = -self.rate * (self._costs.step - self._costs.prefix)
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
class ExitChoice:
    """An exit, the longest draft from it, and what that promises: tokens per one-row pass. With ``experts``, the exit
    is behind all layers, of which each runs so many a token, and the whole head."""

    exit_layer: int
    num_tokens: int
    rate: float
    experts: int | None = None

    def found(self, profile: Profile) -> ExitProfile:
        """What was measured of it."""
        return profile.exits[self.exit_layer] if self.experts is None else profile.fewer[self.experts]

    def costs(self, profile: Profile, verify: Callable[[int], float] | None = None) -> ExitCosts:
        """See :func:`exit_costs` and :func:`fewer_costs`."""
        if self.experts is None:
            return exit_costs(profile, self.exit_layer, verify)
        return fewer_costs(profile, self.experts, verify)


def exit_costs(profile: Profile, exit_layer: int, verify: Callable[[int], float] | None = None) -> ExitCosts:
    """Costs of an exit; ``verify`` replaces the profile's V(m) by what is known better."""
    step, head = profile.draft_cost(exit_layer), profile.hot_head_seconds / profile.step_seconds[1]
    return ExitCosts(step, min(1.0, max(0.0, step - head)), verify or profile.verify_cost)


def fewer_costs(profile: Profile, experts: int, verify: Callable[[int], float] | None = None) -> ExitCosts:
    """Costs of a step with so many experts a token. Nothing of it is of use to verification."""
    step = profile.fewer[experts].seconds / profile.step_seconds[1]
    return ExitCosts(step, 0.0, verify or profile.verify_cost)


def best_exit(profile: Profile) -> ExitChoice | None:
    """The exit and draft length that the profile expects most of; None where no exit was measured.

    Every generation asks, and the replays take a tenth of a second: they are done once a profile.
    """
    return _best(_Measured.of(profile), False)


def best_fewer(profile: Profile) -> ExitChoice | None:
    """The same of drafts with fewer experts; None where none was measured."""
    return _best(_Measured.of(profile), True)


class _Measured(NamedTuple):
    """A profile's measurements, hashable."""

    steps: tuple[tuple[int, float], ...]
    hot_head: float
    exits: tuple[tuple[int, ExitProfile], ...]
    fewer: tuple[tuple[int, ExitProfile], ...]

    @classmethod
    def of(cls, profile: Profile) -> _Measured:
        return cls(
            tuple(profile.step_seconds.items()),
            profile.hot_head_seconds,
            tuple(profile.exits.items()),
            tuple(profile.fewer.items()),
        )


@lru_cache(maxsize=16)
def _best(measured: _Measured, with_fewer: bool) -> ExitChoice | None:
    profile = Profile(dict(measured.steps), measured.hot_head, dict(measured.exits), None, dict(measured.fewer))
    if with_fewer:
        layers = max(profile.exits, default=0)
        choices = [ExitChoice(layers, 0, 0.0, k) for k in profile.fewer]
    else:
        choices = [ExitChoice(k, 0, 0.0) for k in profile.exits]
    tried = [
        replace(choice, num_tokens=tokens, rate=replay(choice.found(profile), choice.costs(profile), tokens))
        for choice in choices
        for tokens in range(1, MAX_EXIT_TOKENS + 1)
    ]
    return max(tried, key=lambda choice: choice.rate, default=None)


def replay(found: ExitProfile, costs: ExitCosts, limit: int) -> float:
    """Tokens per unit that :class:`PayingRule` would have made of the measured text, drafting at most ``limit``.

    The text is the model's own; behind a wrong token the exit's further confidences are taken from the right text.
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
