"""How far a block is from the reference, by hand. That --verify finds what is wrong is in tests/test_reference.py."""

from __future__ import annotations

import math

import numpy as np
import pytest

from selfspec.check.parity import BlockError, deviation

INPUTS = np.asarray([[1, 2], [100, 0], [1, 4]], dtype=np.float32)
EXPECTED = np.asarray([[2, 2], [1, 1], [4, 1]], dtype=np.float32)
ALL = np.asarray([True, True, True])


@pytest.mark.parametrize(
    ("row", "error", "found"),
    [
        (0, 1.0, 0.25),  # its own largest is 2, the middle row's 4
        (1, 1.0, 0.01),  # what is cancelled counts
        (2, 1.0, 0.25),
    ],
)
def test_a_row_is_held_against_its_own_largest_value(row: int, error: float, found: float) -> None:
    wrong = EXPECTED.copy()
    wrong[row, 1] += error
    assert deviation(wrong, INPUTS, EXPECTED, ALL) == pytest.approx(found)


def test_of_rows_with_other_experts_only_the_middle_one_of_all_counts() -> None:
    wrong = EXPECTED + np.asarray([[0.4], [1.0], [4.0]], dtype=np.float32)  # 0.1, 0.01 and 1
    assert deviation(wrong, INPUTS, EXPECTED, np.asarray([False, True, False])) == pytest.approx(0.1)
    assert deviation(wrong, INPUTS, EXPECTED, np.asarray([False, False, True])) == pytest.approx(1.0)
    assert deviation(wrong, INPUTS, EXPECTED, ~ALL) == pytest.approx(0.1)


def test_what_is_not_a_number_is_never_accepted() -> None:
    wrong = EXPECTED.copy()
    wrong[0, 0] = math.nan
    error = deviation(wrong, INPUTS, EXPECTED, ALL)
    assert math.isnan(error)
    assert not BlockError("block", error, 0.0, None, 0.02).accepted
    assert not BlockError("block", 0.0, error, None, 0.02).accepted
    assert BlockError("block", 0.0, 0.02, None, 0.02).accepted
