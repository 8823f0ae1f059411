"""Prompt lookup: what followed the last occurrence, as long as the match allows, whatever the conversation became."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from hypothesis import given
from hypothesis import strategies as st

from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft
from selfspec.runtime.drafters.prompt_lookup import PromptLookup


def talk(*tokens: int) -> Conversation:
    return cast(Conversation, SimpleNamespace(tokens=list(tokens)))


def test_it_copies_what_followed_the_match() -> None:
    """Copying from the match's own last token, or one behind."""
    conversation = talk(1, 2, 3, 4, 5, 9, 1, 2, 3)
    assert PromptLookup().propose(conversation, 15) == Draft((4, 5, 9))


def test_it_drafts_no_more_than_the_match_the_limit_and_the_engine_allow() -> None:
    """A match of one token is no ground for seven drafts; and a draft beyond what is wanted would be cut."""
    conversation = talk(1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3, 4)
    assert PromptLookup().propose(conversation, 15).tokens == (5, 6, 7, 8)
    assert PromptLookup(2).propose(conversation, 15).tokens == (5, 6)
    assert PromptLookup().propose(conversation, 1).tokens == (5,)
    assert PromptLookup().propose(conversation, 0).tokens == ()
    assert PromptLookup().propose(talk(1, 5, 6, 1), 15).tokens == (5,)


def test_without_a_match_it_drafts_nothing() -> None:
    """A draft from nowhere costs a row of verification."""
    assert PromptLookup().propose(talk(1, 2, 3), 7) == Draft()
    assert PromptLookup().propose(talk(1), 7) == Draft()


def test_a_copy_that_reaches_the_end_goes_on_with_itself() -> None:
    """'ab ab ab' continues as 'ab ab': reading past the end of the sequence fails, stopping there drafts too little."""
    assert PromptLookup().propose(talk(1, 2, 1, 2, 1, 2), 15).tokens == (1, 2, 1, 2)
    assert PromptLookup(7).propose(talk(*[4] * 9), 15).tokens == (4,) * 7
    assert PromptLookup().propose(talk(1, 2, 3, 1, 2, 3, 1, 2), 15).tokens == (3, 1, 2, 3, 1)


def test_it_never_proposes_with_a_distribution_or_a_prefix() -> None:
    """The engine would take a q for a sampled draft, and a prefix for work already done."""
    draft = PromptLookup().propose(talk(1, 2, 1), 5)
    assert (draft.q, draft.prefix) == (None, None)


def test_it_follows_a_conversation_that_grows() -> None:
    """An automaton fed twice with the same tokens, or not with the new ones."""
    conversation, drafter = talk(1, 2, 3), PromptLookup()
    assert drafter.propose(conversation, 7) == Draft()
    conversation.tokens += [8, 2, 3]
    assert drafter.propose(conversation, 7).tokens == (8, 2)
    assert drafter.match_length(conversation) == 2


def test_it_forgets_a_conversation_that_was_truncated_or_replaced() -> None:
    """Drafts from text that is no longer there are harmless to the output and useless; a crash is neither."""
    conversation, drafter = talk(1, 2, 3, 1, 2), PromptLookup()
    assert drafter.propose(conversation, 7).tokens == (3, 1)
    del conversation.tokens[4:]
    assert drafter.propose(conversation, 7).tokens == (2,)
    conversation.tokens[3:] = [2]
    assert drafter.propose(conversation, 7).tokens == (3,)
    assert drafter.propose(talk(6, 7, 8), 7) == Draft()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.data())
def test_whatever_happened_before_it_drafts_like_a_fresh_one(tokens: list[int], data: st.DataObject) -> None:
    """History in the drafter must not matter: only the conversation's tokens do."""
    conversation, drafter = talk(*tokens), PromptLookup()
    for _ in range(3):
        drafter.propose(conversation, 7)
        del conversation.tokens[data.draw(st.integers(1, len(conversation.tokens))) :]
        conversation.tokens += data.draw(st.lists(st.integers(0, 3), max_size=8))
        # The latest occurrence may be known to one and not to the other, but neither the match nor its validity differ.
        fresh = PromptLookup()
        assert drafter.match_length(conversation) == fresh.match_length(conversation)
        assert drafter.propose(conversation, 7) == fresh.propose(conversation, 7)
