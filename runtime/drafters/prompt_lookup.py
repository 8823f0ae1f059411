"""Prompt lookup: copy what followed the last occurrence of the current suffix, in prompt and output alike.

Saxena's prompt lookup decoding, with a suffix automaton (2411.10666) in place of fixed n-grams and a draft length that
grows with the match (SuffixDecoding, 2411.04975). Costs no pass of the model.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from ...models.manifest import Manifest
from ..conversation import Conversation
from ..rates import AcceptanceRate, Choice, CostModel, best_length
from .base import MAX_DRAFT_TOKENS, Draft, Drafter, Round
from .free_arm import settle_free
from .kind import Arm, DraftContext, DrafterKind
from .limits import check_tokens
from .suffix_automaton import SuffixAutomaton

DEFAULT_DRAFT_TOKENS = 7

# First guesses of how often a copied token is right, by match length; what is observed in the conversation replaces
# them. Below the mean of 327 recorded answers of SmolLM2-135M (.27, .57, .68, .79, .92) where matches are short: many
# conversations repeat nothing, and would pay for the mean until they have shown it.
_MATCH_BUCKETS = (1, 2, 4, 8)
_MATCH_PRIORS = (0.12, 0.35, 0.6, 0.75, 0.9)


@dataclass(frozen=True, slots=True)
class Options:
    """``tokens``: the longest draft of a round."""

    tokens: int | None = None


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


class LookupArm:
    """Prompt lookup for ``auto``: the longer the match, the more of what followed it is worth copying."""

    free = True

    def __init__(self, name: str, costs: CostModel) -> None:
        self.name = name
        self._costs = costs
        self._lookup = PromptLookup(MAX_DRAFT_TOKENS)
        self._rates = [AcceptanceRate(prior) for prior in _MATCH_PRIORS]
        self._match = 0

    def promise(self, conversation: Conversation, limit: int) -> Choice:
        self._match = self._lookup.match_length(conversation)
        if not self._match:
            return Choice(0, 0.0)
        return best_length([rate.value for rate in self._by_position(limit)], self._costs.verify)

    def propose(self, conversation: Conversation, count: int) -> Draft:
        return self._lookup.copy(count)

    def settle(self, result: Round) -> float:
        return settle_free(result, self._costs, self._by_position(result.num_drafted))

    def _by_position(self, count: int) -> list[AcceptanceRate]:
        """A copied token lengthens the match that the next one rests on."""
        return [self._rates[bisect_left(_MATCH_BUCKETS, self._match + i)] for i in range(count)]


def _check(options: Options, manifest: Manifest) -> None:
    check_tokens(options.tokens)


def _make(options: Options, context: DraftContext) -> Drafter:
    return PromptLookup(options.tokens or DEFAULT_DRAFT_TOKENS)


def _arms(context: DraftContext, costs: CostModel) -> Sequence[Arm]:
    return (LookupArm(KIND.name, costs),)


KIND = DrafterKind(
    "prompt-lookup", "copies what followed the same words earlier in the text", Options, _make, _check, arms=_arms
)
