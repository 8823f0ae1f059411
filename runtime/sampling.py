"""Logits → distribution → token. Pure NumPy; a draw depends only on the distribution, the seed and the position."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError

Floats = NDArray[np.float32]
Probabilities = NDArray[np.float64]


_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and nothing but the best token is left long before


class Stream(IntEnum):
    """Independent uniforms of one position."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen. Temperature 0 is greedy; ``top_p`` 1 keeps everything."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("--temperature", self.temperature), ("--top-p", self.top_p)):
            if not isinstance(value, int | float):
                raise UsageError(f"{name} {value!r}: it must be a number.")
        if not isinstance(self.seed, int):
            raise UsageError(f"--seed {self.seed!r}: it must be a whole number.")
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise UsageError(f"--temperature {self.temperature}: it must be 0 (greedy) or a positive number.")
        if not 0 < self.top_p <= 1:
            raise UsageError(f"--top-p {self.top_p}: it must be above 0 and at most 1.")
        if not 0 <= self.seed < 2**64:
            raise UsageError(f"--seed {self.seed}: it must be between 0 and 2**64 - 1.")

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW


def distribution(logits: Floats, sampling: Sampling) -> Probabilities:
    """[V] logits → [V] probabilities: temperature, then the smallest set of tokens that reaches ``top_p``."""
    shifted = logits.astype(np.float64) - logits.max()
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best are minus infinity, and exp makes them 0
        probs: Probabilities = np.exp(shifted / sampling.temperature)
    probs /= probs.sum()
    if sampling.top_p < 1:
        order = np.argsort(-probs, kind="stable")
        before = np.cumsum(probs[order]) - probs[order]
        probs[order[before >= sampling.top_p]] = 0.0
        probs /= probs.sum()
    return np.asarray(probs)


def uniform(seed: int, position: int, stream: Stream) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return float(np.random.Generator(np.random.Philox(key=seed, counter=[0, 0, stream, position])).random())


def draw(probs: Probabilities, u: float) -> int:
    """The token at quantile ``u``, in order of token ids."""
    cumulative = np.cumsum(probs)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(probs)[-1]))


def choose(logits: Floats, sampling: Sampling, position: int) -> int:
    """The token for ``position`` from its [V] logits. Ties go to the lowest id."""
    if sampling.greedy:
        return int(logits.argmax())
    return draw(distribution(logits, sampling), uniform(sampling.seed, position, Stream.TARGET))
