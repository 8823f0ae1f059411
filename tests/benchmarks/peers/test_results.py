"""The peers' arithmetic and table, on numbers that can be checked by hand."""

from __future__ import annotations

import pytest

from benchmarks.peers.process import Ready
from benchmarks.peers.results import paces, rows
from benchmarks.peers.roster import NOT_TRIED
from benchmarks.peers.table import PeerRow, table
from benchmarks.peers.turns import PeerArm
from benchmarks.peers.workers.protocol import Answer, Question
from selfspec.bench.bootstrap import ratio_interval


class Nobody:
    def ask(self, request: Question) -> Answer:
        raise NotImplementedError


def _contender(peer: str, arm: str, *answers: list[Answer], reason: str = "") -> PeerArm:
    return PeerArm(peer, arm, Nobody(), dict(enumerate(answers)), reason)


def _answer(ids: list[int], per_token: float, ttft: float = 0.1) -> Answer:
    return Answer(ids, ttft, per_token * (len(ids) - 1))


READY = {"selfspec": Ready({"selfspec": "1"}, ""), "other": Ready({"other": "2"}, "as it comes")}
PLAIN = _contender("selfspec", "plain", [_answer([1, 2, 3], 0.1)], [_answer([4, 5, 6, 7, 8], 0.2)])
AUTO = _contender("selfspec", "auto", [_answer([1, 2, 3], 0.05)], [_answer([4, 5, 6, 7, 8], 0.05)])


def test_pace_is_the_median_over_repeats_and_ttft_is_the_first_answers() -> None:
    """Would catch a mean, which one disturbed repeat spoils, a division by all tokens, and a prompt that counts as
    read where a runtime had kept it."""
    pace = paces(_contender("a", "plain", [_answer([1, 2, 3], s, s) for s in (9.0, 0.1, 0.2)]))[0]
    assert pace.seconds_per_token == pytest.approx(0.2)
    assert pace.ttft_seconds == pytest.approx(9.0)
    assert pace.tokens == 2


def test_an_answer_of_one_token_has_no_pace() -> None:
    assert paces(_contender("a", "plain", [Answer([1], 0.1, 0.0)], [_answer([1, 2], 0.1)])).keys() == {1}


def test_ratio_weighs_seconds_per_token_by_the_tokens_of_our_plain_answer() -> None:
    """Their first text is longer than ours: counted by their own tokens the ratio would be another."""
    other = _contender("other", "plain", [_answer([1, 2, 9, 9, 9, 9], 0.3)], [_answer([4, 5, 6, 7, 8], 0.2)])
    row = rows([PLAIN, AUTO, other], READY)[2]
    assert row.ratio == pytest.approx((2 * 0.3 + 4 * 0.2) / (2 * 0.1 + 4 * 0.2))
    assert row.ratio_of_best == pytest.approx((2 * 0.3 + 4 * 0.2) / (6 * 0.05))
    assert row.tokens_per_second == pytest.approx((5 + 4) / (5 * 0.3 + 4 * 0.2))
    expected = ratio_interval([[2 * 0.3], [4 * 0.2]], [[2 * 0.1], [4 * 0.2]])
    assert row.interval is not None
    assert expected is not None
    assert (row.interval.low, row.interval.high) == pytest.approx((expected.low, expected.high))
    assert row.ttft_ms == pytest.approx(100)
    assert (row.prompts, row.same_text) == (2, 1)
    assert (row.versions, row.note) == ({"other": "2"}, "as it comes")


def test_a_slow_arm_is_compared_with_the_repeat_of_ours_that_ran_beside_it() -> None:
    """Ours has three, of which the first was slow like theirs: the machine was busy then."""
    plain = _contender("selfspec", "plain", [_answer([1, 2, 3], s) for s in (0.4, 0.1, 0.1)])
    row = rows([plain, _contender("other", "plain", [_answer([1, 2, 3], 4.0)])], READY)[1]
    assert row.ratio == pytest.approx(10.0)


def test_a_slow_arm_is_compared_on_the_prompts_it_ran_only() -> None:
    slow = PeerArm("other", "early-exit", Nobody(), {1: [_answer([4, 5, 6, 7, 8], 2.0)]})
    row = rows([PLAIN, AUTO, slow], READY)[2]
    assert row.ratio == pytest.approx(10.0)
    assert row.interval is None
    assert row.prompts == row.same_text == 1


def test_our_plain_against_itself_is_one() -> None:
    row = rows([PLAIN, AUTO], READY)[0]
    assert (row.ratio, row.same_text) == (1.0, 2)


def test_a_peer_that_failed_is_a_row_with_its_reason() -> None:
    row = rows([PLAIN, _contender("gone", "plain", reason="no such wheel")], READY)[1]
    assert (row.peer, row.reason, row.tokens_per_second, row.versions) == ("gone", "no such wheel", None, {})


def test_without_our_plain_there_are_figures_but_no_ratios() -> None:
    other = _contender("other", "plain", [_answer([1, 2, 3], 0.5)])
    failed, row = rows([_contender("selfspec", "plain", reason="died"), other], READY)
    assert failed.reason == "died"
    assert row.tokens_per_second == pytest.approx(2.0)
    assert (row.ratio, row.interval, row.ratio_of_best, row.same_text) == (None, None, None, None)


def test_table_has_a_line_for_figures_and_a_line_for_a_reason() -> None:
    without = [_contender("gone", "plain", reason="a|b"), _contender("far", "plain", reason=NOT_TRIED)]
    found = rows([PLAIN, AUTO, *without], READY)
    assert table(found).splitlines()[2:] == [
        "| selfspec | plain | 6.0 | 100 | 1.00 | 1.00–1.00 | 3.33 | 2 of 2 |",
        "| selfspec | auto | 20.0 | 100 | 0.30 | 0.06–32.43 | 1.00 | 2 of 2 |",
        "| gone | plain | cannot run: a/b |  |  |  |  |  |",
        "| far | plain | not tried on this model |  |  |  |  |  |",
    ]


def test_table_shows_what_is_not_known_as_a_dash() -> None:
    shown = table([PeerRow("a", "plain", {}, "", 1, 2.0, 3.0)]).splitlines()
    assert shown[2] == "| a | plain | 2.0 | 3 | - | - | - | - |"
