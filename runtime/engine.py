"""The decode loop: rounds of draft, verify, commit. Token ids in, rounds out; it knows no text and no drafter."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..errors import UsageError
from .conversation import Conversation
from .drafters.base import MAX_DRAFT_TOKENS, Draft, Drafter, Round
from .logits import LogitRows
from .logprobs import TokenLogprobs, token_logprobs
from .penalties import Penalties, penalties_for
from .sampling import Floats, Sampling, choose
from .stack import Plan
from .verify import Verdict, verify_matching, verify_sampled


@dataclass(frozen=True, slots=True)
class Decoding:
    """A generation under way. ``first`` is the prompt's own prediction, which no round made, with its log-probabilities
    where they were asked for; None where there is no room for it. ``rounds`` go on behind it, each when it is asked
    for."""

    first: int | None
    first_logprobs: TokenLogprobs | None
    rounds: Iterator[Round]

    def tokens(self) -> Iterator[int]:
        """All of them, as they come."""
        if self.first is not None:
            yield self.first
        for found in self.rounds:
            yield from found.tokens


def decode(
    conversation: Conversation,
    logits: Floats,
    drafter: Drafter,
    sampling: Sampling,
    max_new_tokens: int,
    eos: frozenset[int],
    num_logprobs: int | None = None,
) -> Decoding:
    """Generate from a prefilled conversation.

    Stops after an end-of-sequence token, after ``max_new_tokens``, or where the context ends; tokens are committed to
    the conversation before they are given out.

    Args:
        logits: [V], from :meth:`Conversation.prefill`.
        num_logprobs: tell each token's log-probability and those of so many of the likeliest; None tells nothing.
    """
    left = min(max_new_tokens, conversation.config.context_length - len(conversation.tokens))
    if left <= 0:
        return Decoding(None, None, iter(()))
    penalties = penalties_for(sampling, conversation.tokens)
    first = choose(penalties.apply(logits), sampling, len(conversation.tokens))
    logprobs = None if num_logprobs is None else token_logprobs(logits, first, num_logprobs)
    conversation.tokens.append(first)
    left = 0 if first in eos else left - 1
    rounds = _rounds(conversation, drafter, sampling, left, eos, num_logprobs, penalties.after((first,)))
    return Decoding(first, logprobs, rounds)


def _rounds(
    conversation: Conversation,
    drafter: Drafter,
    sampling: Sampling,
    left: int,
    eos: frozenset[int],
    num_logprobs: int | None,
    penalties: Penalties,
) -> Iterator[Round]:
    stopped = False
    while left > 0 and not stopped:
        started = time.perf_counter()
        limit = min(left - 1, MAX_DRAFT_TOKENS)
        with conversation.stack.watch_experts() as ran:
            draft = drafter.propose(conversation, limit)
            _check_draft(draft, limit, conversation.config.vocab_size)
            rows = conversation.stack.logit_rows(_target_hidden(conversation, draft))
        verdict = _verify(draft, rows, sampling, len(conversation.tokens), penalties)
        tokens, stopped = _until_stop(verdict.tokens, eos)
        _commit(conversation, tokens)
        penalties = penalties.after(tokens)
        accepted = min(verdict.num_accepted, len(tokens))
        seconds = time.perf_counter() - started
        experts = sum(map(len, ran.values()))
        result = Round(tokens, len(draft.tokens), accepted, seconds, _logprobs(rows, tokens, num_logprobs), experts)
        drafter.observe(result)
        left -= len(tokens)
        yield result


def _check_draft(draft: Draft, limit: int, vocab_size: int) -> None:
    """A drafter may be anyone's: what it says is checked before it reaches a kernel that does not check."""
    if len(draft.tokens) > limit or any(not 0 <= token < vocab_size for token in draft.tokens):
        raise UsageError(
            f"the drafter proposed {list(draft.tokens)}, where at most {limit} ids below {vocab_size} were asked for."
        )


def _verify(draft: Draft, logits: LogitRows, sampling: Sampling, position: int, penalties: Penalties) -> Verdict:
    if draft.q is None or sampling.greedy:
        return verify_matching(draft.tokens, logits, sampling, position, penalties)
    return verify_sampled(draft.tokens, draft.q, logits, sampling, position, penalties)


def _logprobs(logits: LogitRows, tokens: tuple[int, ...], count: int | None) -> tuple[TokenLogprobs, ...]:
    if count is None:
        return ()
    return tuple(token_logprobs(logits[i], token, count) for i, token in enumerate(tokens))


def _target_hidden(conversation: Conversation, draft: Draft) -> Floats:
    """[γ + 1, d]: the full model's hidden states for the pending token and the drafted ones."""
    stack, start = conversation.stack, conversation.kv.length
    ids = np.asarray([conversation.tokens[-1], *draft.tokens], dtype=np.int64)
    if draft.prefix is None:
        return stack.run(conversation.full_plan, stack.embed(ids), start)
    sublayers, hidden = conversation.full_plan.sublayers, draft.prefix.hidden
    done = len(hidden)
    if done < len(ids):
        rest = stack.run(Plan(sublayers[: draft.prefix.sublayer]), stack.embed(ids[done:]), start + done)
        hidden = np.concatenate([hidden, rest])
    return stack.run(Plan(sublayers[draft.prefix.sublayer :]), hidden, start)


def _until_stop(tokens: tuple[int, ...], eos: frozenset[int]) -> tuple[tuple[int, ...], bool]:
    for i, token in enumerate(tokens):
        if token in eos:
            return tokens[: i + 1], True
    return tokens, False


def _commit(conversation: Conversation, tokens: tuple[int, ...]) -> None:
    conversation.kv.commit(len(tokens))  # the pending token's row and all but the last of the new ones'
    conversation.tokens += tokens
