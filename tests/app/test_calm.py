"""Turns that nothing disturbed, by hand-written probes."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat

import pytest

from selfspec.bench.calm import MOST_TURNS, Calm, Turn, Turns, calmest, in_turn, lacking, limit, used


def test_the_limit_goes_by_the_quicker_probes_and_not_by_the_quickest() -> None:
    """The one lucky probe would make every other one slow."""
    assert limit([1.0] + [2.0] * 9 + [3.0] * 10) == pytest.approx(2.2)
    assert limit([2.0]) == pytest.approx(2.2)


def test_items_lack_turns_until_enough_were_quick_or_too_many_were_run() -> None:
    assert lacking([[], [1.0], [1.0, 1.0], [9.0, 1.0, 1.0], [9.0] * 3, [9.0] * 4], 2, 1.1) == [0, 1, 4]


def test_the_calmest_turns_are_in_time() -> None:
    assert calmest([3.0, 1.0, 2.0, 1.5], 3) == [1, 2, 3]
    assert calmest([1.0, 1.0, 1.0], 2) == [0, 1]


def calm_of(*rest: float, say: Callable[[str], None] = lambda _: None) -> Calm:
    """The first probes set what is normal; then ``rest``, of which the first is taken before any turn; then normal."""
    return Calm(chain([1.0] * 20, rest, repeat(1.0)).__next__, say, pause=0.0)


def named(item: int, number: int) -> tuple[int, int]:
    return item, number


def test_a_pass_over_all_items_comes_before_the_next() -> None:
    order: list[tuple[int, int]] = []
    said: list[str] = []
    calm = calm_of(say=said.append)
    found = calm.turns("x", 2, 2, lambda *names: order.append(names))
    assert order == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert [[turn.used for turn in turns] for turns in found] == [[True, True], [True, True]]
    assert calm.facts() == Turns(4, 4, 0)
    assert said == ["x: turn 1 of 2", "x: turn 2 of 2"]


def test_a_turn_beside_a_slow_probe_is_run_again_in_the_same_way_and_kept_unused() -> None:
    """The slow moment lies between the turns of items 0 and 1, so it spoils both of the first pass."""
    calm = calm_of(1.0, 1.5)
    found = calm.turns("x", 2, 1, named)
    assert found == [
        [Turn((0, 0), 1.5, False), Turn((0, 0), 1.0, True)],
        [Turn((1, 0), 1.5, False), Turn((1, 0), 1.0, True)],
    ]
    assert used(found[1]) == [(1, 0)]
    assert calm.facts() == Turns(4, 2, 0)


def test_what_was_probed_before_other_work_says_nothing_of_the_first_turn() -> None:
    """A warm-up lies between two groups of turns; the machine may have changed meanwhile."""
    calm = calm_of(1.5)
    (turns,) = calm.turns("x", 1, 1, named)
    assert [turn.probe for turn in turns] == [1.5, 1.0]


def test_a_machine_that_never_calms_down_is_measured_all_the_same_and_told() -> None:
    calm = calm_of(*[1.5] * 100)
    (turns,) = calm.turns("x", 1, 2, named)
    assert len(used(turns)) == 2
    assert calm.facts() == Turns(2 * MOST_TURNS, 2, 2)


def test_nothing_to_run_is_nothing() -> None:
    assert calm_of().turns("x", 0, 3, named) == []


def test_each_comes_first_and_behind_each_other_as_often() -> None:
    """A cyclic order would let B follow A always; a fixed one, reversed, would never begin with B."""
    rounds = ["".join("ABC"[index] for index in in_turn(3, number)) for number in range(6)]
    assert rounds == ["ABC", "CBA", "BCA", "ACB", "CAB", "BAC"]
