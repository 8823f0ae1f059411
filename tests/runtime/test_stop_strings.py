"""Stop strings on pieces of text: nothing of them shows, whatever the tokens are."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import UsageError
from selfspec.runtime.stop_strings import StopFilter, StopStrings


def shown(stops: list[str], pieces: list[str]) -> tuple[list[list[str]], str | None]:
    """What each push gives out, and last what finish does."""
    found = StopFilter(StopStrings(stops))
    out = []
    for piece in pieces:
        out.append([p.text for p in found.push(piece)])
        if found.match is not None:
            return out, found.match
    return [*out, [p.text for p in found.finish()]], None


def joined(out: list[list[str]]) -> str:
    return "".join(text for texts in out for text in texts)


def test_a_token_waits_while_its_end_may_begin_a_stop_string_and_no_longer() -> None:
    """Held for ever, a text with one angle bracket would never be seen."""
    assert shown(["</end>"], ["a", "b<", "/e", "x", "y"]) == ([["a"], [], [], ["b<", "/e", "x"], ["y"], []], None)


def test_a_stop_string_over_several_tokens_ends_the_text_before_it() -> None:
    """The token that begins before the cut stays, without what lies behind it; whole tokens behind it go."""
    assert shown(["</end>"], ["a", "b<", "/end", ">c"]) == ([["a"], [], [], ["b"]], "</end>")
    assert shown(["</end>"], ["a", "<", "/end>"]) == ([["a"], [], []], "</end>")
    assert shown(["stop"], ["stop"]) == ([[]], "stop")
    assert shown(["b"], ["abc"]) == ([["a"]], "b")


def test_the_one_that_is_complete_first_wins_however_the_tokens_are_cut() -> None:
    """Found by order in the list, or by what a token happens to bring along."""
    assert shown(["zz", "b"], ["a", "b", "zz"]) == ([["a"], []], "b")
    assert shown(["d", "b"], ["abcd"]) == ([["a"]], "b")
    for pieces in (["abcd"], ["ab", "cd"], ["a", "b", "c", "d"]):
        out, match = shown(["abcd", "bc"], pieces)
        assert (joined(out), match) == ("a", "bc"), pieces
    assert shown(["bc", "abc"], ["abc"]) == ([[]], "abc")  # both end here: the longer one began first


def test_a_beginning_that_leads_nowhere_may_hold_the_real_one() -> None:
    """After 'aa' of 'aab', another 'a' is still the beginning of one."""
    assert shown(["aab"], ["a", "a", "a", "b"]) == ([[], [], ["a"], []], "aab")


def test_a_token_without_text_goes_with_the_one_after_it() -> None:
    """Half of a character that turns out to be the stop string must not stay behind as a token."""
    assert shown(["é"], ["a", "", "é"]) == ([["a"], [], []], "é")
    assert shown(["z"], ["a", "", "é", ""]) == ([["a"], [], ["", "é"], [], [""]], None)


def test_without_stop_strings_nothing_waits() -> None:
    """An empty token held back would make the stream lag behind the model."""
    assert shown([], ["a", "", "b"]) == ([["a"], [""], ["b"], []], None)


def test_the_end_of_the_text_gives_out_what_waited() -> None:
    assert shown(["abc"], ["x", "ab"]) == ([["x"], [], ["ab"]], None)


PIECES = st.lists(st.text("abc", max_size=3), max_size=12)


@given(PIECES, st.lists(st.text("abc", min_size=1, max_size=4), max_size=3))
def test_what_is_shown_is_the_text_up_to_the_stop_string_however_it_is_cut(pieces: list[str], stops: list[str]) -> None:
    """Every cut of a text into tokens gives the same text and the same match."""
    out, match = shown(stops, pieces)
    text = "".join(pieces)
    ends = [(text.find(s) + len(s), text.find(s), s) for s in stops if s in text]
    expected = min(ends)[1:] if ends else (len(text), None)
    assert (joined(out), match) == (text[: expected[0]], expected[1])
    assert shown(stops, list(text))[1] == match


@pytest.mark.parametrize("stops", [[""], ["a", ""], [b"a"], [None], "stop"])
def test_what_can_stop_nothing_is_refused(stops: Any) -> None:
    """The empty string stands everywhere; and a text is no list of texts but would be read letter by letter."""
    with pytest.raises(UsageError, match="stop"):
        StopStrings(stops)
