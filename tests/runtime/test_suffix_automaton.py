"""The suffix automaton against its definition, looked up by brute force."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec.runtime.drafters.suffix_automaton import SuffixAutomaton


def longest_earlier_suffix(tokens: list[int]) -> int:
    """Length of the longest suffix that also ends at an earlier position; overlaps are allowed."""
    n = len(tokens)
    return next((k for k in range(n - 1, 0, -1) if any(tokens[e - k : e] == tokens[n - k :] for e in range(k, n))), 0)


def check_every_prefix(tokens: list[int]) -> None:
    automaton = SuffixAutomaton()
    for n, token in enumerate(tokens, 1):
        automaton.append(token)
        seen, length, end = tokens[:n], automaton.match_length, automaton.match_end
        assert automaton.tokens == seen
        assert length == longest_earlier_suffix(seen), seen
        if length:
            assert end < n - 1, f"{seen}: the match ends where the sequence does"
            assert seen[end + 1 - length : end + 1] == seen[n - length :], seen
        else:
            assert end == -1


def test_the_longest_match_is_found_where_it_stands() -> None:
    """By hand: after 'a b c x a b' the suffix 'a b' stands earlier, ending at position 1."""
    automaton = SuffixAutomaton()
    found = []
    for token in [1, 2, 3, 9, 1, 2]:
        automaton.append(token)
        found.append((automaton.match_length, automaton.match_end))
    assert found == [(0, -1), (0, -1), (0, -1), (0, -1), (1, 0), (2, 1)]


def test_a_run_matches_itself_one_step_back() -> None:
    """Overlapping occurrences count: 'aaaa' ends with 'aaa', which also ends one earlier."""
    automaton = SuffixAutomaton()
    for _ in range(4):
        automaton.append(7)
    assert (automaton.match_length, automaton.match_end) == (3, 2)


def test_the_most_recent_occurrence_wins_where_it_is_cheap_to_know() -> None:
    """What followed last is likelier to follow again than what followed first."""
    automaton = SuffixAutomaton()
    for token in [1, 2, 5, 1, 2, 6, 1, 2]:
        automaton.append(token)
    assert (automaton.match_length, automaton.match_end) == (2, 4)


def test_a_state_split_by_the_last_token_does_not_hide_the_match() -> None:
    """Extending clones states; a cursor left on the old one loses or overstates the next match."""
    check_every_prefix([0, 1, 1, 0, 1, 0, 1, 1, 1, 0, 1, 1, 0])


@settings(max_examples=250)
@given(st.lists(st.integers(0, 2), max_size=40))
def test_every_prefix_over_three_tokens_agrees_with_brute_force(tokens: list[int]) -> None:
    """Small alphabets split states at almost every step."""
    check_every_prefix(tokens)


@settings(max_examples=100)
@given(st.lists(st.integers(0, 1), max_size=60), st.integers(2, 4))
def test_every_prefix_of_a_repeated_text_agrees_with_brute_force(tokens: list[int], times: int) -> None:
    """Long matches, longer than any bounded walk over suffix links."""
    check_every_prefix((tokens * times)[:80])


@given(st.lists(st.sampled_from([0, 50_000, 7, 2**31]), max_size=40))
def test_token_ids_may_be_anything(tokens: list[int]) -> None:
    """Ids used as list indices, or 0 taken for 'no edge'."""
    check_every_prefix(tokens)
