"""The controller on paper machines: what it drafts follows from costs and observed acceptance and nothing else."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.runtime.controller import AcceptanceRate, ArmRate, AutoDrafter, Choice, CostModel, best_length
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters import early_exit
from selfspec.runtime.drafters.base import Draft, Prefix, Round
from selfspec.runtime.profile import ROW_COUNTS, ExitProfile, Profile


def machine(slope: float, exits: dict[int, float] | None = None, agreement: dict[int, float] | None = None) -> Profile:
    """V(m) = 1 + slope (m - 1), in units of a one-row pass that takes 10 ms; a head that costs nothing. Exits are
    equally sure of every token, and right as often as ``agreement`` says."""
    unit = 0.01
    found = {}
    for k, cost in (exits or {}).items():
        share = (agreement or {})[k]
        hits = tuple(int((i + 1) * share) > int(i * share) for i in range(200))
        found[k] = ExitProfile(unit * cost, (0.95,) * len(hits), hits)
    return Profile({m: unit * (1 + slope * (m - 1)) for m in ROW_COUNTS}, 0.0, found, None)


def talk(*tokens: int) -> Conversation:
    return cast(Conversation, SimpleNamespace(tokens=list(tokens)))


def endless(length: int = 400) -> Conversation:
    """A text that repeats itself: lookup always has a long match."""
    return talk(*[i % 5 for i in range(length)])


def judge(auto: AutoDrafter, profile: Profile, draft: Draft, accepted: int) -> float:
    """Report a round with ``accepted`` hits, taking what the profile says; returns that in one-row passes."""
    rows = len(draft.tokens) + 1
    seconds = profile.step_seconds[1] * profile.verify_cost(rows)
    auto.observe(Round((0,) * (accepted + 1), len(draft.tokens), accepted, seconds))
    return profile.verify_cost(rows)


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
    profile = Profile({1: 2.0, 2: 3.0, 8: 6.0, 12: 14.0}, 0.0, {}, None)
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


def test_it_never_drafts_where_verification_is_steep_but_for_rare_probes() -> None:
    """V(2) = 2 means that no draft can pay, however right it is; what is tried stays within half a percent."""
    profile, conversation = machine(1.0), endless()
    auto, spent, extra = AutoDrafter(profile), 0.0, 0.0
    for _ in range(3000):
        draft = auto.propose(conversation, 15)
        assert len(draft.tokens) <= 1
        extra += profile.verify_cost(len(draft.tokens) + 1) - 1
        spent += judge(auto, profile, draft, 0)
        assert extra <= 0.005 * spent + 1e-9
    assert extra > 0, "an arm that is never tried is never learnt about"


def test_it_drafts_from_the_first_round_where_verification_is_flat() -> None:
    """A long match on a machine where rows are free: not drafting is the expensive choice."""
    profile, conversation = machine(0.02), endless()
    auto = AutoDrafter(profile)
    draft = auto.propose(conversation, 15)
    assert len(draft.tokens) >= 8
    assert list(draft.tokens) == [i % 5 for i in range(400, 400 + len(draft.tokens))]


def test_a_longer_match_is_trusted_with_a_longer_draft() -> None:
    """Match length ignored: one repeated token is right a quarter of the time, nine in a row almost always."""
    profile = machine(0.25)
    short, long = talk(1, 2, 3, 4, 5, 6, 7, 8, 1), talk(*range(1, 30), *range(1, 12))
    assert len(AutoDrafter(profile).propose(short, 15).tokens) < len(AutoDrafter(profile).propose(long, 15).tokens)


def test_what_is_rejected_again_and_again_is_given_up_and_what_is_accepted_comes_back() -> None:
    """Acceptance never learnt, or learnt for ever."""
    profile, conversation = machine(0.25), endless()
    auto = AutoDrafter(profile)
    lengths = []
    for _ in range(120):
        draft = auto.propose(conversation, 15)
        lengths.append(len(draft.tokens))
        judge(auto, profile, draft, 0)
    assert lengths[0] > 3
    assert sum(lengths[-40:]) <= 2
    for _ in range(30_000):  # probes are rare; each of these is right
        draft = auto.propose(conversation, 15)
        judge(auto, profile, draft, len(draft.tokens))
        if len(draft.tokens) > 3:
            return
    pytest.fail("an arm that became right was never taken up again")


def test_positions_behind_the_first_miss_are_not_learnt_from() -> None:
    """They were never judged: seven hits and one miss of fifteen drafted are seven of eight, not seven of fifteen."""
    profile, conversation = machine(0.02), endless()
    auto = AutoDrafter(profile)
    for _ in range(80):
        draft = auto.propose(conversation, 15)
        judge(auto, profile, draft, min(7, len(draft.tokens)))
    assert len(auto.propose(conversation, 15).tokens) >= 10


@given(st.integers(0, 20), st.integers(1, 15), st.floats(0, 1.5))
def test_it_never_drafts_more_than_it_may(max_tokens: int, own_limit: int, slope: float) -> None:
    """``max_tokens`` 0 at the last token, or ``--num-draft-tokens``."""
    auto = AutoDrafter(machine(slope), own_limit)
    for _ in range(5):
        draft = auto.propose(endless(60), max_tokens)
        assert len(draft.tokens) <= min(max_tokens, own_limit)
        judge(auto, machine(slope), draft, 0)


class FakeExit:
    """Stands in for EarlyExit: drafts nines, as many as it may."""

    def __init__(
        self, exit_layer: int, num_draft_tokens: int, *, rule: object, full_head: bool, experts: int | None
    ) -> None:
        self.exit_layer = exit_layer
        self._limit = num_draft_tokens
        self.steps = 0

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        self.steps = count = min(max_tokens, self._limit)
        return Draft((9,) * count, None, Prefix(self.exit_layer, np.zeros((count, 1), dtype=np.float32)))

    def observe(self, result: Round) -> None:
        """The controller must pass it on."""


@pytest.fixture
def fake_exit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec.runtime.controller.EarlyExit", FakeExit)


@pytest.mark.usefixtures("fake_exit")
def test_a_promising_exit_drafts_where_there_is_nothing_to_look_up() -> None:
    """The exit arm unused, or asked for more tokens than it may draft."""
    profile = machine(0.05, {4: 0.2}, {4: 0.9})
    auto = AutoDrafter(profile)
    assert len(auto.propose(talk(1, 2, 3), 15).tokens) >= 3
    assert auto.propose(talk(1, 2, 3), 2).tokens == (9, 9)
    assert auto.propose(talk(1, 2, 3), 0).tokens == ()


@pytest.mark.usefixtures("fake_exit")
def test_an_exit_that_disappoints_is_given_up() -> None:
    """The profile's agreement believed against what the conversation shows."""
    profile, conversation = machine(0.05, {4: 0.2}, {4: 0.9}), talk(1, 2, 3)
    auto = AutoDrafter(profile)
    lengths = []
    for _ in range(150):
        draft = auto.propose(conversation, 15)
        lengths.append(len(draft.tokens))
        auto.observe(Round((0,), len(draft.tokens), 0, 0.02))
    assert lengths[0] >= 3
    assert lengths[-50:] == [0] * 50


@pytest.mark.usefixtures("fake_exit")
def test_the_better_arm_drafts() -> None:
    """Always the exit, or always lookup, whatever each of them promises."""
    strong = machine(0.05, {4: 0.05}, {4: 0.97})
    assert set(AutoDrafter(strong).propose(talk(1, 2, 3, 4, 1), 15).tokens) == {9}
    assert 9 not in AutoDrafter(strong).propose(endless(), 15).tokens


def test_an_exit_that_cannot_pay_is_not_even_made() -> None:
    """SmolLM2 without a lens: agreement .36 at c = .8. The fake conversation has no stack to run it on."""
    auto = AutoDrafter(machine(0.1, {24: 0.8}, {24: 0.36}))
    for _ in range(50):
        assert auto.propose(talk(1, 2, 3), 15) == Draft()
        auto.observe(Round((0,), 0, 0, 0.01))


@pytest.mark.usefixtures("fake_exit")
def test_exit_rounds_do_not_correct_the_costs_of_plain_passes() -> None:
    """A round's seconds include its draft steps: taken for verification alone they would make rows look dear."""
    auto = AutoDrafter(machine(0.05, {4: 0.1}, {4: 0.95}))
    before = len(auto.propose(endless(), 15).tokens)
    exits = auto.propose(talk(1, 2, 3), 15)
    for _ in range(20):
        auto.observe(Round((0,) * (len(exits.tokens) + 1), len(exits.tokens), len(exits.tokens), 10.0))
        auto.propose(talk(1, 2, 3), 15)
    assert len(auto.propose(endless(), 15).tokens) == before


def test_early_exit_is_what_the_controller_drafts_with() -> None:
    """The fake above stands for the real class: same name, same arguments."""
    drafter = early_exit.EarlyExit(4, 7, rule=early_exit.Threshold())
    assert drafter.exit_layer == 4
