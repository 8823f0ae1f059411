"""Drafting along a path: fewer of the model's own sublayers, fewer experts, a shorter head.

Early exit (LayerSkip, Elhoushi et al. 2404.16710) is the path through the first layers. Where a path begins as the full
model does, the hidden states and KV rows of that part are the target's own, and verification starts from them. What a
path computes otherwise leaves KV rows that verification overwrites.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..conversation import Conversation
from ..paths import DraftPath
from ..sampling import Floats, Probabilities, Sampling, Stream, distribution, draw, uniform
from .base import Draft, Prefix, Round

DEFAULT_DRAFT_TOKENS = 3
CONFIDENCE = 0.4  # Hugging Face's assistant_confidence_threshold


class StopRule(Protocol):
    """How far to draft. A confidence is the probability that the path gives to its own best token."""

    def keep(self, confidences: Sequence[float]) -> bool:
        """Whether the last drafted token is verified. Which token was *drawn* must not decide this: that is biased."""

    def go_on(self, confidences: Sequence[float]) -> bool:
        """Whether to draft another token after these, all kept."""

    def learn(self, confidence: float, accepted: bool) -> None:
        """What became of a token drafted with this confidence."""


@dataclass(frozen=True, slots=True)
class Threshold:
    """Drafting stops after a token below ``confidence``; that token is kept."""

    confidence: float = CONFIDENCE

    def keep(self, confidences: Sequence[float]) -> bool:
        return True

    def go_on(self, confidences: Sequence[float]) -> bool:
        return not confidences or confidences[-1] >= self.confidence

    def learn(self, confidence: float, accepted: bool) -> None:
        """A fixed rule learns nothing."""


class PathDrafter:
    """Drafts along ``path``, one token a step."""

    def __init__(
        self,
        path: DraftPath,
        num_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
        *,
        rule: StopRule | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        """Args:
        rule: how far to draft, at most ``num_draft_tokens``; by default a :class:`Threshold`.
        sampling: draw drafted tokens from the path's distribution instead of taking the best.
        """
        self.path = path
        self._limit = num_draft_tokens
        self._rule: StopRule = Threshold() if rule is None else rule
        self._sampling = sampling
        self._shared, self._own = path.shared_plan, path.own_plan
        self._drafted: list[tuple[int, float]] = []  # tokens and confidences, a dropped one included

    @property
    def steps(self) -> int:
        """Draft steps of the last proposal, that of a dropped token included."""
        return len(self._drafted)

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        limit = min(max_tokens, self._limit)
        start = conversation.kv.length
        shared = np.empty((limit, conversation.config.hidden_size), dtype=np.float32)
        token, rows = conversation.tokens[-1], 0
        tokens, confidences, q = list[int](), list[float](), list[Probabilities]()
        self._drafted = []
        while rows < limit and self._rule.go_on(confidences):
            shared[rows], hidden = self._step(conversation, token, start + rows)
            rows += 1
            token, confidence, proposal = self._choose(conversation, hidden, start + rows)
            confidences.append(confidence)
            self._drafted.append((token, confidence))
            if not self._rule.keep(confidences):
                break
            tokens.append(token)
            if proposal is not None:
                q.append(proposal)
        prefix = Prefix(self.path.shared, shared[:rows]) if rows and self.path.shared else None
        return Draft(tuple(tokens), None if self._sampling is None else tuple(q), prefix)

    def _step(self, conversation: Conversation, token: int, position: int) -> tuple[Floats, Floats]:
        """Hidden states of one row, [d] after the shared part of the path and [1, d] after all of it."""
        stack = conversation.stack
        shared = stack.run(self._shared, stack.embed(np.asarray([token])), position)
        return shared[0], stack.run(self._own, shared, position)

    def _choose(
        self, conversation: Conversation, hidden: Floats, position: int
    ) -> tuple[int, float, Probabilities | None]:
        """(token, confidence, the distribution it was drawn from)."""
        ids = conversation.stack.draft_ids(self.path.head)
        logits: Floats = conversation.stack.draft_logits(self.path.head, hidden)[0]
        if self._sampling is None:
            column = int(logits.argmax())
            return int(ids[column]), _probability(logits, column), None
        proposal = np.zeros(conversation.config.vocab_size)
        proposal[ids] = distribution(logits, self._sampling)
        token = draw(proposal, uniform(self._sampling.seed, position, Stream.DRAFT))
        return token, float(proposal.max()), proposal

    def observe(self, result: Round) -> None:
        """Learn from every token whose predecessors were all accepted. This includes a token that was dropped: the
        round shows whether it would have been right."""
        for i, (token, confidence) in enumerate(self._drafted[: result.num_accepted + 1]):
            if i < len(result.tokens):
                self._rule.learn(confidence, result.tokens[i] == token)


def _probability(logits: Floats, column: int) -> float:
    return float(1.0 / np.exp(logits - logits[column]).sum())
