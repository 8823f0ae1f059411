"""What a drafter is: proposes tokens, then hears what became of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from ..conversation import Conversation
from ..logprobs import TokenLogprobs
from ..sampling import Probabilities
from ..stack import Floats

MAX_DRAFT_TOKENS = 15
"""Longest draft: verification then has 16 rows, as many as profiles measure and exactness is probed for."""


@dataclass(frozen=True, slots=True)
class Prefix:
    """Work that verification need not repeat: the first rows have run sublayers 0..sublayer-1 as the target does.

    ``hidden`` [n, d] are their hidden states there. Row 0 is the pending token, row i the i-th drafted one; there is at
    least one row, and at most one for each of them.
    """

    sublayer: int
    hidden: Floats


@dataclass(frozen=True, slots=True)
class Draft:
    """Proposed tokens. ``q``: the distributions they were drawn from, or None where the choice was deterministic.
    ``prefix`` None: verification starts at layer 0 and overwrites every KV row that the draft wrote."""

    tokens: tuple[int, ...] = ()
    q: tuple[Probabilities, ...] | None = None
    prefix: Prefix | None = None


@dataclass(frozen=True, slots=True)
class Round:
    """One draft-verify round: ``tokens`` were committed, the first ``num_accepted`` of them drafted.

    ``seconds`` is drafting and verification together. ``logprobs``: one a token, where they were asked for.
    ``experts``: how many ran at all, in draft or verification, each counted once in each layer.
    """

    tokens: tuple[int, ...]
    num_drafted: int
    num_accepted: int
    seconds: float
    logprobs: tuple[TokenLogprobs, ...] = ()
    experts: int = 0


class Drafter(Protocol):
    """A way to guess the next tokens. The engine cannot tell one from another."""

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        """At most ``max_tokens`` (≥ 0) tokens that may follow ``conversation.tokens``. May write KV rows from
        ``conversation.kv.length`` on; must not commit any."""

    def observe(self, result: Round) -> None:
        """Called once after each proposal."""


class NoDrafter:
    """Plain decoding."""

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        return Draft()

    def observe(self, result: Round) -> None:
        """Nothing to learn."""
