"""Prompt lookup: copy what followed the last occurrence of the current suffix, in prompt and output alike.

Saxena's prompt lookup decoding, with a suffix automaton (2411.10666) in place of fixed n-grams and a draft length that
grows with the match (SuffixDecoding, 2411.04975). Costs no pass of the model.
"""

from __future__ import annotations

from ..conversation import Conversation
from .base import Draft, Round
from .suffix_automaton import SuffixAutomaton

DEFAULT_DRAFT_TOKENS = 7


class PromptLookup:
    """Drafts from the conversation's own tokens."""

    def __init__(self, num_draft_tokens: int = DEFAULT_DRAFT_TOKENS) -> None:
        self._limit = num_draft_tokens
        self._automaton = SuffixAutomaton()

    def match_length(self, conversation: Conversation) -> int:
        """How many of the last tokens also stand earlier."""
        self._follow(conversation.tokens)
        return self._automaton.match_length

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        length = self.match_length(conversation)
        return self.copy(min(max_tokens, self._limit, length)) if length else Draft()

    def copy(self, count: int) -> Draft:
        """``count`` tokens from behind the match; past the end of the sequence it goes on with its own copy."""
        tokens, end = self._automaton.tokens, self._automaton.match_end
        drafted: list[int] = []
        for source in range(end + 1, end + 1 + count):
            drafted.append(tokens[source] if source < len(tokens) else drafted[source - len(tokens)])
        return Draft(tuple(drafted))

    def observe(self, result: Round) -> None:
        """The next proposal reads the conversation itself."""

    def _follow(self, tokens: list[int]) -> None:
        seen = self._automaton.tokens
        if tokens[: len(seen)] != seen:
            self._automaton = SuffixAutomaton()
            seen = self._automaton.tokens
        for token in tokens[len(seen) :]:
            self._automaton.append(token)
