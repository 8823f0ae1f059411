"""Statistics of a generation: sums and ratios by hand, and no division by nothing."""

from __future__ import annotations

import json
import sys

import numpy as np
import pytest

from selfspec.runtime.drafters.base import Round
from selfspec.runtime.stats import Stats, memory_bytes, peak_rss_bytes, reset_peak_rss


def test_rounds_are_summed_apart_from_the_first_token() -> None:
    """The first token counted as a round, or as a drafted one, would spoil every ratio."""
    rounds = [Round((2, 3, 4), 3, 2, 0.1), Round((5,), 3, 0, 0.1), Round((6, 7), 1, 1, 0.1)]
    stats = Stats.of(10, 7, 0.5, 2.0, rounds)
    assert stats == Stats(10, 7, 0.5, 2.0, 3, 7, 3)
    assert stats.tokens_per_second == pytest.approx(6 / 2.0)
    assert stats.acceptance_rate == pytest.approx(3 / 7)
    assert stats.tokens_per_round == pytest.approx(6 / 3)


@pytest.mark.parametrize(("count", "rounds"), [(0, []), (1, []), (2, [Round((2,), 0, 0, 0.0)])])
def test_nothing_generated_or_drafted_gives_zeros(count: int, rounds: list[Round]) -> None:
    """ZeroDivisionError after the text was already printed."""
    stats = Stats.of(4, count, 0.1, 0.0, rounds)
    assert stats.acceptance_rate == 0
    assert stats.tokens_per_second >= 0
    assert stats.tokens_per_round == (1.0 if rounds else 0.0)


def test_json_output_holds_the_ratios_too() -> None:
    """Properties are not fields: asdict alone leaves out what people want to plot."""
    stats = Stats.of(10, 3, 0.5, 2.0, [Round((2, 3), 2, 1, 0.1)])
    found = json.loads(json.dumps(stats.to_dict()))
    assert found["acceptance_rate"] == 0.5
    assert found["tokens_per_round"] == 2.0
    assert found["tokens_per_second"] == 1.0
    assert found["prompt_tokens"] == 10
    assert found["ttft_seconds"] == 0.5


def test_peak_rss_is_in_bytes() -> None:
    """getrusage counts KiB on Linux and bytes on macOS: off by 1,024 either way."""
    assert 20 * 2**20 < peak_rss_bytes() < 64 * 2**30


@pytest.mark.skipif(sys.platform != "linux", reason="PSS and RssAnon are Linux only")
def test_memory_of_the_process_is_read_from_the_kernel() -> None:
    """The wrong line, or kB taken for bytes."""
    for field in ("Pss", "RssAnon"):
        found = memory_bytes(field)
        assert found is not None
        assert 2**20 < found <= 2 * peak_rss_bytes()
    assert memory_bytes("NoSuchField") is None


@pytest.mark.skipif(sys.platform != "linux", reason="VmHWM is Linux only")
def test_a_peak_can_begin_anew() -> None:
    """Else one draft's peak stays with all that are measured after it."""
    block = np.ones(64 * 2**20, dtype=np.uint8)
    high = peak_rss_bytes()
    del block
    if not reset_peak_rss():
        pytest.skip("this kernel keeps the peak")
    assert peak_rss_bytes() < high - 32 * 2**20
