"""How sure a speed-up is: the bootstrap interval of a ratio of sums, resampled over prompts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 4000
LEVEL = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends included."""

    low: float
    high: float


def ratio_interval(over: Sequence[float], under: Sequence[float], seed: int = 0) -> Interval | None:
    """The percentile bootstrap's 95 % interval of sum(over) / sum(under), where the two belong together in pairs.

    Pairs are drawn with replacement (Efron 1979), so what is common to both of a pair, a long answer say, cancels.

    Args:
        over, under: one positive number a prompt; ``seed``: the same one gives the same interval.

    Returns:
        None for fewer than two pairs: one prompt says nothing about others.
    """
    pairs = np.asarray([over, under], dtype=np.float64)
    count = pairs.shape[1]
    if count < 2:
        return None
    drawn = np.random.default_rng(seed).integers(0, count, size=(RESAMPLES, count))
    sums = pairs[:, drawn].sum(axis=2)
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(sums[0] / sums[1], [tail, 100 - tail])
    return Interval(float(low), float(high))
