"""Alternating measurement: every arm once a round, so that a noisy moment hits all of them; medians over rounds."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

from selfspec.bench.timing import take_turns


def alternate(arms: Mapping[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of every call, by arm; they take turns. One warm-up round is not counted."""

    def timed(arm: Callable[[], object]) -> float:
        started = time.perf_counter()
        arm()
        return time.perf_counter() - started

    take_turns(list(arms.values()), 1, timed)
    return dict(zip(arms, take_turns(list(arms.values()), rounds, timed), strict=True))


def median_ms(seconds: list[float]) -> float:
    return 1000 * statistics.median(seconds)
