"""The fraction of the bandwidth that a step reaches."""

from __future__ import annotations

import pytest

from selfspec.bench.roofline import roofline_fraction


def test_a_step_that_reads_at_half_the_bandwidth() -> None:
    """100 MB in 10 ms are 10 GB/s."""
    assert roofline_fraction(100_000_000, 0.010, 20e9) == pytest.approx(0.5)
