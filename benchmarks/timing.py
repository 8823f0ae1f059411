"""Alternating measurement: every arm once a round, so that a noisy moment hits all of them; medians over rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from selfspec.bench.calm import in_turn


def alternate(arms: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by arm; they take turns. One warm-up round is not counted."""
    names = list(arms)
    found: dict[str, list[float]] = {name: [] for name in names}
    for number in range(-1, rounds):
        for name in (names[index] for index in in_turn(len(names), max(number, 0))):
            started = time.perf_counter()
            arms[name]()
            if number >= 0:
                found[name].append(time.perf_counter() - started)
    return found


def median_ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)
