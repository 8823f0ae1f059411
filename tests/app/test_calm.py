"""Turns that nothing disturbed, by hand-written probes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from selfspec.calm import MOST_TURNS, Calm, Turns, calmest, lacking, limit


def test_the_limit_goes_by_the_quicker_probes_and_not_by_the_quickest() -> None:
    """The one lucky probe would make every other one slow."""
    assert limit([1.0] + [2.0] * 9 + [3.0] * 10) == pytest.approx(2.2)
    assert limit([2.0]) == pytest.approx(2.2)


def test_items_lack_turns_until_enough_were_quick_or_too_many_were_run() -> None:
    assert lacking([[], [1.0], [1.0, 1.0], [9.0, 1.0, 1.0], [9.0] * 5, [9.0] * 6], 2, 1.1) == [0, 1, 4]


def test_the_calmest_turns_are_in_time() -> None:
    assert calmest([3.0, 1.0, 2.0, 1.5], 3) == [1, 2, 3]
    assert calmest([1.0, 1.0, 1.0], 2) == [0, 1]


def probes(*rest: float) -> Iterator[float]:
    """The first ones, which set what is normal; then ``rest``, and normal again."""
    yield from [1.0] * 20
    yield from rest
    while True:
        yield 1.0


def test_a_pass_over_all_items_comes_before_the_next() -> None:
    said: list[str] = []
    calm = Calm(probes().__next__, said.append)
    assert calm.turns("x", 2, 2, lambda item, turn: (item, turn)) == [[(0, 0), (0, 1)], [(1, 0), (1, 1)]]
    assert calm.facts() == Turns(4, 4, 0)
    assert said == ["x: turn 1 of 2", "x: turn 2 of 2"]


def test_a_turn_beside_a_slow_probe_is_run_once_more_and_left_out() -> None:
    """The slow moment lies between the turns of items 0 and 1, so it spoils both of the first pass."""
    calm = Calm(probes(1.5).__next__, lambda _: None)
    assert calm.turns("x", 2, 1, lambda item, turn: (item, turn)) == [[(0, 1)], [(1, 1)]]
    assert calm.facts() == Turns(4, 2, 0)


def test_a_machine_that_never_calms_down_is_measured_all_the_same_and_told() -> None:
    calm = Calm(probes(*[1.5] * 100).__next__, lambda _: None)
    (turns,) = calm.turns("x", 1, 2, lambda item, turn: turn)
    assert len(turns) == 2
    assert calm.facts() == Turns(2 * MOST_TURNS, 2, 2)


def test_nothing_to_run_is_nothing() -> None:
    assert Calm(probes().__next__, lambda _: None).turns("x", 0, 3, lambda *_: 1) == []
