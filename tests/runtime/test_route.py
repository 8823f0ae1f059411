"""Routes by hand: which units run where some overlap."""

from __future__ import annotations

import pytest

from selfspec.models.manifest import Unit
from selfspec.runtime.route import NoRouteError, fewest_units


def units(*spans: tuple[int, int]) -> tuple[Unit, ...]:
    return tuple(Unit(f"{start}-{stop}", start, stop) for start, stop in spans)


SINGLE = tuple((i, i + 1) for i in range(8))
BOTH = units((0, 4), (4, 8), *SINGLE)


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (range(8), ["0-4", "4-8"]),
        (range(4, 8), ["4-8"]),
        (range(3), ["0-1", "1-2", "2-3"]),
        ((0, 1, 2, 3, 5, 6), ["0-4", "5-6", "6-7"]),
        ((7, 4, 5, 6), ["4-8"]),  # in any order
        ((), []),
    ],
)
def test_blocks_run_where_they_fit_and_sublayers_between(wanted: tuple[int, ...], expected: list[str]) -> None:
    assert [u.graph for u in fewest_units(BOTH, wanted)] == expected


def test_the_longest_unit_first_is_not_the_fewest() -> None:
    """Greedily 0-3 would need 3-4, 4-5 and 5-6 behind it."""
    some = units((0, 3), (0, 2), (2, 6), (3, 4), (4, 5), (5, 6))
    assert [u.graph for u in fewest_units(some, range(6))] == ["0-2", "2-6"]


def test_a_unit_that_leads_nowhere_is_not_taken() -> None:
    assert [u.graph for u in fewest_units(units((0, 3), (0, 2), (2, 4)), range(4))] == ["0-2", "2-4"]


@pytest.mark.parametrize(
    ("spans", "wanted", "sublayer"),
    [
        ([(0, 4), (4, 8)], range(6), 4),
        ([(0, 4), (4, 8)], (1,), 1),
        ([(0, 3), (2, 4)], range(4), 3),
        ([(0, 2), (2, 4)], (0, 1, 3), 3),
        ([], (0,), 0),
    ],
)
def test_without_a_route_the_sublayer_is_named(spans: list[tuple[int, int]], wanted: list[int], sublayer: int) -> None:
    with pytest.raises(NoRouteError) as caught:
        fewest_units(units(*spans), wanted)
    assert caught.value.sublayer == sublayer


def test_a_way_that_is_found_later_may_be_shorter() -> None:
    """The first way to sublayer 5 that is met has four units, the last of them the longest."""
    some = units((0, 1), (1, 2), (2, 3), (3, 5), (0, 4), (4, 5))
    assert [u.graph for u in fewest_units(some, range(5))] == ["0-4", "4-5"]
