"""Logits to tokens, by hand: temperature, top-p, draws at both ends, and randomness keyed by position."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import ArtifactError, UsageError
from selfspec.runtime.sampling import Floats, Sampling, Stream, choose, distribution, draw, largest, uniform


def floats(*values: float) -> Floats:
    return np.asarray(values, dtype=np.float32)


def logits_of(*probs: float) -> Floats:
    return floats(*(math.log(p) if p else -1e4 for p in probs))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8), Sampling(0.8, top_p=0.5), Sampling(1.0, top_k=2)])
def test_logits_that_are_no_numbers_are_an_error(bad: float, sampling: Sampling) -> None:
    """Damaged weights would say token 0 for ever, or fail in the middle of the arithmetic."""
    logits = np.asarray([0.0, 1.0, bad, 2.0], dtype=np.float32)
    with pytest.raises(ArtifactError, match="not finite"):
        choose(logits, sampling, 0)


def test_temperature_one_is_the_softmax() -> None:
    """A temperature applied twice, or to probabilities."""
    np.testing.assert_allclose(distribution(logits_of(0.5, 0.3, 0.2), Sampling(1.0)), [0.5, 0.3, 0.2], rtol=1e-6)


def test_temperature_divides_logits() -> None:
    """Half the temperature squares the odds: 4:1 becomes 16:1."""
    np.testing.assert_allclose(distribution(logits_of(0.8, 0.2), Sampling(0.5)), [16 / 17, 1 / 17], rtol=1e-6)
    np.testing.assert_allclose(distribution(logits_of(0.8, 0.2), Sampling(2.0)), [2 / 3, 1 / 3], rtol=1e-6)


def test_large_logits_do_not_overflow() -> None:
    """exp(1000) is infinite; logits of real models reach hundreds at low temperatures."""
    np.testing.assert_allclose(distribution(floats(1000, 1000, 900), Sampling(0.1)), [0.5, 0.5, 0.0], atol=1e-12)


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-307, 5e-324])
def test_a_tiny_temperature_is_greedy(temperature: float) -> None:
    """Dividing before the maximum is subtracted gives inf - inf = nan, and nan draws any token."""
    probs = distribution(floats(3, 90, -7), Sampling(temperature))
    np.testing.assert_array_equal(probs, [0.0, 1.0, 0.0])


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (1.0, [0.1, 0.4, 0.2, 0.3]),
        (0.95, [0.1, 0.4, 0.2, 0.3]),
        (0.85, [0.0, 4 / 9, 2 / 9, 3 / 9]),
        (0.6, [0.0, 4 / 7, 0.0, 3 / 7]),
        (0.39, [0.0, 1.0, 0.0, 0.0]),
        (1e-9, [0.0, 1.0, 0.0, 0.0]),
    ],
)
def test_top_p_keeps_the_smallest_set_that_reaches_it(top_p: float, expected: list[float]) -> None:
    """The token that crosses the bound belongs to the set; and at least one token always stays."""
    found = distribution(logits_of(0.1, 0.4, 0.2, 0.3), Sampling(1.0, top_p))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_set_that_reaches_top_p_exactly_is_enough() -> None:
    """Four equal tokens and top-p 0.5: two of them, the lower ids first."""
    np.testing.assert_array_equal(distribution(floats(1, 1, 1, 1), Sampling(1.0, 0.5)), [0.5, 0.5, 0, 0])


def test_top_p_looks_at_the_distribution_after_temperature() -> None:
    """Order matters: at temperature 0.5 the odds 6:3:1 are 36:9:1, and 0.7 is reached by the first alone."""
    np.testing.assert_array_equal(distribution(logits_of(0.6, 0.3, 0.1), Sampling(0.5, 0.7)), [1.0, 0.0, 0.0])


@given(
    st.lists(st.floats(-30, 30, width=32), min_size=1, max_size=20), st.floats(0.05, 3), st.floats(0.01, 1),
)  # fmt: skip
def test_a_distribution_is_one(values: list[float], temperature: float, top_p: float) -> None:
    """Probabilities that do not sum to one, are negative, or leave out the best token."""
    logits = np.asarray(values, dtype=np.float32)
    probs = distribution(logits, Sampling(temperature, top_p))
    assert probs.dtype == np.float64
    assert np.isclose(probs.sum(), 1)
    assert (probs >= 0).all()
    assert probs[logits.argmax()] > 0


def test_draw_returns_the_token_at_the_quantile() -> None:
    """Off by one at the edges of intervals: a half-open interval belongs to the token it begins with."""
    probs = np.asarray([0.25, 0.5, 0.25])
    found = [draw(probs, u) for u in (0.0, 0.24, 0.25, 0.5, 0.74, 0.75, 0.99)]
    assert found == [0, 0, 1, 1, 1, 2, 2]


LAST = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize("u", [0.0, 5e-324, 0.5, LAST])
@pytest.mark.parametrize(
    "probs",
    [[0, 0, 1, 0, 0], [0, 0.1, 0, 0.9, 0], [0, 1e-320, 0, 1 - 1e-16, 0], [0, 1e-17, 1.0, 1e-17, 0, 0], [0, 5e-324, 0]],
)
def test_draw_never_returns_a_token_of_probability_zero(probs: list[float], u: float) -> None:
    """Searching from the wrong side gives token 0 at u = 0, rounding gives the last one at u → 1."""
    assert probs[draw(np.asarray(probs), u)] > 0


@given(st.lists(st.sampled_from([0.0, 1e-300, 0.1, 0.3, 1.0, 7.0]), min_size=1, max_size=30), st.floats(0, LAST))
def test_draw_never_returns_a_token_of_weight_zero_whatever_the_weights(weights: list[float], u: float) -> None:
    """The residual of a rejection is not normalised: draw must not rely on a sum of one."""
    if sum(weights) > 0:
        assert weights[draw(np.asarray(weights), u)] > 0


def test_greedy_takes_the_lowest_id_of_a_tie() -> None:
    """A tie broken by memory order or by a random draw would make drafts and verification disagree."""
    assert choose(floats(1, 3, 3, 2), Sampling(), 5) == 1


def test_a_warm_choice_is_the_draw_with_the_target_uniform_of_the_position() -> None:
    """Drafts, acceptance and residuals have streams of their own; sharing one would correlate them."""
    logits, sampling = logits_of(*[0.05] * 20), Sampling(1.0, seed=3)
    for position in range(20):
        u = uniform(3, position, Stream.TARGET)
        assert choose(logits, sampling, position) == draw(distribution(logits, sampling), u)


def test_uniforms_depend_on_nothing_but_their_arguments() -> None:
    """A generator with a state would make the text depend on how many draws came before."""
    first = [uniform(7, p, s) for p in range(20) for s in Stream]
    again = [uniform(7, p, s) for p in range(20) for s in Stream]
    assert first == again
    assert len(set(first)) == len(first)
    assert all(0 <= u < 1 for u in first)
    assert uniform(8, 0, Stream.TARGET) != uniform(7, 0, Stream.TARGET)
    assert uniform(2**64 - 1, 2**31, Stream.RESIDUAL) != uniform(0, 2**31, Stream.RESIDUAL)


def test_uniforms_are_uniform_and_independent() -> None:
    """Counters that overlap show as equal or correlated columns: of streams, positions or seeds."""
    n = 3000
    columns = {
        "target": [uniform(1, p, Stream.TARGET) for p in range(n)],
        "draft": [uniform(1, p, Stream.DRAFT) for p in range(n)],
        "accept": [uniform(1, p, Stream.ACCEPT) for p in range(n)],
        "next position": [uniform(1, p + 1, Stream.TARGET) for p in range(n)],
        "next seed": [uniform(2, p, Stream.TARGET) for p in range(n)],
        "over seeds": [uniform(p, 9, Stream.TARGET) for p in range(n)],
    }
    table = np.asarray(list(columns.values()))
    correlation = np.corrcoef(table) - np.eye(len(table))
    assert np.abs(correlation).max() < 4.5 / math.sqrt(n)
    for name, column in columns.items():
        counts = np.histogram(column, bins=10, range=(0, 1))[0]
        chi_square = ((counts - n / 10) ** 2 / (n / 10)).sum()
        assert chi_square < 33, name  # 9 degrees of freedom: p = 1e-4


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"temperature": math.nan}, "`temperature` nan"),
        ({"temperature": math.inf}, "`temperature` inf"),
        ({"temperature": -0.1}, "`temperature` -0.1"),
        ({"top_p": 0.0}, "`top_p` 0.0"),
        ({"top_p": 1.1}, "`top_p` 1.1"),
        ({"top_p": math.nan}, "`top_p` nan"),
        ({"seed": -1}, "`seed` -1"),
        ({"seed": 2**64}, f"`seed` {2**64}"),
        ({"seed": 1.5}, "`seed` 1.5: it must be a whole number"),
        ({"top_k": -1}, "`top_k` -1"),
        ({"top_k": 2.0}, "`top_k` 2.0: it must be a whole number"),
        ({"top_k": True}, "`top_k` True"),
        ({"min_p": -0.1}, "`min_p` -0.1"),
        ({"min_p": 1.01}, "`min_p` 1.01"),
        ({"min_p": math.nan}, "`min_p` nan"),
        ({"repetition_penalty": 0.0}, "`repetition_penalty` 0.0"),
        ({"repetition_penalty": math.inf}, "`repetition_penalty` inf"),
        ({"presence_penalty": 2.1}, "`presence_penalty` 2.1"),
        ({"presence_penalty": math.nan}, "`presence_penalty` nan"),
        ({"presence_penalty": "x"}, "`presence_penalty` 'x': it must be a number"),
    ],
)
def test_impossible_settings_are_refused_by_name(arguments: dict[str, Any], named: str) -> None:
    """A nan temperature would sample from nan."""
    with pytest.raises(UsageError, match=named) as caught:
        Sampling(**arguments)
    assert [caught.value.parameter] == list(arguments)


def sets(*pairs: tuple[Sampling, set[int]]) -> None:
    logits = logits_of(0.1, 0.4, 0.2, 0.3)
    for sampling, expected in pairs:
        assert set(np.flatnonzero(distribution(logits, sampling)).tolist()) == expected, sampling


def test_top_k_keeps_the_k_most_likely() -> None:
    """One too many or too few, or the least likely ones; and what is kept is renormalised."""
    sets((Sampling(1.0, top_k=1), {1}), (Sampling(1.0, top_k=3), {1, 2, 3}), (Sampling(1.0, top_k=9), {0, 1, 2, 3}))
    found = distribution(logits_of(0.1, 0.4, 0.2, 0.3), Sampling(1.0, top_k=2))
    np.testing.assert_allclose(found, [0, 4 / 7, 0, 3 / 7], rtol=1e-6)


def test_top_k_keeps_all_that_tie_with_the_last_as_hugging_face_does() -> None:
    """Dropping one of two equal tokens prefers low ids for no reason of the model's."""
    np.testing.assert_allclose(distribution(floats(2, 1, 1, 0), Sampling(1.0, top_k=2)) > 0, [1, 1, 1, 0])


def test_min_p_is_relative_to_the_most_likely() -> None:
    """Read as an absolute bound, 0.6 would leave nothing here."""
    sets((Sampling(1.0, min_p=0.6), {1, 3}), (Sampling(1.0, min_p=0.3), {1, 2, 3}), (Sampling(1.0, min_p=1.0), {1}))


def test_top_p_looks_at_what_top_k_left_and_min_p_at_the_temperature() -> None:
    """Of the three best, 4/9 and 3/9 reach 0.7 together; of all four they do not reach 0.75."""
    sets((Sampling(1.0, 0.75, top_k=3), {1, 3}), (Sampling(1.0, 0.75), {1, 2, 3}))
    sets((Sampling(2.0, min_p=0.6), {1, 2, 3}), (Sampling(0.5, min_p=0.5), {1, 3}))


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=600), st.floats(0.01, 1), st.sampled_from([0, 1, 5, 200]),
)  # fmt: skip
def test_the_nucleus_is_that_of_a_full_sort(values: list[int], top_p: float, top_k: int) -> None:
    """Looking at the largest few only must not change the set, ties and sums of many small ones included."""
    logits = np.asarray(values, dtype=np.float32)
    base = distribution(logits, Sampling(2.0, top_k=top_k))
    order = np.argsort(-base, kind="stable")
    expected = order[(np.cumsum(base[order]) - base[order] < top_p) & (base[order] > 0)]
    found = np.flatnonzero(distribution(logits, Sampling(2.0, top_p, top_k=top_k)))
    assert abs(len(found) - len(expected)) <= 1  # a sum that meets top_p to the last bit may fall on either side
    assert set(found) <= set(order[: max(len(found), len(expected))].tolist())


@given(st.integers(0, 2**32), st.sampled_from([0, 3, 60]), st.sampled_from([0.4, 1.0]), st.sampled_from([0.0, 0.05]))
def test_a_choice_is_a_draw_from_the_whole_distribution(seed: int, top_k: int, top_p: float, min_p: float) -> None:
    """Drawing among a few candidates only must give the token that the whole vocabulary would."""
    logits = np.random.default_rng(seed).normal(0, 3, 300).astype(np.float32)
    sampling = Sampling(0.9, top_p, seed, top_k, min_p)
    expected = draw(distribution(logits, sampling), uniform(seed, 4, Stream.TARGET))
    assert choose(logits, sampling, 4) == expected


def test_the_largest_come_best_first_and_of_equals_the_lower_id() -> None:
    assert largest(floats(1, 5, 3, 5, 3), 4).tolist() == [1, 3, 2, 4]
    assert largest(floats(1, 5), 7).tolist() == [1, 0]


def test_options_that_greedy_decoding_does_not_look_at_are_named() -> None:
    assert Sampling(top_k=3, top_p=0.5, min_p=0.1).without_effect == ("top_k", "top_p", "min_p")
    assert Sampling(0.5, 0.5, top_k=3).without_effect == Sampling(repetition_penalty=2.0).without_effect == ()
