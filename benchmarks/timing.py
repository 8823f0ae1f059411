"""Alternating measurement: every arm once a round, so that a noisy moment hits all of them; medians over rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def alternate(arms: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by arm. One warm-up round is not counted; the order is reversed every other round."""
    names = list(arms)
    times: dict[str, list[float]] = {name: [] for name in names}
    for index in range(rounds + 1):
        for name in names if index % 2 else reversed(names):
            started = time.perf_counter()
            arms[name]()
            if index:
                times[name].append(time.perf_counter() - started)
    return times


def median_ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)
