"""Early exit (LayerSkip, Elhoushi et al. 2404.16710): draft with the first layers and a short head.

The exit's hidden states and the shallow layers' KV rows are the target's own, so verification starts from them.
No head is trained here: final norm and LM head are applied at the exit as they are. Leaving after the last layer is an
exit too: then only the head is short, and verification only has to score the rest of the vocabulary.

Of a model with experts, a draft may run fewer of them. From the first layer that has some on its rows are then not the
target's, so that verification begins at layer 0 and overwrites them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..conversation import Conversation
from ..sampling import Floats, Probabilities, Sampling, Stream, distribution, draw, uniform
from ..stack import Plan
from .base import Draft, Prefix, Round

DEFAULT_DRAFT_TOKENS = 3
CONFIDENCE = 0.4  # Hugging Face's assistant_confidence_threshold


class StopRule(Protocol):
    """How far to draft. A confidence is the probability that the exit gives to its own best token."""

    def keep(self, confidences: Sequence[float]) -> bool:
        """Whether the last drafted token shall be verified. Which token was *drawn* must not decide: that is biased."""

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


class EarlyExit:
    """Drafts through layers 0..exit_layer-1 and the hot head."""

    def __init__(
        self,
        exit_layer: int,
        num_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
        *,
        rule: StopRule | None = None,
        full_head: bool = False,
        sampling: Sampling | None = None,
        experts: int | None = None,
    ) -> None:
        """Args:
        rule: how far to draft, at most ``num_draft_tokens``; by default a :class:`Threshold`.
        full_head: score the whole vocabulary, as an identity draft must.
        sampling: draw drafted tokens from the exit's distribution instead of taking the best.
        experts: how many of a token's best experts run in each layer; None: as many as the model runs.
        """
        self.exit_layer = exit_layer
        self._limit = num_draft_tokens
        self._rule: StopRule = Threshold() if rule is None else rule
        self._full_head = full_head
        self._sampling = sampling
        self._plan = Plan.layers(0, exit_layer, experts)
        self._drafted: list[tuple[int, float]] = []  # tokens and confidences, a dropped one included

    @property
    def steps(self) -> int:
        """Draft steps of the last proposal, that of a dropped token included."""
        return len(self._drafted)

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        limit = min(max_tokens, self._limit)
        stack, start = conversation.stack, conversation.kv.length
        hidden = np.empty((limit, conversation.config.hidden_size), dtype=np.float32)
        token, rows = conversation.tokens[-1], 0
        tokens, confidences, q = list[int](), list[float](), list[Probabilities]()
        self._drafted = []
        while rows < limit and self._rule.go_on(confidences):
            exit_hidden = stack.run(self._plan, stack.embed(np.asarray([token])), start + rows)
            hidden[rows] = exit_hidden[0]
            rows += 1
            token, confidence, proposal = self._choose(conversation, exit_hidden, start + rows)
            confidences.append(confidence)
            self._drafted.append((token, confidence))
            if not self._rule.keep(confidences):
                break
            tokens.append(token)
            if proposal is not None:
                q.append(proposal)
        prefix = Prefix(self.exit_layer, hidden[:rows]) if rows and self._plan.experts is None else None
        return Draft(tuple(tokens), None if self._sampling is None else tuple(q), prefix)

    def _choose(
        self, conversation: Conversation, hidden: Floats, position: int
    ) -> tuple[int, float, Probabilities | None]:
        """(token, confidence, the distribution it was drawn from)."""
        stack = conversation.stack
        logits: Floats = (stack.logits if self._full_head else stack.hot_logits)(hidden)[0]
        if self._sampling is None:
            column = int(logits.argmax())
            return column if self._full_head else int(stack.hot_ids[column]), _probability(logits, column), None
        proposal = self._distribution(conversation, logits, self._sampling)
        token = draw(proposal, uniform(self._sampling.seed, position, Stream.DRAFT))
        return token, float(proposal.max()), proposal

    def _distribution(self, conversation: Conversation, logits: Floats, sampling: Sampling) -> Probabilities:
        if self._full_head:
            return distribution(logits, sampling)
        probs = np.zeros(conversation.config.vocab_size)
        probs[conversation.stack.hot_ids] = distribution(logits, sampling)
        return probs

    def observe(self, result: Round) -> None:
        """A drafted token was judged if all before it were accepted; of a dropped one the round tells as well."""
        for i, (token, confidence) in enumerate(self._drafted[: result.num_accepted + 1]):
            if i < len(result.tokens):
                self._rule.learn(confidence, result.tokens[i] == token)


def _probability(logits: Floats, column: int) -> float:
    return float(1.0 / np.exp(logits - logits[column]).sum())
