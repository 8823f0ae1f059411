"""Log-probabilities of tokens, from the model's own logits: before penalties and temperature."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import UsageError
from .sampling import Floats, largest

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
    shifted = logits.astype(np.float64) - logits.max()
    shifted -= np.log(np.exp(shifted).sum())
    best = largest(shifted, count) if count else ()
    return TokenLogprobs(float(shifted[token]), tuple(TopLogprob(int(i), float(shifted[i])) for i in best))
