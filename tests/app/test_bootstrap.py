"""Intervals of speed-ups: cases that can be reckoned by hand, and how often they hold the truth."""

from __future__ import annotations

import numpy as np
import pytest

from selfspec.bootstrap import Interval, ratio_interval


def test_one_prompt_has_no_interval() -> None:
    assert ratio_interval([], []) is None
    assert ratio_interval([2.0], [1.0]) is None


def test_a_constant_ratio_has_no_width_however_prompts_differ() -> None:
    """Pairs torn apart would give a wide one."""
    found = ratio_interval([2.0, 20.0, 6.0], [1.0, 10.0, 3.0])
    assert found == Interval(2.0, 2.0)


def test_two_prompts_reach_from_one_ratio_to_the_other() -> None:
    """A quarter of all resamples is one prompt twice: both ends lie beyond 2.5 %."""
    found = ratio_interval([1.0, 3.0], [1.0, 1.0])
    assert found == Interval(1.0, 3.0)


def test_the_level_is_95_percent() -> None:
    """One prompt of three is drawn three times in 3.7 % of the resamples: above 2.5 %, below 5 %. One of four is drawn
    four times in 0.4 %, and three times or more in 5.1 %."""
    assert ratio_interval([1.0, 1.0, 4.0], [1.0] * 3) == Interval(1.0, 4.0)
    assert ratio_interval([1.0, 1.0, 1.0, 5.0], [1.0] * 4) == Interval(1.0, 4.0)


def test_sums_are_divided_and_not_ratios_averaged() -> None:
    """The long prompt decides: between 1 and 10 / 9.1, nowhere near the mean of the ratios, 5.5."""
    over, under = [9.0] * 50 + [1.0], [9.0] * 50 + [0.1]
    found = ratio_interval(over, under)
    assert found is not None
    assert 1.0 <= found.low <= found.high < 1.02


def test_a_seed_gives_one_interval() -> None:
    over, under = [float(i * i % 17 + 1) for i in range(20)], [1.0] * 20
    assert ratio_interval(over, under, 3) == ratio_interval(over, under, 3)
    assert ratio_interval(over, under, 3) != ratio_interval(over, under, 4)


@pytest.mark.parametrize("truth", [1.0, 1.6])
def test_intervals_hold_the_truth_about_as_often_as_they_say(truth: float) -> None:
    """Ends swapped, a level of 50 %, or a ratio upside down: far fewer would. 1.0 is plain next to itself."""
    rng, held, trials = np.random.default_rng(5), 0, 100
    for trial in range(trials):
        under = rng.uniform(1, 4, 40)
        found = ratio_interval((truth * under * rng.normal(1, 0.05, 40)).tolist(), under.tolist(), trial)
        assert found is not None
        assert found.high - found.low < 0.1
        held += found.low <= truth <= found.high
    assert 85 <= held < trials
