"""Log-probabilities of tokens, from the model's own logits: before penalties and temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import UsageError
from .sampling import Floats, largest

F = TypeVar("F", np.float32, np.float64)

MAX_LOGPROBS = 20


class TopLogprob(NamedTuple):
    """A token that might have come, and the natural logarithm of its probability."""

    id: int
    logprob: float


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Of the token that came, and of the likeliest ones, best first; the lower id first where two are equal."""

    logprob: float
    top: tuple[TopLogprob, ...]


def check_logprobs(count: int | None) -> None:
    """Raises: UsageError when ``count`` is neither None (off) nor 0 to ``MAX_LOGPROBS``."""
    if count is None:
        return
    if not isinstance(count, int) or isinstance(count, bool) or not 0 <= count <= MAX_LOGPROBS:
        raise UsageError(f"`logprobs` {count!r}: it must be a whole number between 0 and {MAX_LOGPROBS}.", "logprobs")


def token_logprobs(logits: Floats, token: int, count: int) -> TokenLogprobs:
    """Of ``token`` and of the ``count`` likeliest ones, by the log-softmax of [V] logits."""
    found = log_softmax(logits.astype(np.float64))
    best = largest(found, count) if count else ()
    return TokenLogprobs(float(found[token]), tuple(TopLogprob(int(i), float(found[i])) for i in best))


def log_softmax(logits: NDArray[F]) -> NDArray[F]:
    """Over the last axis, in the precision of ``logits``."""
    shifted: NDArray[F] = logits - logits.max(axis=-1, keepdims=True)
    shifted -= np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return shifted
