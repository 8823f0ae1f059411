"""Rows of a benchmark from runs written by hand. No model, no clock."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from selfspec.bench.bootstrap import ratio_interval
from selfspec.bench.rows import (
    ALL,
    PLAIN,
    Answers,
    acceptance_by_position,
    prompt_rows,
    samples,
    speed_row,
    tokens_per_second,
)
from selfspec.bench.runs import PromptRun, Run
from selfspec.runtime.drafters.base import Round

LOOKUP = "prompt-lookup"


def drafted(count: int, accepted: int, seconds: float = 1.0) -> Round:
    return Round((7,) * (accepted + 1), count, accepted, seconds)


def run(tokens: int, seconds: float, rounds: Any = (), draft_seconds: float = 0.0, **changes: Any) -> PromptRun:
    values: dict[str, Any] = {"peak_rss": 100, "pss": 60, "token_ids": (7,) * (tokens + 1), "ttft_seconds": 0.5,
                              "proposals": (), "prompt_tokens": 3}  # fmt: skip
    return PromptRun(
        tokens=tokens, seconds=seconds, rounds=tuple(rounds), draft_seconds=draft_seconds, **values | changes
    )


def row_of(rows: Any, category: str, draft: str) -> Any:
    (found,) = [r for r in rows if (r.category, r.draft) == (category, draft)]
    return found


def test_speed_is_mean_deviation_and_median_over_repeats() -> None:
    found = speed_row("pp100", [Run(100, s, 10 + i, None) for i, s in enumerate((1.0, 0.5, 0.25))], 0.4)
    assert (found.test, found.draft, found.repeats, found.tokens) == ("pp100", PLAIN, 3, 300)
    assert found.mean == pytest.approx(700 / 3)
    assert found.sd == pytest.approx(152.7525, abs=1e-3)
    assert (found.median, found.roofline) == (200.0, 0.4)
    assert (found.peak_rss_bytes, found.pss_bytes, found.category) == (12, None, None)


def test_one_repeat_has_no_deviation() -> None:
    assert speed_row("tg8", [Run(8, 1.0, 1, 1)]).sd is None


def test_several_runs_have_the_speed_of_all_tokens_over_all_seconds() -> None:
    """Not the mean of their speeds, 52.5."""
    assert tokens_per_second([Run(100, 1.0, 0, 0), Run(10, 2.0, 0, 0)]) == pytest.approx(110 / 3)


@pytest.mark.parametrize(
    ("rounds", "shares"),
    [
        ([], ()),
        ([Round((7,), 0, 0, 1.0)], ()),
        ([drafted(3, 1), drafted(1, 1), drafted(3, 3), drafted(2, 0)], (3 / 4, 1 / 3, 1 / 2)),
        ([drafted(1, 0), drafted(2, 2)], (1 / 2, 1.0)),
    ],
)
def test_acceptance_by_position_counts_only_what_was_drafted_there(rounds: Any, shares: tuple[float, ...]) -> None:
    assert acceptance_by_position(rounds) == pytest.approx(shares)


def test_speed_up_is_time_per_token_by_medians_weighted_by_plains_lengths() -> None:
    """Plain: 10 tokens in 1 s (median) and 30 in 6 s. Lookup: the same per token twice as fast, and as fast."""
    plain_a, plain_b = [run(10, 1.0), run(10, 9.0), run(10, 1.0)], [run(30, 6.0)] * 3
    fast, same = [run(20, 1.0)] * 3, [run(15, 3.0)] * 3
    answers = [Answers("qa", {PLAIN: plain_a, LOOKUP: fast}), Answers("qa", {PLAIN: plain_b, LOOKUP: same})]
    plain, lookup = prompt_rows(answers)
    assert lookup.speed_up == pytest.approx((1.0 + 6.0) / (0.5 + 6.0))
    found = ratio_interval([[1.0, 9.0, 1.0], [6.0] * 3], [[0.5] * 3, [6.0] * 3])
    assert found is not None
    assert (lookup.speed_up_low, lookup.speed_up_high) == pytest.approx((found.low, found.high))
    assert (plain.speed_up, plain.speed_up_low, plain.same_text) == (None, None, None)
    assert plain.mean == pytest.approx((40 / 7 + 40 / 15 + 40 / 7) / 3)
    assert plain.median == pytest.approx(40 / 7)


def test_plain_against_itself_contains_one() -> None:
    noisy = [1.0, 1.1, 0.9, 1.05, 0.97, 1.02, 0.95, 1.08]
    answers = [
        Answers("qa", {PLAIN: [run(10, s)], "none": [run(10, t)]}) for s, t in zip(noisy, reversed(noisy), strict=True)
    ]
    (_, found) = prompt_rows(answers)
    assert found.speed_up == pytest.approx(1.0)
    assert found.speed_up_low is not None
    assert found.speed_up_high is not None
    assert found.speed_up_low < 1.0 < found.speed_up_high
    assert found.same_text == 8


def test_turns_that_do_not_count_must_say_the_same_and_weigh_as_much() -> None:
    """A machine's slow moment must hide neither another text nor a peak."""
    other = replace(run(9, 5.0, peak_rss=300), token_ids=(7, 7, 7))
    answers = Answers("qa", {PLAIN: [run(10, 1.0)], LOOKUP: [run(10, 0.5)]}, {PLAIN: [], LOOKUP: [other]})
    assert prompt_rows([Answers("qa", answers.runs)])[1].same_text == 1
    (_, found) = prompt_rows([answers])
    assert found.speed_up == pytest.approx(2.0)
    assert (found.same_text, found.peak_rss_bytes) == (0, 300)
    assert samples([answers])[1].unused_seconds_per_token == pytest.approx((5 / 9,), abs=1e-6)


def test_drafting_is_summed_over_all_runs() -> None:
    first = run(4, 2.0, [drafted(3, 1, 1.5), drafted(1, 1, 0.5)], draft_seconds=0.5, ttft_seconds=0.1)
    second = run(2, 2.0, [drafted(0, 0, 1.0), drafted(0, 0, 1.0)], draft_seconds=0.1, ttft_seconds=0.3, peak_rss=200)
    (_, found) = prompt_rows([Answers("rag", {PLAIN: [run(4, 2.0)] * 2, LOOKUP: [first, second]})])
    assert found.acceptance_rate == pytest.approx(2 / 4)
    assert found.acceptance_by_position == (1.0, 0.0, 0.0)
    assert found.tokens_per_round == pytest.approx(6 / 4)
    assert found.draft_share == pytest.approx(0.6 / 4)
    assert found.ttft_ms == pytest.approx(200.0)
    assert found.same_text == 0, "the second answer is shorter than plain's"
    assert (found.peak_rss_bytes, found.pss_bytes, found.tokens) == (200, 60, 6)
    assert (found.speed_up_low, found.speed_up_high) == pytest.approx((0.5, 1.0)), "two repeats of one prompt"


def test_categories_have_rows_of_their_own_and_all_prompts_too() -> None:
    def answers(category: str, seconds: float) -> Answers:
        return Answers(category, {PLAIN: [run(10, 1.0)], LOOKUP: [run(10, seconds)]})

    rows = prompt_rows([answers("qa", 0.5), answers("rag", 2.0), answers("qa", 0.5)])
    assert [(r.category, r.draft) for r in rows] == [
        (category, draft) for category in ("qa", "rag", ALL) for draft in (PLAIN, LOOKUP)
    ]
    assert [row_of(rows, c, LOOKUP).speed_up for c in ("qa", "rag", ALL)] == [2.0, 0.5, 1.0]
    assert [row_of(rows, c, PLAIN).prompts for c in ("qa", "rag", ALL)] == [2, 1, 3]
    assert len(prompt_rows([answers("qa", 0.5)])) == 2, "all is the same set as qa"
