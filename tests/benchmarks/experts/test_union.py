"""How many experts consecutive rows touch: counted by hand, and as a pass over a toy counts them itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from benchmarks.experts.union import OwnText, ceiling, ceilings, own_text, random_union, timed_passes, union
from selfspec.errors import SelfSpecError
from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.path_policy import DraftCosts
from selfspec.runtime.sampling import Sampling

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy, ToyMaker


def touched(*layers: set[int]) -> dict[int, frozenset[int]]:
    return {layer: frozenset(experts) for layer, experts in enumerate(layers)}


FIRST = [touched({0, 1}, {5, 6}), touched({1, 2}, {5, 6}), touched({0, 1}, {6, 7})]
SECOND = [touched({3, 4}, {5, 7})]


def test_one_row_touches_what_it_runs() -> None:
    assert union([FIRST, SECOND], 1) == 2.0


def test_an_expert_of_two_rows_counts_once_and_no_window_spans_two_texts() -> None:
    """{0, 1, 2} and {5, 6}; {0, 1, 2} and {5, 6, 7}."""
    assert union([FIRST, SECOND], 2) == (3 + 2 + 3 + 3) / 4
    assert union([FIRST, SECOND], 3) == (3 + 3) / 2


def test_where_no_text_is_so_long_nothing_is_said() -> None:
    assert union([FIRST, SECOND], 4) is None


def test_random_routing_touches_what_the_formula_says() -> None:
    """By hand: 64 · (1 - (7/8)²) = 15; of 4 experts 2 a row, three rows miss one with (1/2)³."""
    assert random_union(64, 8, 1) == 8.0
    assert random_union(64, 8, 2) == 15.0
    assert random_union(4, 2, 3) == 3.5


def test_the_most_that_a_draft_can_gain() -> None:
    """V(m) = m: a free draft gains nothing. V(m) = 1: eight tokens for a pass and seven steps of half a one."""
    assert ceiling(DraftCosts(0.0, 0.0, float)) == 1.0
    assert ceiling(DraftCosts(0.5, 0.0, lambda _: 1.0)) == 8 / 4.5
    assert ceiling(DraftCosts(1.0, 0.0, lambda _: 1.5)) < 1.0


def test_ceilings_are_those_of_every_exit_and_of_every_number_of_experts() -> None:
    steps = dict.fromkeys(range(1, 9), 0.01)
    paths = {
        "early-exit:layer=3": MeasuredPath(0.005, 0.004, (), ()),
        "fewer-experts:experts=1": MeasuredPath(0.008, 0.0, (), ()),
    }
    profile = Profile(steps, paths, None)
    exit_, fewer = ceilings(profile, 6, 4)
    assert (exit_.layers, exit_.experts, exit_.step) == (3, 4, 0.5)
    assert (fewer.layers, fewer.experts, fewer.step) == (6, 1, 0.8)
    assert fewer.speed_up == pytest.approx(8 / (7 * 0.8 + 1))


@pytest.fixture(scope="module")
def sparse(make_toy: ToyMaker, tools: Tools) -> Toy:
    return make_toy(tools.spec("qwen2_moe"), precision="fp32", exit_layers=(2, 4), hot_vocab=256)


def test_a_union_is_what_a_pass_over_the_rows_touches(sparse: Toy) -> None:
    """Would catch rows that are told late, or layers without experts that are counted."""
    text = own_text(sparse.model, sparse.prompt, 12, Sampling())
    assert len(text.touched) == len(text.answer) - 1 == 11
    assert set(text.touched[0]) == {0, 2, 3, 4, 5}
    conversation = sparse.conversation()
    conversation.prefill([*text.prompt, *text.answer[:3]])
    stack, ids = conversation.stack, np.asarray(text.answer[3:8])
    with stack.watch_experts() as ran:
        stack.run(conversation.full_plan, stack.embed(ids), conversation.kv.length)
    counts = [len(experts) for experts in ran.values()]
    assert union([text.touched[3:8]], 5) == pytest.approx(sum(counts) / len(counts))


def test_passes_over_own_text_are_timed(sparse: Toy) -> None:
    text = own_text(sparse.model, sparse.prompt, 20, Sampling())
    costs = timed_passes(sparse.model, [text, text])
    assert list(costs.step_seconds) == list(range(1, 9))
    exits = {f"early-exit:layer={layer}" for layer in (2, 4, 6)}
    assert set(costs.paths) == exits | {"fewer-experts:experts=1", "fewer-experts:experts=2"}
    assert all(seconds > 0 for seconds in costs.step_seconds.values())


def test_answers_too_short_to_time_are_told(sparse: Toy) -> None:
    with pytest.raises(SelfSpecError, match="no answer has 16 tokens"):
        timed_passes(sparse.model, [OwnText((2, 3), (4,) * 15, ())])
