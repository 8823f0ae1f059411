"""Every outcome of a decode with its exact probability: its uniforms are not drawn, they are divided.

A decode only changes its course where a uniform crosses a threshold: the quantile at which one token follows another,
or a probability of acceptance. The thresholds cut the unit cube of all its uniforms into boxes. A decode runs once in
each box, and the volume of the box is the probability of what it did. A uniform that is used twice is cut twice.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import pytest

from selfspec.runtime.sampling import Probabilities, Stream, draw, uniform

Key = tuple[int, Stream]
Outcome = TypeVar("Outcome")


class Boxes:
    """Visits the boxes, depth first: each run repeats the choices of the last one up to the first that is left."""

    def __init__(self) -> None:
        self._course: list[tuple[int, int]] = []  # of each cut, the part taken and how many there are
        self._step = 0
        self._sides: dict[Key, tuple[float, float]] = {}

    def visit(self, run: Callable[[], Outcome]) -> Iterator[tuple[Outcome, float]]:
        """(what a run gave, the volume of its box), once a box."""
        while True:
            self._step, self._sides = 0, {}
            yield run(), math.prod(high - low for low, high in self._sides.values())
            while self._course and self._course[-1][0] + 1 == self._course[-1][1]:
                self._course.pop()
            if not self._course:
                return
            part, parts = self._course[-1]
            self._course[-1] = part + 1, parts

    def cut(self, key: Key, thresholds: Iterable[float]) -> float:
        """Divides a uniform at the thresholds. Returns the middle of the part that this run is in."""
        low, high = self._sides.get(key, (0.0, 1.0))
        edges = [low, *sorted({t for t in thresholds if low < t < high}), high]
        if self._step == len(self._course):
            self._course.append((0, len(edges) - 1))
        part = self._course[self._step][0]
        self._step += 1
        self._sides[key] = edges[part], edges[part + 1]
        return (edges[part] + edges[part + 1]) / 2


@dataclass(frozen=True, slots=True)
class Uniform:
    """Stands in for a number in [0, 1) times a factor; comparing it divides it."""

    boxes: Boxes
    key: Key
    factor: float = 1.0

    def __mul__(self, factor: float) -> Uniform:
        return replace(self, factor=self.factor * float(factor))

    def __lt__(self, bound: float) -> bool:
        return self.boxes.cut(self.key, (float(bound) / self.factor,)) * self.factor < bound

    def __ge__(self, bound: float) -> bool:
        return not self < bound


def _draw(probs: Probabilities, u: Uniform | float) -> int:
    if isinstance(u, Uniform):
        cumulative = np.cumsum(probs)
        u = u.boxes.cut(u.key, (cumulative / cumulative[-1]).tolist())
    return draw(probs, u)


def outcomes(
    run: Callable[[], Outcome], known: dict[int, float], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[Outcome, float]]:
    """(what ``run`` gives, its probability), a box each. ``known``: the uniforms that are given, by their position."""
    boxes = Boxes()

    def _uniform(seed: int, position: int, stream: Stream) -> Uniform | float:
        return known[position] if position in known else Uniform(boxes, (position, stream))

    with monkeypatch.context() as patch:
        for name, module in list(sys.modules.items()):
            if name == __name__:
                continue
            for function, instead in ((uniform, _uniform), (draw, _draw)):
                if vars(module).get(function.__name__) is function:
                    patch.setattr(module, function.__name__, instead)
        return list(boxes.visit(run))
