"""What another machine is expected to do, in numbers that can be reckoned by hand. No model, no clock."""

from __future__ import annotations

import pytest

from selfspec.bench.prediction import (
    Fit,
    Measured,
    Speeds,
    at_costs,
    fit,
    fit_profile,
    parse_speeds,
    predict,
    predicted_profile,
    prompt_operations,
    round_seconds,
)
from selfspec.bench.rows import PLAIN, Answers
from selfspec.bench.runs import PromptRun, Proposal
from selfspec.bench.work import Work, Works
from selfspec.errors import UsageError
from selfspec.runtime.costs import MeasuredPath, Profile

# 100 bytes and 10 operations a row, of which the head is 20 and 2, half of it hot; the exit has half of the layers.
WORKS = Works(Work(100, 10), Work(20, 2), Work(10, 1), {3: Work(50, 5)})
EXIT = "early-exit:layer=3"
HERE, THERE = Speeds(10.0, 10.0), Speeds(5.0, 20.0)


def profile(here: Speeds, reading: float = 1.0, computing: float = 2.0, overhead: float = 3.0) -> Profile:
    """Passes of exactly this cost: here 10 s to read and 2 s a row, and 3 s."""
    steps = {m: reading * 100 / here.bandwidth + computing * m * 10 / here.rate + overhead for m in (1, 2, 4)}
    draft = reading * 50 / here.bandwidth + computing * 5 / here.rate + overhead
    head = reading * 10 / here.bandwidth + computing * 1 / here.rate
    return Profile(steps, {EXIT: MeasuredPath(draft, draft - head, (0.9, 0.2), (True, False))}, None)


def run(seconds: float, tokens: int, *proposals: Proposal) -> PromptRun:
    return PromptRun(tokens, seconds, 0, None, (7,) * (tokens + 1), 0.5, (), proposals, 0.0, 3)


NOTHING, COPY = Proposal(None, 0, 0), Proposal(None, 0, 3)


@pytest.mark.parametrize(
    ("text", "bandwidth", "rate"), [("20,100", 20e9, 100e9), (" 0.5 , 1e3", 0.5e9, 1e12), ("0.001,1000000", 1e6, 1e15)]
)
def test_speeds_are_written_in_thousands_of_millions(text: str, bandwidth: float, rate: float) -> None:
    assert parse_speeds(text) == Speeds(bandwidth, rate)


@pytest.mark.parametrize(
    "text",
    ["", "20", "20,", ",5", "1,2,3", "0,5", "5,0", "-1,5", "5,-1", "a,b", "inf,5", "5,inf", "nan,5", "5,nan", "1e300,5",
     "5,1e-300", "20;100"],
)  # fmt: skip
def test_other_words_are_refused_in_one_sentence(text: str) -> None:
    with pytest.raises(UsageError, match=r"^--predict .*: it takes a machine's .* 20,100\.$") as caught:
        parse_speeds(text)
    assert "\n" not in str(caught.value)


def test_a_pass_reads_once_and_computes_for_each_row() -> None:
    """100 bytes at 5 a second, half as fast as that: 40 s. 3 x 10 operations at 20 a second: 1.5 s. And .25 s."""
    found = Fit(2.0, 1.0, 0.25)
    assert found.seconds(Work(100, 10), 3, THERE) == 40 + 1.5 + 0.25
    assert found.part_seconds(Work(100, 10), 3, THERE) == 40 + 1.5


def test_factors_of_passes_made_by_them_are_found() -> None:
    found = fit_profile(profile(HERE), WORKS, HERE)
    assert (found.reading, found.computing, found.overhead) == pytest.approx((1.0, 2.0, 3.0))


@pytest.mark.parametrize("missing", range(3))
def test_a_factor_that_plays_no_part_is_zero(missing: int) -> None:
    factors = [1.0, 2.0, 3.0]
    factors[missing] = 0.0
    found = fit_profile(profile(HERE, *factors), WORKS, HERE)
    assert (found.reading, found.computing, found.overhead) == pytest.approx(tuple(factors), abs=1e-9)


def test_no_factor_is_negative() -> None:
    """Passes that get faster with rows would have a negative one: two rows are free, so that nothing is computed."""
    found = fit([(Work(100, 10), 1, 12.0), (Work(100, 10), 2, 11.0), (Work(50, 10), 1, 6.0)], HERE)
    assert found.computing == 0.0
    assert found.overhead == pytest.approx(0.0, abs=0.6)
    assert found.reading == pytest.approx(1.1, abs=0.1)


def test_long_passes_count_no_more_than_short_ones() -> None:
    """The same pass took 10 s and 20 s: 12 is a fifth more and two fifths less. By absolute errors it were 15."""
    found = fit([(Work(100, 10), 1, 10.0), (Work(100, 10), 1, 20.0)], HERE)
    assert found.seconds(Work(100, 10), 1, HERE) == pytest.approx(12.0)


def test_a_profile_elsewhere_costs_what_passes_cost_there() -> None:
    """There 20 s to read and 1 s a row, and the same 3 s; what was drafted is not another's."""
    here = profile(HERE)
    found = predicted_profile(here, WORKS, Fit(1.0, 2.0, 3.0), THERE)
    assert found.step_seconds == pytest.approx({1: 24.0, 2: 25.0, 4: 27.0})
    assert found.paths[EXIT].seconds == pytest.approx(10 + 0.5 + 3)
    assert found.paths[EXIT].shared_seconds == pytest.approx(10 + 0.5 + 3 - (2.0 + 0.1))
    assert found.paths[EXIT].confidences == here.paths[EXIT].confidences
    assert found.paths[EXIT].hits == here.paths[EXIT].hits


@pytest.mark.parametrize(
    ("proposal", "seconds"),
    [
        (NOTHING, 15.0),
        (Proposal(None, 0, 1), 17.0),
        (COPY, 21.0),
        (Proposal(None, 0, 2), 19.0),  # between the measured 2 and 4 rows
        (Proposal(EXIT, 2, 2), 2 * 9.0 + 7.8 + 7.2 / 15 * 19),  # the last token has the prefix (9 less 1.2) to run
        (Proposal(EXIT, 2, 1), 2 * 9.0 + 7.2 / 15 * 17),  # a dropped token's step has run it
        (Proposal(EXIT, 0, 0), 15.0),
    ],
)
def test_rounds_cost_what_their_passes_do(proposal: Proposal, seconds: float) -> None:
    assert round_seconds(profile(HERE), proposal) == pytest.approx(seconds)


def test_answers_keep_their_rounds_and_tokens() -> None:
    answers = [Answers("qa", {PLAIN: [run(1.0, 2, NOTHING, NOTHING)], "auto": [run(9.0, 5, COPY, NOTHING)]})]
    (found,) = at_costs(answers, profile(HERE))
    assert [r.seconds for r in found.runs[PLAIN]] == [30.0]
    assert [(r.seconds, r.tokens, r.proposals) for r in found.runs["auto"]] == [(36.0, 5, (COPY, NOTHING))]


def test_a_prompt_needs_the_head_once() -> None:
    assert prompt_operations(WORKS, 100) == 100 * 8 + 2


def test_everything_that_was_measured_is_predicted_with_its_error() -> None:
    """Plain steps take 15 s here and 24 s there; the measured ones took 12.5 s. A round of three copied tokens takes
    21 s here and 27 s there."""
    plain, drafted = run(50.0, 4, *[NOTHING] * 4), run(25.0, 4, COPY)
    answers = [Answers("qa", {PLAIN: [plain], "prompt-lookup": [drafted]})]
    found = predict(Measured(profile(HERE), (100, 1.0), (8, 0.08), answers), WORKS, HERE, THERE)
    assert (found.there, found.here) == (THERE, HERE)
    rows = {row.name: (row.there, row.here, row.measured, row.error) for row in found.rows}
    assert list(rows) == [
        "pp100 tok/s", "tg8 tok/s", "plain tok/s by the profile", "V(2)", "V(4)", "c of early-exit:layer=3",
        "prompt-lookup speed-up",
    ]  # fmt: skip
    assert rows["pp100 tok/s"] == pytest.approx((2000 / 802, 1000 / 802, 1.0, 1000 / 802 - 1))
    assert rows["tg8 tok/s"] == pytest.approx((1 / 24, 1 / 15, 0.08, 12.5 / 15 - 1))
    assert rows["plain tok/s by the profile"] == pytest.approx((1 / 24, 1 / 15, 1 / 15, 0.0), abs=1e-9)
    assert rows["V(4)"] == pytest.approx((27 / 24, 21 / 15, 21 / 15, 0.0), abs=1e-9)
    assert rows["c of early-exit:layer=3"] == pytest.approx((13.5 / 24, 9 / 15, 9 / 15, 0.0), abs=1e-9)
    assert rows["prompt-lookup speed-up"] == pytest.approx((96 / 27, 60 / 21, 2.0, 60 / 42 - 1))


def test_what_was_not_timed_is_not_predicted() -> None:
    found = predict(Measured(profile(HERE), None, None, []), WORKS, HERE, THERE)
    assert [row.name for row in found.rows] == ["plain tok/s by the profile", "V(2)", "V(4)", "c of early-exit:layer=3"]
