"""What exact rests on: kernels that treat rows otherwise by count, width or place are found out, and passes cut so that
they do not."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.invariance import exact_passes, layers_alike
from selfspec.runtime.stack import Floats, Passes, Plan, Stack

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy


def test_cuts_by_hand() -> None:
    """The row before a multiple goes with what follows: alone it would be padded across."""
    assert Passes().cuts(60, 10) == [60, 70]
    assert Passes(2, 64).cuts(60, 3) == [60, 63]
    assert Passes(2, 64).cuts(60, 4) == [60, 63, 64]
    assert Passes(2, 64).cuts(63, 1) == [63, 64]
    assert Passes(2, 64).cuts(63, 9) == [63, 72]
    assert Passes(2, 64).cuts(0, 200) == [0, 63, 127, 191, 200]
    assert Passes(1, 64).cuts(60, 10) == [60, 64, 70]
    assert Passes(3, 64).cuts(126, 2) == [126, 128]
    assert Passes(3, 64).cuts(125, 2) == [125, 126, 127]
    assert Passes(2, None, (64, 32)).cuts(5, 16) == [5, 21]
    assert Passes(2, None, (64, 32)).cuts(0, 127) == [0, 64, 96, 112, 127]
    assert Passes(2, None, ()).cuts(0, 35) == [0, 16, 32, 35]
    assert Passes(2, 64, (64, 32)).cuts(60, 70) == [60, 63, 127, 130]


@given(st.integers(0, 500), st.integers(1, 200), st.integers(1, 8), st.sampled_from((None, 32, 64)))
def test_passes_cover_every_row_once_and_depend_on_places_alone(
    position: int, count: int, min_rows: int, boundary: int | None
) -> None:
    """A row that starts a pass in one split starts one in every split that contains the row before it."""
    passes = Passes(min_rows, boundary)
    cuts = passes.cuts(position, count)
    assert cuts[0] == position
    assert cuts[-1] == position + count
    assert all(a < b for a, b in pairwise(cuts))
    inner = set(cuts[1:-1])
    assert inner == {c for c in passes.cuts(0, position + count)[1:-1] if c > position}
    if boundary is not None:
        for a, b in pairwise(cuts):
            padded = a + passes.rows(b - a)
            assert (padded - 1) // boundary == a // boundary or a % boundary > boundary - min_rows


@pytest.mark.parametrize(("min_rows", "boundary"), [(0, None), (9, None), (2, 4)])
def test_impossible_passes_are_refused(min_rows: int, boundary: int | None) -> None:
    with pytest.raises(UsageError):
        Passes(min_rows, boundary)


def test_row_counts_that_mix_rows_are_not_called_alike(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose result for a row depends on how many stand beside it, imitated: below four rows all differ."""
    expected = max(4, fp32.passes.min_rows)
    original = Stack.logits

    def mixing(stack: Stack, hidden: Floats) -> Floats:
        found = original(stack, hidden).copy()
        rows = stack._split.rows(len(hidden))
        return found if rows >= 4 else found + rows + stack._split.rows(1)

    monkeypatch.setattr(Stack, "logits", mixing)
    found = exact_passes(fp32.model.sessions)
    assert found is not None
    assert found.min_rows == expected


def imitate(monkeypatch: pytest.MonkeyPatch, changed_rows: Callable[[int, int], int]) -> None:
    """A kernel that computes the first ``changed_rows(position, rows)`` rows of a pass otherwise."""
    original = Stack._run_pass

    def changed(stack: Stack, route: tuple[Any, ...], hidden: Floats, position: int) -> Floats:
        found = original(stack, route, hidden, position)
        found[: changed_rows(position, stack._split.rows(len(hidden)))] *= np.float32(1.001)
        return found

    monkeypatch.setattr(Stack, "_run_pass", changed)


def test_a_kernel_that_minds_wide_passes_is_cut(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that changes its blocking at forty rows: a later turn would not equal a fresh run."""
    expected = Passes(fp32.passes.min_rows, fp32.passes.boundary, ())
    imitate(monkeypatch, lambda position, rows: rows if rows >= 40 else 0)
    assert exact_passes(fp32.model.sessions) == expected


def test_a_kernel_that_takes_keys_in_blocks_is_cut_at_them(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """As attention with heads of 256 is on x86: in a pass that goes on past a multiple of 64, rows before it differ."""
    expected = Passes(fp32.passes.min_rows, fp32.passes.boundary or 64, fp32.passes.widths)

    def before_the_next_block(position: int, rows: int) -> int:
        edge = (position // 64 + 1) * 64
        return edge - position if position + rows > edge else 0

    imitate(monkeypatch, before_the_next_block)
    assert exact_passes(fp32.model.sessions) == expected


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_a_kernel_that_minds_how_many_rows_an_expert_has_is_found(
    precision: str, make_toy: Callable[..., Toy], tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As QMoE with 4 bits does on AVX2 without VNNI in artifacts whose graphs do not give it such a row twice. No
    padding helps, so nothing is promised."""
    toy = make_toy(tools.spec(family="olmoe", layers=2, context=64), precision=precision, exit_layers=(1,))
    assert toy.passes
    original = Stack._run_pass

    def changed(stack: Stack, route: tuple[Any, ...], hidden: Floats, position: int) -> Floats:
        found = original(stack, route, hidden, position)
        [selected] = stack._pass(route[-1].graph, stack._split.rows(len(hidden))).selected.values()
        experts, counts = np.unique(selected[0], return_counts=True)
        lonely = np.isin(selected[0, : len(found)], experts[counts == 1]).any(-1)
        found[lonely] *= np.float32(1 + 1e-6)
        return found

    monkeypatch.setattr(Stack, "_run_pass", changed)
    assert exact_passes(toy.model.sessions) is None


def test_where_nothing_helps_nothing_is_promised(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    imitate(monkeypatch, lambda position, rows: 0 if position % 2 else rows)
    assert exact_passes(fp32.model.sessions) is None


def test_both_kinds_of_attention_are_looked_at(
    make_toy: Callable[..., Toy], tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block with the sliding layer alone is the smallest; the full one may have another kernel."""
    toy = make_toy(tools.spec(family="gemma3_text", layers=3), precision="fp32", exit_layers=(1, 2))
    passes, asked = toy.passes, set[Plan]()
    original = Stack.run

    def watched(stack: Stack, plan: Plan, hidden: Floats, position: int) -> Floats:
        asked.add(plan)
        return original(stack, plan, hidden, position)

    monkeypatch.setattr(Stack, "run", watched)
    layers_alike(toy.model.sessions, passes)
    assert asked == {Plan.layers(0, 1), Plan.layers(2, 3)}


@pytest.mark.parametrize(
    "shape", [{"heads": 4, "kv_heads": 1, "head_dim": 256}, {"heads": 2, "kv_heads": 2, "head_dim": 128}]
)
def test_rows_are_alike_for_large_heads_wherever_passes_end(
    make_toy: Callable[..., Toy], tools: Tools, shape: dict[str, Any]
) -> None:
    """The real kernel: passes of every width, begun anywhere, over 300 positions."""
    toy = make_toy(tools.spec(layers=2, context=512, **shape), precision="fp32", exit_layers=(1,))
    plan, rng = Plan.layers(0, 2), np.random.default_rng(4)
    ids = rng.integers(0, toy.spec.vocab, 300)

    def run(sizes: list[int]) -> Floats:
        conversation = Conversation(toy.model.sessions, toy.passes)
        stack, position, outputs = conversation.stack, 0, []
        for size in sizes:
            rows = stack.embed(ids[position : position + size])
            outputs.append(stack.run(plan, rows, position))
            position += size
        return np.concatenate(outputs)

    alone = run([1] * 300)
    for _ in range(12):
        sizes: list[int] = []
        while sum(sizes) < 300:
            sizes.append(min(300 - sum(sizes), int(rng.choice((1, 2, 3, 4, 6, 9, 16, 40, 128)))))
        np.testing.assert_array_equal(run(sizes), alone)
