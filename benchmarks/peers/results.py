"""What the turns make: a row for every arm of every peer. Arithmetic only."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfspec.bench.bootstrap import ratio_interval

from .process import Ready
from .roster import PLAIN
from .table import PeerRow
from .turns import PeerArm, seconds_per_token

OURS = "selfspec"


@dataclass(frozen=True, slots=True)
class Pace:
    """One prompt's first answer. ``ttft_seconds``: its time to the first token, not the repeats', since a runtime may
    keep the prefix of a prompt that it has seen. ``repeats``: seconds per token after it, of each. ``tokens``: after
    the first."""

    ids: tuple[int, ...]
    ttft_seconds: float
    repeats: tuple[float, ...]

    @property
    def seconds_per_token(self) -> float:
        return statistics.median(self.repeats)

    @property
    def tokens(self) -> int:
        return len(self.ids) - 1


def paces(contender: PeerArm) -> dict[int, Pace]:
    """By prompt; without prompts that were answered with one token, whose decoding takes no time."""
    found = {}
    for prompt, answers in contender.answers.items():
        repeats = tuple(pace for answer in answers if (pace := seconds_per_token(answer)) is not None)
        if repeats:
            found[prompt] = Pace(tuple(answers[0].ids), answers[0].ttft_seconds, repeats)
    return found


def rows(contenders: Sequence[PeerArm], ready: Mapping[str, Ready]) -> list[PeerRow]:
    """A row each, in order. ``ready``: peer → what it said of itself, where it was loaded."""
    measured = [paces(contender) for contender in contenders]
    ours = [(c, p) for c, p in zip(contenders, measured, strict=True) if c.peer == OURS and p]
    plain = next((p for c, p in ours if c.arm == PLAIN), {})
    best = min((p for _, p in ours), key=lambda p: _weighted(plain, p), default={})
    return [
        _row(contender, pace, plain, best, ready.get(contender.peer, Ready({}, "")))
        for contender, pace in zip(contenders, measured, strict=True)
    ]


def _row(
    contender: PeerArm, found: Mapping[int, Pace], plain: Mapping[int, Pace], best: Mapping[int, Pace], ready: Ready
) -> PeerRow:
    if not found:
        reason = contender.reason or "no answer of two tokens or more"
        return PeerRow(contender.peer, contender.arm, ready.versions, ready.note, reason=reason)
    seconds = sum(p.tokens * p.seconds_per_token for p in found.values())
    over, under = weighted_seconds(plain, found, plain)
    over_best, under_best = weighted_seconds(plain, found, best)
    return PeerRow(
        contender.peer,
        contender.arm,
        ready.versions,
        ready.note,
        prompts=len(found),
        tokens_per_second=sum(p.tokens for p in found.values()) / seconds,
        ttft_ms=1000 * statistics.median(p.ttft_seconds for p in found.values()),
        ratio=_ratio(over, under),
        interval=ratio_interval(over, under) if under else None,
        ratio_of_best=_ratio(over_best, under_best),
        same_text=sum(p.ids == plain[prompt].ids for prompt, p in found.items() if prompt in plain) if plain else None,
    )


def weighted_seconds(
    weights: Mapping[int, Pace], theirs: Mapping[int, Pace], ours: Mapping[int, Pace]
) -> tuple[list[list[float]], list[list[float]]]:
    """(theirs, ours) [prompt][repeat], of prompts that all three answered and repeats that both have: the seconds that
    each would take for as many tokens as ``weights`` has there, since texts may differ in length."""
    shared = [prompt for prompt in weights if prompt in theirs and prompt in ours]
    repeats = min((len(side[p].repeats) for p in shared for side in (theirs, ours)), default=0)

    def seconds(side: Mapping[int, Pace]) -> list[list[float]]:
        return [[weights[p].tokens * pace for pace in side[p].repeats[:repeats]] for p in shared]

    return seconds(theirs), seconds(ours)


def _ratio(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]]) -> float | None:
    return sum(map(statistics.median, over)) / sum(map(statistics.median, under)) if under else None


def _weighted(weights: Mapping[int, Pace], found: Mapping[int, Pace]) -> float:
    """Seconds per token of ``weights``'."""
    seconds, _ = weighted_seconds(weights, found, found)
    tokens = sum(weights[p].tokens for p in weights if p in found)
    return sum(map(statistics.median, seconds)) / tokens if tokens else float("inf")
