"""What tokens that have occurred do to a row of logits. A part that is passed to whoever chooses tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .sampling import Floats, Ids, Sampling


class Penalties(Protocol):
    """The tokens before one position, as far as they matter to its logits."""

    def apply(self, logits: Floats) -> Floats:
        """[V] logits of that position → [V]. The argument is left as it is."""

    def after(self, tokens: Sequence[int]) -> Penalties:
        """The same with ``tokens`` said since."""


class NoPenalties:
    """Logits as they are."""

    def apply(self, logits: Floats) -> Floats:
        return logits

    def after(self, tokens: Sequence[int]) -> NoPenalties:
        return self


NO_PENALTIES = NoPenalties()


class SeenTokens:
    """Hugging Face's repetition penalty (CTRL, Keskar et al. 1909.05858), over prompt and output: positive logits are
    divided by it, negative ones multiplied. Then OpenAI's presence penalty, subtracted from what stands in the output.

    Only logits of such tokens are touched, and an id that occurs twice is written twice with the same value.
    """

    def __init__(self, sampling: Sampling, tokens: Ids, num_prompt: int) -> None:
        """Args: tokens: [n] ids, the first ``num_prompt`` of them the prompt's."""
        self._sampling = sampling
        self._tokens = tokens
        self._num_prompt = num_prompt

    def apply(self, logits: Floats) -> Floats:
        logits = logits.copy()
        if self._sampling.repetition_penalty != 1:
            penalty, seen = self._sampling.repetition_penalty, logits[self._tokens]
            logits[self._tokens] = np.where(seen > 0, seen / penalty, seen * penalty)
        if self._sampling.presence_penalty:
            output = self._tokens[self._num_prompt :]
            logits[output] = logits[output] - self._sampling.presence_penalty
        return logits

    def after(self, tokens: Sequence[int]) -> SeenTokens:
        grown = np.concatenate([self._tokens, np.asarray(tokens, dtype=np.int64)])
        return SeenTokens(self._sampling, grown, self._num_prompt)


def penalties_for(sampling: Sampling, prompt: Sequence[int]) -> Penalties:
    """What ``sampling`` asks for, right behind a prompt."""
    if sampling.repetition_penalty == 1 and not sampling.presence_penalty:
        return NO_PENALTIES
    return SeenTokens(sampling, np.asarray(prompt, dtype=np.int64), len(prompt))
