"""What passes of an artifact cost on one machine: a profile's numbers, and nothing about how they were measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from .stack import Passes


@dataclass(frozen=True, slots=True)
class MeasuredPath:
    """One way to draft: what a step costs, and what it would have drafted on text of the model's own.

    ``seconds`` is one draft step with its head, ``shared_seconds`` the part of it that verification need not repeat.
    ``confidences[i]`` is the probability that the path gave to its best i-th token, and ``hits[i]`` whether the full
    model chose that token too.
    """

    seconds: float
    shared_seconds: float
    confidences: tuple[float, ...]
    hits: tuple[bool, ...]

    @property
    def agreement(self) -> float:
        """The share of tokens on which the path and the full model agree."""
        return sum(self.hits) / len(self.hits) if self.hits else 0.0

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> MeasuredPath:
        """Raises: KeyError, TypeError or ValueError for anything that is no measurement."""
        seconds, shared = float(data["seconds"]), float(data["shared_seconds"])
        confidences = tuple(map(float, data["confidences"]))
        hits = tuple(data["hits"])
        if len(confidences) != len(hits) or not all(isinstance(hit, bool) for hit in hits):
            raise ValueError("a path's confidences and hits do not belong together")
        if not 0 <= shared <= seconds < math.inf or seconds == 0:
            raise ValueError("a path's step took no time, or less than a part of it")
        return cls(seconds, shared, confidences, hits)


@dataclass(frozen=True, slots=True)
class Profile:
    """One artifact on one machine.

    ``step_seconds[m]`` is one pass of the full model over m rows. ``paths`` maps the name of a draft path to what was
    measured of it. ``exact_passes`` says how rows must be put into passes for a row's result not to depend on the rows
    beside it; it is None where no way was found.
    """

    step_seconds: dict[int, float]
    paths: dict[str, MeasuredPath]
    exact_passes: Passes | None

    def verify_cost(self, rows: int) -> float:
        """V(m): a pass over ``rows`` rows in units of a one-row pass; between measured counts, linear."""
        return interpolate(self.step_seconds, rows) / self.step_seconds[1]

    def draft_cost(self, path: str) -> float:
        """c: a draft step along ``path`` in units of a one-row pass."""
        return self.paths[path].seconds / self.step_seconds[1]

    def covers(self, paths: Iterable[str]) -> bool:
        """Whether every one of ``paths`` was measured."""
        return set(paths) <= self.paths.keys()

    def to_dict(self) -> dict[str, Any]:
        """What JSON can hold, for :meth:`from_dict`."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Profile:
        """Raises: KeyError, TypeError, ValueError or UsageError for anything that is no profile."""
        steps = {int(k): float(v) for k, v in data["step_seconds"].items()}
        if 1 not in steps or min(steps) < 1 or not all(0 < seconds < math.inf for seconds in steps.values()):
            raise ValueError("no one-row pass was measured, or a pass took no time")
        paths = {str(name): MeasuredPath.from_dict(found) for name, found in data["paths"].items()}
        passes = data["exact_passes"]
        if passes is not None:
            widths = passes["widths"]
            passes = Passes(passes["min_rows"], passes["boundary"], None if widths is None else tuple(widths))
        return cls(steps, paths, passes)


def interpolate(seconds: Mapping[int, float], rows: int) -> float:
    """Seconds of a pass over ``rows`` rows: as measured, or linear between measured row counts."""
    if rows in seconds:  # asked every round, some dozen times
        return seconds[rows]
    counts = sorted(seconds)
    return float(np.interp(rows, counts, [seconds[m] for m in counts]))


def falling_step(steps: Mapping[int, float], tolerance: float = 0.1) -> tuple[int, int] | None:
    """The first two row counts of which the larger one was measured to be cheaper by more than ``tolerance``.

    More rows never cost less, so such a pair shows that the machine was busy while the smaller one was timed.
    """
    counts = sorted(steps)
    for i, fewer in enumerate(counts):
        for more in counts[i + 1 :]:
            if steps[more] < (1 - tolerance) * steps[fewer]:
                return fewer, more
    return None
