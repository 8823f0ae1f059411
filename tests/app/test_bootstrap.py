"""Intervals of speed-ups: cases that can be reckoned by hand, and how often they hold the truth."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfspec.bench.bootstrap import Interval, ratio_interval, resampled_interval


def once(*values: float) -> list[list[float]]:
    """Prompts that were run once."""
    return [[value] for value in values]


def test_one_run_of_one_prompt_has_no_interval() -> None:
    assert resampled_interval([], []) is None
    assert resampled_interval([[2.0]], [[1.0]]) is None


def test_a_constant_ratio_has_no_width_however_prompts_and_repeats_differ() -> None:
    """Pairs torn apart, prompts or repeats, would give a wide one."""
    assert resampled_interval(once(2.0, 20.0, 6.0), once(1.0, 10.0, 3.0)) == Interval(2.0, 2.0)
    assert resampled_interval([[2.0, 20.0, 6.0]], [[1.0, 10.0, 3.0]]) == Interval(2.0, 2.0)


def test_two_prompts_reach_from_one_ratio_to_the_other() -> None:
    """A quarter of all resamples is one prompt twice: both ends lie beyond 2.5 %."""
    assert resampled_interval(once(1.0, 3.0), once(1.0, 1.0)) == Interval(1.0, 3.0)


def test_one_prompt_has_an_interval_of_its_repeats() -> None:
    """Of three, one is the median of 7 / 27 of the resamples: both ends are reached. An outlier among nine is the
    median where it is drawn five times or more: in .1 %."""
    assert resampled_interval([[1.0, 2.0, 3.0]], [[1.0] * 3]) == Interval(1.0, 3.0)
    assert resampled_interval([[1.0] * 8 + [9.0]], [[1.0] * 9]) == Interval(1.0, 1.0)


def test_an_even_number_of_repeats_has_a_median_between_two() -> None:
    """(1, 3) is drawn as 1, 2 or 3 at the median: a quarter, a half, a quarter."""
    found = resampled_interval([[1.0, 3.0]] * 200, [[1.0, 1.0]] * 200)
    assert found is not None
    assert 1.85 < found.low < 1.95 < 2.05 < found.high < 2.15


def test_repeats_are_drawn_anew_for_each_prompt() -> None:
    """Drawn for all alike, 25 prompts would be as uncertain as one."""
    alone = resampled_interval([[1.0, 2.0, 3.0]], [[1.0] * 3])
    many = resampled_interval([[1.0, 2.0, 3.0]] * 25, [[1.0] * 3] * 25)
    assert alone is not None
    assert many is not None
    assert many.high - many.low < 0.4 * (alone.high - alone.low)


def test_the_level_is_95_percent() -> None:
    """One prompt of three is drawn three times in 3.7 % of the resamples: above 2.5 %, below 5 %. One of four is drawn
    four times in 0.4 %, and three times or more in 5.1 %."""
    assert resampled_interval(once(1.0, 1.0, 4.0), once(1.0, 1.0, 1.0)) == Interval(1.0, 4.0)
    assert resampled_interval(once(1.0, 1.0, 1.0, 5.0), once(1.0, 1.0, 1.0, 1.0)) == Interval(1.0, 4.0)


def test_sums_are_divided_and_not_ratios_averaged() -> None:
    """The long prompt decides: between 1 and 10 / 9.1, nowhere near the mean of the ratios, 5.5."""
    found = resampled_interval(once(*[9.0] * 50, 1.0), once(*[9.0] * 50, 0.1))
    assert found is not None
    assert 1.0 <= found.low <= found.high < 1.02


def test_a_seed_gives_one_interval() -> None:
    over, under = once(*(float(i * i % 17 + 1) for i in range(20))), once(*[1.0] * 20)
    assert resampled_interval(over, under, 3) == resampled_interval(over, under, 3)
    assert resampled_interval(over, under, 3) != resampled_interval(over, under, 4)


def test_many_prompts_are_drawn_in_parts() -> None:
    """480 prompts with 5 repeats: as narrow as their number says, with no part of the resamples the same."""
    rng = np.random.default_rng(1)
    found = resampled_interval(rng.normal(2, 0.2, (480, 5)).tolist(), np.ones((480, 5)).tolist())
    assert found is not None
    assert 1.97 < found.low < 1.995 < 2.005 < found.high < 2.03


def test_few_prompts_widen_the_interval_as_students_t_asks() -> None:
    """Four prompts: t of three degrees is 3.182, and resamples vary by the root of 3/4 too little. One prompt's repeats
    and hundreds of prompts are left as they are."""
    over, under = once(1.0, 1.1, 0.9, 1.2), once(1.0, 1.0, 1.0, 1.0)
    narrow, wide = resampled_interval(over, under), ratio_interval(over, under)
    assert narrow is not None
    assert wide is not None
    factor = 3.182 / 1.96 * (4 / 3) ** 0.5
    assert math.log(wide.high / 1.05) == pytest.approx(factor * math.log(narrow.high / 1.05))
    assert math.log(wide.low / 1.05) == pytest.approx(factor * math.log(narrow.low / 1.05))
    assert ratio_interval([[1.0, 2.0, 3.0]], [[1.0] * 3]) == Interval(1.0, 3.0)
    assert ratio_interval(once(*[2.0] * 9), once(*[1.0] * 9)) == Interval(2.0, 2.0)


@pytest.mark.parametrize(
    ("prompts", "repeats", "truth", "by_prompt", "by_repeat"),
    [
        (4, 5, 1.3, 0.2, 0.02),
        (40, 1, 1.0, 0.05, 0.0),
        (20, 3, 1.6, 0.1, 0.05),
        (12, 5, 1.0, 0.06, 0.03),
        (1, 9, 1.6, 0.0, 0.05),
    ],
)
def test_intervals_hold_the_truth_about_as_often_as_they_say(
    prompts: int, repeats: int, truth: float, by_prompt: float, by_repeat: float
) -> None:
    """Ends swapped, a level of 50 %, a ratio upside down, or only one of the two noises seen: far fewer would. 1.0 is
    plain next to itself. Prompts differ in length, in their own ratio, and each run from the next."""
    rng, held, trials = np.random.default_rng(5), 0, 200
    for trial in range(trials):
        length = rng.uniform(1, 4, (prompts, 1)) * np.ones(repeats)
        own = truth * rng.normal(1, by_prompt, (prompts, 1)) * rng.normal(1, by_repeat, (prompts, repeats))
        under = length * rng.normal(1, by_repeat, (prompts, repeats))
        found = ratio_interval((length * own).tolist(), under.tolist(), trial)
        assert found is not None
        held += found.low <= truth <= found.high
    assert 0.88 <= held / trials <= 0.99
