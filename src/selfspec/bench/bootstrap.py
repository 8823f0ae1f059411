"""How sure a speed-up is: the bootstrap interval of a ratio of times, resampled over prompts and their repeats."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RESAMPLES = 4000
LEVEL = 0.95
_NORMAL = 1.96
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t at 97.5 %, by degrees of freedom from one on."""
_CHUNK_NUMBERS = 2**20  # drawn at once, so that many prompts take no more memory than few


@dataclass(frozen=True, slots=True)
class Interval:
    """Both ends included."""

    low: float
    high: float


def ratio_interval(over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], seed: int = 0) -> Interval | None:
    """The 95 % interval of sum(medians of over) / sum(medians of under): :func:`resampled_interval`, widened.

    Resamples of n prompts vary less than n prompts do, by √((n - 1) / n), and have no longer tails than a normal
    distribution: with four prompts, 95 % would be 80 %. So each end is moved away from the ratio, by its logarithm, as
    Student's t with n - 1 degrees asks. Takes and returns what :func:`resampled_interval` does.
    """
    found = resampled_interval(over, under, seed)
    if found is None or len(over) < 2:
        return found
    ratio = sum(map(statistics.median, over)) / sum(map(statistics.median, under))
    factor = _widening(len(over))
    low, high = (ratio * (end / ratio) ** factor for end in (found.low, found.high))
    return Interval(low, high)


def _widening(prompts: int) -> float:
    degrees = prompts - 1
    t = _T[degrees - 1] if degrees <= len(_T) else _NORMAL + 2.4 / degrees
    return t / _NORMAL * math.sqrt(prompts / degrees)


def resampled_interval(
    over: Sequence[Sequence[float]], under: Sequence[Sequence[float]], seed: int = 0
) -> Interval | None:
    """The percentile bootstrap's 95 % interval of sum(medians of over) / sum(medians of under).

    Prompts are drawn with replacement, then within each drawn prompt its repeats (Efron 1979; two stages as in Davison
    and Hinkley 1997, section 3.8). Both of a pair are drawn together, so what they have in common, a long answer or a
    noisy moment, cancels. The noise of repeats counts in both stages, which makes the interval rather too wide.

    Args:
        over, under: positive numbers [prompt][repeat], where those at the same place belong together; as many repeats
            in each prompt.
        seed: the same one gives the same interval.

    Returns:
        None where there is one number of each or none: it says nothing about others.
    """
    pairs = np.asarray([over, under], dtype=np.float64)
    if pairs.size <= 2:
        return None
    rng = np.random.default_rng(seed)
    chunk = max(1, _CHUNK_NUMBERS // pairs[0].size)
    ratios = [_ratios(pairs, min(chunk, RESAMPLES - done), rng) for done in range(0, RESAMPLES, chunk)]
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(np.concatenate(ratios), [tail, 100 - tail])
    return Interval(float(low), float(high))


def _ratios(pairs: NDArray[np.float64], count: int, rng: np.random.Generator) -> NDArray[np.float64]:
    """The statistic of ``count`` resamples of ``pairs`` [2, prompts, repeats]."""
    _, prompts, repeats = pairs.shape
    prompt = rng.integers(0, prompts, size=(count, prompts))
    repeat = rng.integers(0, repeats, size=(count, prompts, repeats))
    middles = slice((repeats - 1) // 2, repeats // 2 + 1)  # a sort's middle one or two: np.median takes twice as long
    over, under = (
        np.sort(side[prompt[..., None], repeat], axis=2)[..., middles].mean(axis=2).sum(axis=1) for side in pairs
    )
    found: NDArray[np.float64] = over / under
    return found
