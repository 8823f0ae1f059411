"""The controller on paper machines: what it drafts follows from costs and observed acceptance and nothing else."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.runtime.conversation import Conversation
from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.drafters.auto import AutoDrafter
from selfspec.runtime.drafters.base import Draft, Prefix, Round
from selfspec.runtime.drafters.path_arm import promising_arm
from selfspec.runtime.drafters.prompt_lookup import LookupArm
from selfspec.runtime.measure import ROW_COUNTS
from selfspec.runtime.paths import DraftPath, exit_name, exit_path
from selfspec.runtime.rates import CostModel


def machine(slope: float, exits: dict[int, float] | None = None, agreement: dict[int, float] | None = None) -> Profile:
    """V(m) = 1 + slope (m - 1), in units of a one-row pass that takes 10 ms; a head that costs nothing. Exits are
    equally sure of every token, and right as often as ``agreement`` says."""
    unit = 0.01
    found = {}
    for k, cost in (exits or {}).items():
        share = (agreement or {})[k]
        hits = tuple(int((i + 1) * share) > int(i * share) for i in range(200))
        found[exit_name(k)] = MeasuredPath(unit * cost, unit * cost, (0.95,) * len(hits), hits)
    return Profile({m: unit * (1 + slope * (m - 1)) for m in ROW_COUNTS}, found, None)


def auto_on(profile: Profile, max_draft_tokens: int = 15) -> AutoDrafter:
    """``auto`` with the two arms that a dense model has."""
    costs = CostModel(profile)
    paths = [exit_path(k) for k in range(1, 30) if exit_name(k) in profile.paths]
    arms = [LookupArm("prompt-lookup", costs), *promising_arm("early-exit", paths, profile, costs)]
    return AutoDrafter(arms, costs, max_draft_tokens)


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


def test_it_never_drafts_where_verification_is_steep_but_for_rare_probes() -> None:
    """V(2) = 2 means that no draft can pay, however right it is; what is tried stays within half a percent."""
    profile, conversation = machine(1.0), endless()
    auto, spent, extra = auto_on(profile), 0.0, 0.0
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
    auto = auto_on(profile)
    draft = auto.propose(conversation, 15)
    assert len(draft.tokens) >= 8
    assert list(draft.tokens) == [i % 5 for i in range(400, 400 + len(draft.tokens))]


def test_a_longer_match_is_trusted_with_a_longer_draft() -> None:
    """Match length ignored: one repeated token is right a quarter of the time, nine in a row almost always."""
    profile = machine(0.25)
    short, long = talk(1, 2, 3, 4, 5, 6, 7, 8, 1), talk(*range(1, 30), *range(1, 12))
    assert len(auto_on(profile).propose(short, 15).tokens) < len(auto_on(profile).propose(long, 15).tokens)


def test_what_is_rejected_again_and_again_is_given_up_and_what_is_accepted_comes_back() -> None:
    """Acceptance never learnt, or learnt for ever."""
    profile, conversation = machine(0.25), endless()
    auto = auto_on(profile)
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
    auto = auto_on(profile)
    for _ in range(80):
        draft = auto.propose(conversation, 15)
        judge(auto, profile, draft, min(7, len(draft.tokens)))
    assert len(auto.propose(conversation, 15).tokens) >= 10


@given(st.integers(0, 20), st.integers(1, 15), st.floats(0, 1.5))
def test_it_never_drafts_more_than_it_may(max_tokens: int, own_limit: int, slope: float) -> None:
    """``max_tokens`` 0 at the last token, or ``--num-draft-tokens``."""
    auto = auto_on(machine(slope), own_limit)
    for _ in range(5):
        draft = auto.propose(endless(60), max_tokens)
        assert len(draft.tokens) <= min(max_tokens, own_limit)
        judge(auto, machine(slope), draft, 0)


class FakePath:
    """Stands in for PathDrafter: drafts nines, as many as it may."""

    def __init__(self, path: DraftPath, num_draft_tokens: int, *, rule: object) -> None:
        self.path = path
        self._limit = num_draft_tokens
        self.steps = 0

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        self.steps = count = min(max_tokens, self._limit)
        return Draft((9,) * count, None, Prefix(self.path.shared, np.zeros((count, 1), dtype=np.float32)))

    def observe(self, result: Round) -> None:
        """The controller must pass it on."""


@pytest.fixture
def fake_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec.runtime.drafters.path_arm.PathDrafter", FakePath)


@pytest.mark.usefixtures("fake_path")
def test_a_promising_exit_drafts_where_there_is_nothing_to_look_up() -> None:
    """The exit arm unused, or asked for more tokens than it may draft."""
    profile = machine(0.05, {4: 0.2}, {4: 0.9})
    auto = auto_on(profile)
    assert len(auto.propose(talk(1, 2, 3), 15).tokens) >= 3
    assert auto.propose(talk(1, 2, 3), 2).tokens == (9, 9)
    assert auto.propose(talk(1, 2, 3), 0).tokens == ()


@pytest.mark.usefixtures("fake_path")
def test_an_exit_that_disappoints_is_given_up() -> None:
    """The profile's agreement believed against what the conversation shows."""
    profile, conversation = machine(0.05, {4: 0.2}, {4: 0.9}), talk(1, 2, 3)
    auto = auto_on(profile)
    lengths = []
    for _ in range(150):
        draft = auto.propose(conversation, 15)
        lengths.append(len(draft.tokens))
        auto.observe(Round((0,), len(draft.tokens), 0, 0.02))
    assert lengths[0] >= 3
    assert lengths[-50:] == [0] * 50


@pytest.mark.usefixtures("fake_path")
def test_the_better_arm_drafts() -> None:
    """Always the exit, or always lookup, whatever each of them promises."""
    strong = machine(0.05, {4: 0.05}, {4: 0.97})
    assert set(auto_on(strong).propose(talk(1, 2, 3, 4, 1), 15).tokens) == {9}
    assert 9 not in auto_on(strong).propose(endless(), 15).tokens


def test_an_exit_that_cannot_pay_is_not_even_made() -> None:
    """SmolLM2 without a lens: agreement .36 at c = .8. The fake conversation has no stack to run it on."""
    auto = auto_on(machine(0.1, {24: 0.8}, {24: 0.36}))
    for _ in range(50):
        assert auto.propose(talk(1, 2, 3), 15) == Draft()
        auto.observe(Round((0,), 0, 0, 0.01))


@pytest.mark.usefixtures("fake_path")
def test_exit_rounds_do_not_correct_the_costs_of_plain_passes() -> None:
    """A round's seconds include its draft steps: taken for verification alone they would make rows look dear."""
    auto = auto_on(machine(0.05, {4: 0.1}, {4: 0.95}))
    before = len(auto.propose(endless(), 15).tokens)
    exits = auto.propose(talk(1, 2, 3), 15)
    for _ in range(20):
        auto.observe(Round((0,) * (len(exits.tokens) + 1), len(exits.tokens), len(exits.tokens), 10.0))
        auto.propose(talk(1, 2, 3), 15)
    assert len(auto.propose(endless(), 15).tokens) == before
