"""Runs in turns, of which those count that nothing disturbed. Knows no model: what is run and probed is given.

A machine that others use too is fast and slow by moods, for seconds each (a step of 9 or of 13 ms), and what drafting
gains is not the same in both. So a probe, the same short piece of work each time, is timed between turns; a turn with
a slow probe beside it is run once more, and what counts are those with the quickest ones. The probe knows nothing of
what a turn's runs took, so that choosing by it favours none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")

SLOWER = 1.1
"""A turn is disturbed if a probe beside it took this many times what an undisturbed one does."""
MOST_TURNS = 3
"""Times as many as are wanted: then the least disturbed must do."""
_FIRST_PROBES = 20
_QUICK = 0.1  # of all probes, so many are quicker than what an undisturbed one takes


@dataclass(frozen=True, slots=True)
class Turns:
    """How many were ``run``, how many of them are ``used``, and how many of those are ``disturbed`` all the same."""

    run: int
    used: int
    disturbed: int


class Calm:
    """``probe``: seconds of the same piece of work, milliseconds long. ``say``: told what goes on."""

    def __init__(self, probe: Callable[[], float], say: Callable[[str], None]) -> None:
        self._probe, self._say = probe, say
        self._probes = [probe() for _ in range(_FIRST_PROBES)]
        self._run = 0
        self._used: list[float] = []

    def turns(self, what: str, items: int, repeats: int, run: Callable[[int, int], T]) -> list[list[T]]:
        """``run(item, number of the turn)`` for every item until ``repeats`` turns of it were undisturbed.

        A pass over all items comes before the next one, so that a slow minute meets one turn of each.

        Returns:
            [item][repeat], in time.
        """
        found: list[list[tuple[float, T]]] = [[] for _ in range(items)]
        number = 0
        while left := self._lacking([[probe for probe, _ in turns] for turns in found], repeats):
            self._say(f"{what}: turn {number + 1} of {repeats}" + (f", {len(left)} to go" if number >= repeats else ""))
            for item in left:
                before = self._probes[-1]
                result = run(item, number)
                self._probes.append(self._probe())
                found[item].append((max(before, self._probes[-1]), result))
                self._run += 1
            number += 1
        chosen = [[turns[index] for index in calmest([p for p, _ in turns], repeats)] for turns in found]
        self._used += [probe for turns in chosen for probe, _ in turns]
        return [[result for _, result in turns] for turns in chosen]

    def _lacking(self, probes: Sequence[Sequence[float]], repeats: int) -> list[int]:
        return lacking(probes, repeats, limit(self._probes))

    def facts(self) -> Turns:
        """Of everything that was run."""
        slow = limit(self._probes)
        return Turns(self._run, len(self._used), sum(probe > slow for probe in self._used))


def limit(probes: Sequence[float]) -> float:
    """A probe that took longer was disturbed. ``probes``: all of them."""
    return SLOWER * sorted(probes)[int(_QUICK * len(probes))]


def lacking(probes: Sequence[Sequence[float]], repeats: int, slow: float) -> list[int]:
    """The items that need another turn. ``probes``: [item][turn]."""
    return [
        item
        for item, turns in enumerate(probes)
        if len(turns) < MOST_TURNS * repeats and sum(probe <= slow for probe in turns) < repeats
    ]


def calmest(probes: Sequence[float], repeats: int) -> list[int]:
    """Which ``repeats`` turns have the quickest probes, in time."""
    return sorted(sorted(range(len(probes)), key=probes.__getitem__)[:repeats])
