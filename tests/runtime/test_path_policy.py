"""When an early exit pays, on paper: hand-written costs, confidences and hits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.drafters.model_path import PathDrafter
from selfspec.runtime.path_policy import Calibration, DraftCosts, PayingRule, best_path, draft_costs, replay
from selfspec.runtime.paths import exit_path

if TYPE_CHECKING:
    from tests.conftest import Toy


def costs(step: float = 0.4, shared: float = 0.35, slope: float = 0.1) -> DraftCosts:
    return DraftCosts(step, shared, lambda rows: 1 + slope * (rows - 1))


def sure(hits: int, misses: int, confidence: float = 0.99) -> Calibration:
    return Calibration([(confidence, True)] * hits + [(confidence, False)] * misses)


def test_a_calibration_counts_by_confidence() -> None:
    """Two trials at the bucket's middle to begin with, then what is seen there and nowhere else."""
    empty = Calibration()
    assert empty.rate(0.1) == pytest.approx(0.1)
    assert empty.rate(0.5) == pytest.approx(0.5)
    assert empty.rate(1.0) == pytest.approx(0.985)
    seen = Calibration([(0.5, True)] * 3 + [(0.55, False)])
    assert seen.rate(0.45) == pytest.approx((2 * 0.5 + 3) / (2 + 4))
    assert seen.rate(0.65) == pytest.approx(0.7)
    shares = [share for share, _ in seen.outlook()]
    assert sum(shares) == pytest.approx(1)
    assert shares[2] == pytest.approx(6 / 18)


def test_a_calibration_learns_and_forgets_slowly() -> None:
    calibration = sure(50, 0)
    before = calibration.rate(0.99)
    calibration.add(0.99, False)
    assert 0.95 < calibration.rate(0.99) < before
    for _ in range(2000):
        calibration.add(0.99, False)
    assert calibration.rate(0.99) < 0.01


@given(st.lists(st.tuples(st.floats(0, 1.0000001), st.booleans()), max_size=80))
def test_a_calibrated_rate_is_a_probability(samples: list[tuple[float, bool]]) -> None:
    calibration = Calibration(samples[:40])
    for confidence, accepted in samples[40:]:
        calibration.add(confidence, accepted)
    for confidence in (0.0, 0.2, 0.5, 0.97, 1.0):
        assert 0 <= calibration.rate(confidence) <= 1


def test_the_cost_of_a_round_by_hand() -> None:
    """Two steps of .4; both kept: the last one's prefix of .35 is yet to run; then three rows of .65."""
    assert costs().round(2, 2) == pytest.approx(0.8 + 0.35 + 0.65 * 1.2)
    assert costs().round(2, 1) == pytest.approx(0.8 + 0.65 * 1.1)
    assert costs().round(1, 0) == pytest.approx(0.4 + 0.65)
    assert costs().round(0, 0) == 1
    assert costs().widening(1) == pytest.approx(0.065)


def test_a_path_costs_its_step_of_which_the_shared_part_is_at_most_a_pass() -> None:
    """Both in units of a one-row pass; what was measured of a noisy machine must not make verification negative."""
    paths = {"short": MeasuredPath(1.0, 0.9, (), ()), "long": MeasuredPath(4.0, 3.9, (), ())}
    profile = Profile({1: 2.0, 2: 2.2}, paths, None)
    assert draft_costs(profile, "short").step == pytest.approx(0.5)
    assert draft_costs(profile, "short").shared == pytest.approx(0.45)
    assert draft_costs(profile, "long").shared == 1.0


def test_a_token_is_kept_where_it_is_likelier_than_its_price() -> None:
    """Its row costs a prefix of .35 and .065 of the rest: worth it from .415 times the rate on."""
    for hits, rate, expected in ((5, 1.0, True), (3, 1.0, False), (5, 1.5, False), (9, 1.5, True)):
        rule = PayingRule(costs(), sure(10 * hits, 10 * (10 - hits)), rate)
        assert rule.keep([0.99]) is expected, (hits, rate)


def test_drafting_goes_on_while_it_may_pay() -> None:
    """A sure exit drafts on and on, until all of it being right is too unlikely; a guessing one does not begin."""
    certain = PayingRule(costs(), sure(1000, 1), 1.3)
    assert certain.go_on([])
    assert certain.go_on([0.99] * 6)
    doubtful = PayingRule(costs(), sure(800, 200), 1.3)
    assert doubtful.go_on([])
    assert not doubtful.go_on([0.99] * 3), "three of .8 leave .51, and the next one would be .41"
    assert not PayingRule(costs(), sure(100, 900), 1.0).go_on([])


def test_what_is_learnt_changes_the_rule() -> None:
    rule = PayingRule(costs(), sure(20, 0), 1.2)
    assert rule.keep([0.99])
    for _ in range(60):
        rule.learn(0.99, False)
    assert not rule.keep([0.99])
    assert not rule.go_on([])


def text(*runs: tuple[float, bool, int]) -> MeasuredPath:
    confidences = tuple(c for c, _, n in runs for _ in range(n))
    return MeasuredPath(0.4, 0.35, confidences, tuple(hit for _, hit, n in runs for _ in range(n)))


def test_replay_by_hand() -> None:
    """Always right: three tokens for two steps, a prefix and three rows of the rest. Never right and known for it:
    nothing is drafted, and a token costs a pass."""
    always = replay(text((0.99, True, 300)), costs(), 2)
    assert always == pytest.approx(3 / costs().round(2, 2), rel=0.01)
    assert replay(text((0.3, False, 300)), costs(), 4) == pytest.approx(1.0)
    assert replay(MeasuredPath(0.4, 0.35, (), ()), costs(), 3) == 0.0


def test_replay_pays_for_steps_that_were_dropped() -> None:
    """Every second token is doubtful and wrong: one kept, one step wasted, two tokens a round."""
    found = replay(text(*([(0.99, True, 1), (0.3, False, 1)] * 150)), costs(), 7)
    assert found == pytest.approx(2 / costs().round(2, 1), rel=0.02)


def test_the_best_path_weighs_agreement_against_cost() -> None:
    """A cheap path that guesses, a dear one that knows, and one between."""

    def of(step: float, hits: int) -> MeasuredPath:
        return MeasuredPath(step, step - 0.02, (0.95,) * 100, tuple(i % 10 < hits for i in range(100)))

    steps = {m: 1 + 0.05 * (m - 1) for m in range(1, 9)}
    profile = Profile(steps, {"guesses": of(0.1, 1), "knows": of(0.4, 9), "dear": of(0.95, 10)}, None)
    found = best_path(profile, profile.paths)
    assert found is not None
    assert found.path == "knows"
    assert found.rate == replay(profile.paths["knows"], draft_costs(profile, "knows"), found.num_tokens) > 1.2
    assert best_path(profile, ["guesses", "dear", "never measured"]) != found
    assert best_path(profile, ["never measured"]) is None


class Recorded:
    """Keeps what is likely, and remembers what became of it."""

    def __init__(self) -> None:
        self.heard: list[tuple[float, bool]] = []

    def keep(self, confidences: Sequence[float]) -> bool:
        return confidences[-1] > 0.3

    def go_on(self, confidences: Sequence[float]) -> bool:
        return True

    def learn(self, confidence: float, accepted: bool) -> None:
        self.heard.append((confidence, accepted))


def test_a_rule_hears_of_every_judged_token_and_of_the_dropped_one(fp32: Toy) -> None:
    """Dropped tokens are how a rule that became too careful finds out: the round says what came in their place."""
    rule = Recorded()
    run = fp32.run(PathDrafter(exit_path(5), 4, rule=rule), count=80)
    kept = [hit for confidence, hit in rule.heard if confidence > 0.3]
    dropped = [hit for confidence, hit in rule.heard if confidence <= 0.3]
    assert sum(kept) == run.accepted
    assert len(kept) == run.accepted + sum(r.num_accepted < r.num_drafted for r in run.rounds)
    assert dropped
    assert 0 < sum(kept) < len(kept)
