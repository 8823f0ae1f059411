"""Alternating timings: who runs when, and how prompts are summed up. No model."""

from __future__ import annotations

from typing import Any

import pytest

from selfspec.bench import timing
from selfspec.bench.prompts import Prompt
from selfspec.bench.timing import Timing, alternate, take_turns, total
from selfspec.check.comparison import PLAIN, Answer, Conditions, Contender
from selfspec.runtime.drafters.base import Round
from selfspec.runtime.stats import Stats

PROMPT = Prompt(1, "qa", "x")
LOOKUP = Contender("prompt-lookup", "prompt-lookup")
SECONDS = {"none": [4.0, 9.0, 5.0], "prompt-lookup": [1.0, 2.0, 9.0]}


@pytest.fixture
def order(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answers that took ``SECONDS``: plain has 11 tokens, prompt lookup 21."""
    called: list[str] = []

    def fake(model: Any, prompt: Prompt, conditions: Conditions, contender: Contender) -> Answer:
        seconds = SECONDS[contender.name][called.count(contender.name)]
        called.append(contender.name)
        count = 11 if contender is PLAIN else 21
        rounds = (Round((0,), 0, 0, 0.0), *[Round((0, 0), 1, 1, 0.0)] * (count // 2))
        return Answer(prompt, (0,) * count, rounds, Stats.of(3, 0.1, seconds, rounds))

    monkeypatch.setattr(timing, "answer", fake)
    return called


def _timings() -> list[Timing]:
    model: Any = None
    return alternate(model, PROMPT, Conditions(64), [PLAIN, LOOKUP], repeats=3)


def test_contenders_take_turns_and_every_other_round_goes_backwards(order: list[str]) -> None:
    _timings()
    assert order == ["none", "prompt-lookup", "prompt-lookup", "none", "prompt-lookup", "none"]


def test_each_comes_first_and_behind_each_other_as_often() -> None:
    """A cyclic order would let B follow A always; a fixed one, reversed, would never begin with B."""
    order: list[str] = []

    def run(name: str) -> int:
        order.append(name)
        return len(order)

    results = take_turns("ABC", 6, run)
    rounds = ["".join(order[i : i + 3]) for i in range(0, 18, 3)]
    assert rounds == ["ABC", "CBA", "BCA", "ACB", "CAB", "BAC"]
    assert results[0] == [1, 6, 9, 10, 14, 17], "each one's results, in the order of time"


def test_time_is_compared_per_token_and_for_the_length_of_plains_answer(order: list[str]) -> None:
    plain, lookup = _timings()
    assert (plain.tokens, lookup.tokens) == (10, 10)
    assert plain.seconds == pytest.approx(5.0)
    assert lookup.seconds == pytest.approx(10 * 2.0 / 20)
    assert (lookup.tokens_per_second, lookup.tokens_per_round, lookup.acceptance_rate) == (10.0, 2.0, 1.0)


def test_a_total_adds_up_prompts() -> None:
    parts = [Timing("auto", 10, 1.0, 5, 10, 8, 4), Timing("auto", 30, 1.0, 15, 30, 8, 6)]
    assert total(parts) == Timing("auto", 40, 2.0, 20, 40, 16, 10)
    assert total(parts).tokens_per_second == 20.0


def test_nothing_decoded_divides_by_nothing() -> None:
    empty = Timing("auto", 0, 0.0, 0, 0, 0, 0)
    assert (empty.tokens_per_second, empty.acceptance_rate, empty.tokens_per_round) == (0.0, 0.0, 0.0)
