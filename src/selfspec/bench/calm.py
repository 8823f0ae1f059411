"""Who runs when, and which runs count: those that nothing disturbed. Knows no model: what is run and probed is given.

A machine that others use too is fast and slow by moods, for seconds to minutes each (a step of 9 or of 13 ms), and what
drafting gains is not the same in both. So a probe, the same short piece of work each time, is timed between turns, and
a turn with a slow probe beside it is run again. Choosing goes by the probes alone, never by what a turn's runs took;
what is not chosen is kept and can be looked at. Calm is relative: a run that saw slow moments only takes them for
normal ones, and bursts within a turn are not seen.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")

SLOWER = 1.1
"""A turn is disturbed if a probe beside it took this many times what an undisturbed one does."""
MOST_TURNS = 2
"""Times as many as are wanted: then the least disturbed must do."""
_FIRST_PROBES = 20
_QUICK = 0.1  # of all probes, so many are quicker than what an undisturbed one takes


@dataclass(frozen=True, slots=True)
class Turn(Generic[T]):
    """``probe``: seconds, the slower of those before and behind it. ``used``: it counts."""

    result: T
    probe: float
    used: bool = False


@dataclass(frozen=True, slots=True)
class Turns:
    """How many were ``run``, how many of them are ``used``, and how many of those are ``disturbed`` all the same."""

    run: int
    used: int
    disturbed: int


class Calm:
    """``probe``: seconds of the same piece of work, milliseconds long. ``say``: told what goes on. ``pause``: seconds
    between the first probes, which set what is normal until there are more."""

    def __init__(self, probe: Callable[[], float], say: Callable[[str], None], pause: float = 0.02) -> None:
        self._probe, self._say = probe, say
        self._probes: list[float] = []
        for _ in range(_FIRST_PROBES):
            time.sleep(pause)
            self._probes.append(probe())
        self._run = 0
        self._used: list[float] = []

    def turns(self, what: str, items: int, repeats: int, run: Callable[[int, int], T]) -> list[list[Turn[T]]]:
        """``run(item, number)`` for every item until ``repeats`` turns of it were undisturbed; ``number`` counts those,
        so that a turn that is run again is run in the same way.

        A pass over all items comes before the next one, so that a slow minute meets one turn of each.

        Returns:
            [item][turn], in time: all of them, of which ``repeats`` are used.
        """
        probes: list[list[float]] = [[] for _ in range(items)]
        results: list[list[T]] = [[] for _ in range(items)]
        self._probes.append(self._probe())
        number = 0
        while left := lacking(probes, repeats, limit(self._probes)):
            self._say(f"{what}: turn {number + 1} of {repeats}" + (f", {len(left)} to go" if number >= repeats else ""))
            for item in left:
                before = self._probes[-1]
                results[item].append(run(item, _calm(probes[item], limit(self._probes))))
                self._probes.append(self._probe())
                probes[item].append(max(before, self._probes[-1]))
            number += 1
        found = [_chosen(own, of_item, repeats) for own, of_item in zip(results, probes, strict=True)]
        self._run += sum(map(len, found))
        self._used += [turn.probe for own in found for turn in own if turn.used]
        return found

    def facts(self) -> Turns:
        """Of everything that was run."""
        slow = limit(self._probes)
        return Turns(self._run, len(self._used), sum(probe > slow for probe in self._used))


def in_turn(contenders: int, round_number: int) -> list[int]:
    """Who comes when. Every other round goes backwards, and then another one begins: each comes first as often, and
    behind each of its neighbours."""
    order = [(round_number // 2 + turn) % contenders for turn in range(contenders)]
    return order[::-1] if round_number % 2 else order


def used(turns: Sequence[Turn[T]]) -> list[T]:
    """What counts, in time."""
    return [turn.result for turn in turns if turn.used]


def limit(probes: Sequence[float]) -> float:
    """A probe that took longer was disturbed. ``probes``: all of them."""
    return SLOWER * sorted(probes)[int(_QUICK * len(probes))]


def lacking(probes: Sequence[Sequence[float]], repeats: int, slow: float) -> list[int]:
    """The items that need another turn. ``probes``: [item][turn]."""
    return [
        item for item, turns in enumerate(probes) if len(turns) < MOST_TURNS * repeats and _calm(turns, slow) < repeats
    ]


def calmest(probes: Sequence[float], repeats: int) -> list[int]:
    """Which ``repeats`` turns have the quickest probes, in time."""
    return sorted(sorted(range(len(probes)), key=probes.__getitem__)[:repeats])


def _calm(probes: Sequence[float], slow: float) -> int:
    return sum(probe <= slow for probe in probes)


def _chosen(results: Sequence[T], probes: Sequence[float], repeats: int) -> list[Turn[T]]:
    best = set(calmest(probes, repeats))
    return [
        Turn(result, probe, index in best) for index, (result, probe) in enumerate(zip(results, probes, strict=True))
    ]
