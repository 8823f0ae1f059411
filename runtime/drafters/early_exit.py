"""Early exit (LayerSkip, Elhoushi et al. 2404.16710): draft with the first layers and a short head.

The exit's hidden states and the shallow layers' KV rows are the target's own, so verification starts from them.
No head is trained here: final norm and LM head are applied at the exit as they are.
"""

from __future__ import annotations

import numpy as np

from ..conversation import Conversation
from ..sampling import Floats, Probabilities, Sampling, Stream, distribution, draw, uniform
from ..stack import Plan
from .base import Draft, Prefix, Round

DEFAULT_DRAFT_TOKENS = 3
CONFIDENCE = 0.4  # Hugging Face's assistant_confidence_threshold


class EarlyExit:
    """Drafts through layers 0..exit_layer-1 and the hot head."""

    def __init__(
        self,
        exit_layer: int,
        num_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
        *,
        confidence: float = CONFIDENCE,
        full_head: bool = False,
        sampling: Sampling | None = None,
    ) -> None:
        """Args:
        confidence: drafting stops after a token whose probability is below this; the token is kept.
        full_head: score the whole vocabulary, as an identity draft must.
        sampling: draw drafted tokens from the exit's distribution instead of taking the best.
        """
        self.exit_layer = exit_layer
        self._limit = num_draft_tokens
        self._confidence = confidence
        self._full_head = full_head
        self._sampling = sampling
        self._plan = Plan.layers(0, exit_layer)

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        limit = min(max_tokens, self._limit)
        stack, start = conversation.stack, conversation.kv.length
        token, tokens = conversation.tokens[-1], list[int]()
        hidden = np.empty((limit, conversation.config.hidden_size), dtype=np.float32)
        q: list[Probabilities] = []
        while len(tokens) < limit:
            row = len(tokens)
            exit_hidden = stack.run(self._plan, stack.embed(np.asarray([token])), start + row)
            hidden[row] = exit_hidden[0]
            logits = self._logits(conversation, exit_hidden)
            if self._sampling is None:
                column = int(logits.argmax())
                token = column if self._full_head else int(stack.hot_ids[column])
                confident = _probability(logits, column) >= self._confidence
            else:
                q.append(self._distribution(conversation, logits, self._sampling))
                token = draw(q[-1], uniform(self._sampling.seed, start + row + 1, Stream.DRAFT))
                confident = float(q[-1].max()) >= self._confidence
            tokens.append(token)
            if not confident:
                break
        prefix = Prefix(self.exit_layer, hidden[: len(tokens)])
        return Draft(tuple(tokens), None if self._sampling is None else tuple(q), prefix)

    def _logits(self, conversation: Conversation, hidden: Floats) -> Floats:
        stack = conversation.stack
        logits: Floats = (stack.logits if self._full_head else stack.hot_logits)(hidden)[0]
        return logits

    def _distribution(self, conversation: Conversation, logits: Floats, sampling: Sampling) -> Probabilities:
        if self._full_head:
            return distribution(logits, sampling)
        probs = np.zeros(conversation.config.vocab_size)
        probs[conversation.stack.hot_ids] = distribution(logits, sampling)
        return probs

    def observe(self, result: Round) -> None:
        """A fixed drafter learns nothing."""


def _probability(logits: Floats, column: int) -> float:
    return float(1.0 / np.exp(logits - logits[column]).sum())
