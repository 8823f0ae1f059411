"""Logits → distribution → token. Pure NumPy; a draw depends only on the distribution, the seed and the position."""

from __future__ import annotations

import numbers
import secrets
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ..errors import ArtifactError, UsageError
from .arrays import Floats as Floats
from .arrays import Ids as Ids

Probabilities = NDArray[np.float64]


_SEED_BITS = 32  # of a seed that is drawn: short enough to be typed
_GREEDY_BELOW = 1e-5  # dividing logits by less overflows, and nothing but the best token is left long before


class Stream(IntEnum):
    """Independent uniforms of one position."""

    TARGET = 0
    DRAFT = 1
    ACCEPT = 2
    RESIDUAL = 3


class SamplingOptions(TypedDict, total=False):
    """How tokens are chosen, as users give it; see :class:`Sampling` for the defaults."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    seed: int | None


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the next token is chosen, under Hugging Face's and vLLM's names and in their order: penalties, temperature,
    top-k, top-p, min-p.

    ``temperature`` 0 is greedy: only penalties then have an effect. ``top_p`` 1, ``top_k`` 0 and ``min_p`` 0, which is
    relative to the most likely token, keep every token. For the two penalties see penalties.py.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0

    def __post_init__(self) -> None:
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty"):
            self._demand(name, _is_number(getattr(self, name)), "a number")
        for name in ("seed", "top_k"):
            self._demand(name, _is_whole(getattr(self, name)), "a whole number")
        self._demand("temperature", 0 <= self.temperature < 1e30, "0 (greedy) or positive")
        self._demand("top_p", 0 < self.top_p <= 1, "above 0 and at most 1")
        self._demand("seed", 0 <= self.seed < 2**64, "between 0 and 2**64 - 1")
        self._demand("top_k", self.top_k >= 0, "0 (off) or positive")
        self._demand("min_p", 0 <= self.min_p <= 1, "between 0 (off) and 1")
        penalty = self.repetition_penalty
        self._demand("repetition_penalty", 0.01 <= penalty <= 100, "between 0.01 and 100; 1 is off")
        self._demand("presence_penalty", -2 <= self.presence_penalty <= 2, "between -2 and 2; 0 is off")

    def _demand(self, name: str, condition: bool, what: str) -> None:
        if not condition:
            raise UsageError(f"`{name}` {getattr(self, name)!r}: it must be {what}.", name)

    @classmethod
    def of(cls, options: SamplingOptions) -> Sampling:
        """Where sampling is asked for without a seed, one is drawn: another one each time.

        Raises:
            UsageError: an option cannot be.
        """
        given = {name: value for name, value in options.items() if value is not None or name != "seed"}
        found = cls(**given)  # type: ignore[arg-type]  # checked there
        return found if found.greedy or "seed" in given else replace(found, seed=secrets.randbits(_SEED_BITS))

    @property
    def greedy(self) -> bool:
        return self.temperature < _GREEDY_BELOW

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Options that were set although greedy decoding does not look at them."""
        narrowing = {"top_k": self.top_k > 0, "top_p": self.top_p < 1, "min_p": self.min_p > 0}
        return tuple(name for name, chosen in narrowing.items() if chosen and self.greedy)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def distribution(logits: Floats, sampling: Sampling) -> Probabilities:
    """[V] logits, penalties already applied → [V] probabilities."""
    ids, kept = _candidates(logits, sampling)
    probs = np.zeros(len(logits))
    probs[ids] = kept
    return probs


def _candidates(logits: Floats, sampling: Sampling) -> tuple[Ids | slice, Probabilities]:
    """The ids that may be drawn, ascending, and their probabilities; a slice where all may."""
    ids: Ids | slice = slice(None)
    best = _finite(logits.max())
    if 0 < sampling.top_k < len(logits):
        ids = _at_least_rank(logits, sampling.top_k)
        logits = logits[ids]
    shifted = logits.astype(np.float64) - best
    with np.errstate(over="ignore"):  # at a tiny temperature all but the best are minus infinity, and exp makes them 0
        probs: Probabilities = np.exp(shifted / sampling.temperature)
    probs /= probs.sum()
    for keep in (_nucleus(probs, sampling.top_p), _likely(probs, sampling.min_p)):
        if keep is not None:
            dropped = np.ones(len(probs), dtype=bool)
            dropped[keep] = False
            probs[dropped] = 0.0
            probs /= probs.sum()
    return ids, probs


def _finite(best: np.float32) -> np.float32:
    """Raises: ArtifactError for logits of which the largest is no number: one that is none makes it none."""
    if not np.isfinite(best):
        raise ArtifactError(
            "the model computed logits that are not finite; its weights are damaged: try selfspec verify-artifact."
        )
    return best


def _at_least_rank(values: Floats | Probabilities, rank: int) -> Ids:
    """Indices of the ``rank`` largest values, ascending; all that equal the last of them are among them."""
    return np.flatnonzero(values >= np.partition(values, len(values) - rank)[len(values) - rank])


def largest(values: Floats | Probabilities, count: int) -> Ids:
    """Indices of the ``count`` largest values, best first; of equal ones the lower comes first."""
    found = _at_least_rank(values, min(count, len(values)))
    return found[np.argsort(-values[found], kind="stable")][:count]


def _nucleus(probs: Probabilities, top_p: float) -> Ids | None:
    """Indices of the smallest set that reaches ``top_p``, the likeliest first; None where that is everything.

    A few of the largest values are sorted, and more only while they do not reach it: sorting a whole vocabulary would
    take longer than anything else here.
    """
    if top_p >= 1:
        return None
    count, order = 128, np.empty(0, dtype=np.int64)
    reached = 0.0
    while reached < top_p and len(order) < len(probs):
        order = largest(probs, count)
        cumulative = np.cumsum(probs[order])
        reached, count = float(cumulative[-1]), 8 * count
    return order[cumulative - probs[order] < top_p]


def _likely(probs: Probabilities, min_p: float) -> Ids | None:
    return None if min_p <= 0 else np.flatnonzero(probs >= min_p * probs.max())


def uniform(seed: int, position: int, stream: Stream) -> float:
    """A number in [0, 1) that depends on nothing but its arguments."""
    return float(np.random.Generator(np.random.Philox(key=int(seed), counter=[0, 0, stream, position])).random())


def draw(probs: Probabilities, u: float) -> int:
    """The token at quantile ``u``, in order of token ids."""
    cumulative = np.cumsum(probs)
    index = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
    return min(index, int(np.flatnonzero(probs)[-1]))


def choose(logits: Floats, sampling: Sampling, position: int) -> int:
    """The token for ``position`` from its [V] logits, penalties already applied. Ties go to the lowest id."""
    if sampling.greedy:
        best = logits.argmax()
        _finite(logits[best])
        return int(best)
    ids, probs = _candidates(logits, sampling)
    index = draw(probs, uniform(sampling.seed, position, Stream.TARGET))
    return index if isinstance(ids, slice) else int(ids[index])
