"""What a conversation shows of drafts, on paper machines: hand-written costs, hits and misses."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.runtime.costs import Profile
from selfspec.runtime.measure import ROW_COUNTS
from selfspec.runtime.rates import AcceptanceRate, ArmRate, Choice, CostModel, best_length


def machine(slope: float) -> Profile:
    """V(m) = 1 + slope (m - 1), in units of a one-row pass that takes 10 ms."""
    return Profile({m: 0.01 * (1 + slope * (m - 1)) for m in ROW_COUNTS}, {}, None)


def test_the_best_length_by_hand() -> None:
    """Forgetting the target's own token, or adding rates instead of multiplying them."""
    assert best_length([], lambda rows: rows) == Choice(0, 0.0)
    for rates, length, tokens in (([0.5], 1, 1.5), ([0.5, 0.5], 2, 1.75), ([1, 1, 1], 3, 4), ([0, 1], 1, 1)):
        assert best_length(rates, lambda rows: 1.0) == Choice(length, tokens)
    assert best_length([0.8, 0.5], lambda rows: {2: 1.2, 3: 2.0}[rows]) == Choice(1, 1.8 / 1.2)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=15), st.lists(st.floats(0, 0.5), min_size=16, max_size=16))
def test_the_search_for_a_length_ends_early_only_where_nothing_better_follows(
    rates: list[float], steps: list[float]
) -> None:
    def cost(rows: int) -> float:
        return 1 + sum(steps[:rows])

    def promise(n: int) -> float:
        return (1 + sum(math.prod(rates[: i + 1]) for i in range(n))) / cost(n + 1)

    assert best_length(rates, cost).rate == pytest.approx(max(promise(n + 1) for n in range(len(rates))))


def test_costs_are_interpolated_between_measured_row_counts_and_flat_beyond() -> None:
    """V(10) from V(8) and V(12); a step function would make nine rows look as cheap as eight."""
    profile = Profile({1: 2.0, 2: 3.0, 8: 6.0, 12: 14.0}, {}, None)
    costs = CostModel(profile)
    assert [costs.verify(m) for m in (1, 2, 5, 8, 9, 10, 12, 16)] == [1, 1.5, 2.25, 3, 4, 5, 7, 7]
    assert [profile.verify_cost(m) for m in (1, 2, 5, 8, 9, 10, 12, 16)] == [1, 1.5, 2.25, 3, 4, 5, 7, 7]


def test_seconds_as_passes_are_bounded() -> None:
    """One preempted round must not look like a bad arm."""
    costs = CostModel(machine(0.5))
    assert costs.passes(0.015, 1.2) == pytest.approx(1.5)
    assert costs.passes(9.0, 1.2) == pytest.approx(2.4)


def test_an_arms_rate_begins_at_its_prior_and_follows_what_it_makes() -> None:
    """Means of ratios instead of a ratio of sums would count a cheap round like a dear one."""
    rate = ArmRate(1.5)
    assert rate.value == pytest.approx(1.5)
    rate.add(4, 2.0)
    assert rate.value == pytest.approx((0.97 * 30 + 4) / (0.97 * 20 + 2))
    for _ in range(500):
        rate.add(1, 2.0)
    assert rate.value == pytest.approx(0.5, rel=1e-3)


def test_costs_drift_towards_what_rounds_really_take() -> None:
    """A profile of a quiet machine must not rule a busy one for ever; one preempted round must not rule at all."""
    costs = CostModel(machine(0.5))
    costs.observe(2, 0.025)
    assert costs.verify(2) == pytest.approx(1.5 + 0.05 * (2.5 - 1.5))
    costs = CostModel(machine(0.5))
    costs.observe(2, 100.0)
    assert costs.verify(2) == pytest.approx(1.5 + 0.05 * 1.5)
    costs.observe(11, 100.0)  # never measured: nothing to correct
    assert costs.verify(11) == pytest.approx(6)
    for _ in range(300):
        costs.observe(2, 0.012)
    assert costs.verify(2) == pytest.approx(1.2, rel=1e-3)


def test_corrections_leave_the_profile_as_it_was() -> None:
    """The profile is shared by all conversations of a model."""
    profile = machine(0.5)
    CostModel(profile).observe(2, 1.0)
    assert profile == machine(0.5)


def test_a_rate_starts_at_its_prior_and_learns_without_forgetting_at_once() -> None:
    """A single miss must not end a good arm, and a hundred of them must."""
    rate = AcceptanceRate(0.8)
    assert rate.value == pytest.approx(0.8)
    rate.add(False)
    assert 0.7 < rate.value < 0.8
    for _ in range(200):
        rate.add(False)
    assert rate.value < 0.03
    for _ in range(200):
        rate.add(True)
    assert rate.value > 0.97


@given(st.floats(0, 1), st.lists(st.booleans(), max_size=300))
def test_a_rate_stays_a_probability(prior: float, results: list[bool]) -> None:
    """Hits and trials decayed differently drift apart, above one."""
    rate = AcceptanceRate(prior)
    for result in results:
        rate.add(result)
        assert 0 <= rate.value <= 1 + 1e-12
