"""The stack: which graphs run for which layers, and that no cut, head range or pad row changes what comes out."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import pytest

from selfspec.errors import UsageError
from selfspec.runtime.stack import Floats, Plan

if TYPE_CHECKING:
    from tests.conftest import Toy

IDS = np.asarray([5, 77, 130, 9, 260])


def test_a_plan_of_layers_is_their_sublayers() -> None:
    """2i is the attention of layer i, 2i + 1 its MLP."""
    assert Plan.layers(1, 3) == Plan((2, 3, 4, 5))
    assert Plan.layers(2, 2) == Plan(())


def test_a_plan_that_splits_a_block_is_refused_with_the_cuts(fp32: Toy) -> None:
    """Running a block's graph for half of its layers, or silently leaving them out."""
    stack = fp32.conversation().stack
    hidden = stack.embed(IDS)
    with pytest.raises(UsageError, match=r"sublayer 4 .* cut after layers 2, 4, 5\. .*--blocks sublayer"):
        stack.run(Plan.layers(0, 3), hidden, 0)
    with pytest.raises(UsageError, match="sublayer 1 cannot run alone"):
        stack.run(Plan((1, *range(4, 12))), hidden, 0)
    with pytest.raises(UsageError, match="sublayer 12 cannot"):
        stack.run(Plan.layers(0, 7), hidden, 0)


def test_layers_run_in_parts_are_the_layers_run_at_once(toy: Toy) -> None:
    """A hidden state handed on wrongly between blocks; an exit that is not what the whole stack passes through."""
    stack = toy.conversation().stack
    hidden = stack.embed(IDS)
    whole = stack.run(Plan.layers(0, 6), hidden, 0)
    for cut in (2, 4, 5):
        half = stack.run(Plan.layers(0, cut), hidden, 0)
        np.testing.assert_array_equal(stack.run(Plan.layers(cut, 6), half, 0), whole)


def test_an_empty_plan_changes_nothing(fp32: Toy) -> None:
    """What an identity draft leaves for verification to run."""
    stack = fp32.conversation().stack
    hidden = stack.embed(IDS)
    np.testing.assert_array_equal(stack.run(Plan(()), hidden, 0), hidden)


def test_returned_hidden_states_are_copies(fp32: Toy) -> None:
    """A draft keeps its exit states over many passes; a view of the output buffer would change under it."""
    stack = fp32.conversation().stack
    embedded = stack.embed(IDS)
    first = stack.run(Plan.layers(0, 2), embedded, 0)
    kept, kept_embedded = first.copy(), embedded.copy()
    stack.run(Plan.layers(0, 2), stack.embed(IDS[::-1]), 0)
    np.testing.assert_array_equal(first, kept)
    np.testing.assert_array_equal(embedded, kept_embedded)


def test_every_partition_computes_the_same(make_toy: Callable[..., Toy], toy: Toy) -> None:
    """Sublayer graphs, single layers and long blocks hold the same weights; norms at cuts are where this goes wrong."""
    precision = toy.model.artifact.manifest.precision
    others = [
        make_toy(precision=precision, partition="sublayer"),
        make_toy(precision=precision, exit_layers=()),
        make_toy(precision=precision, exit_layers=(1, 2, 3, 4, 5)),
    ]
    assert [len(o.model.artifact.manifest.units) for o in others] == [12, 1, 6]
    expected = toy.conversation(exact=False).prefill(toy.prompt)
    for other in others:
        found = other.conversation(exact=False).prefill(toy.prompt)
        if precision == "fp32":
            np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
        else:  # rounding activations to 8 bits turns differences of 1e-7 into steps
            np.testing.assert_allclose(found, expected, rtol=0, atol=0.05 * np.abs(expected).max())


def test_sublayers_can_be_left_out_one_by_one_where_exported_so(make_toy: Callable[..., Toy]) -> None:
    """Skipping an attention must skip the attention, not its MLP, and leave the residual stream whole."""
    toy = make_toy(precision="fp32", partition="sublayer")
    stack = toy.conversation().stack
    hidden = stack.embed(IDS)
    skipped = stack.run(Plan((0, 1, 3, 5)), hidden, 0)
    by_hand = stack.run(Plan((5,)), stack.run(Plan((3,)), stack.run(Plan.layers(0, 1), hidden, 0), 0), 0)
    np.testing.assert_array_equal(skipped, by_hand)
    assert not np.allclose(skipped, stack.run(Plan.layers(0, 3), hidden, 0))


def test_hot_logits_are_the_hot_columns_of_the_logits(toy: Toy) -> None:
    """Columns mapped to the wrong token ids: a draft that is never right, and nothing else to notice it by."""
    stack = toy.conversation().stack
    hidden = stack.run(Plan.layers(0, 6), stack.embed(IDS), 0)
    full = stack.logits(hidden).copy()
    assert full.shape == (5, 320)
    np.testing.assert_array_equal(stack.draft_ids("hot"), np.arange(256))
    np.testing.assert_array_equal(stack.draft_logits("hot", hidden), full[:, stack.draft_ids("hot")])


def test_a_hot_vocabulary_of_everything_has_no_rest(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """head_rest is absent then, and the full head must not look for it."""
    toy = make_toy(precision="fp32", exit_layers=(2, 4, 5), hot_vocab=320)
    assert toy.model.artifact.manifest.head.rest_graph is None
    hidden = toy.conversation().stack.embed(IDS)
    stack = toy.conversation().stack
    np.testing.assert_array_equal(stack.draft_logits("hot", hidden), stack.logits(hidden))
    np.testing.assert_allclose(stack.logits(hidden), fp32.conversation().stack.logits(hidden), atol=1e-5)


def test_hot_ranges_may_be_several(make_toy: Callable[..., Toy]) -> None:
    """SentencePiece vocabularies: [0, H) and a run of characters further up. Columns follow the ranges, not the ids."""
    toy = make_toy(precision="int4", exit_layers=(2,), hot_vocab=1)  # the 256 bytes are a run of single characters
    head = toy.model.artifact.manifest.head
    assert (head.hot_ranges, head.rest_ranges) == (((0, 1), (2, 258)), ((1, 2), (258, 320)))
    stack = toy.conversation().stack
    hidden = stack.run(Plan.layers(0, 6), stack.embed(IDS), 0)
    np.testing.assert_array_equal(stack.draft_ids("hot"), [0, *range(2, 258)])
    full = stack.logits(hidden).copy()
    np.testing.assert_array_equal(stack.draft_logits("hot", hidden), full[:, stack.draft_ids("hot")])
    plain = make_toy(precision="int4", exit_layers=(2,), hot_vocab=320)
    np.testing.assert_allclose(full, plain.conversation().stack.logits(hidden), atol=1e-5)


def test_rows_of_a_pass_do_not_depend_on_the_rows_beside_them(toy: Toy) -> None:
    """What exactness stands on, from the row count that the profile found."""
    conversation = toy.conversation()
    stack, plan = conversation.stack, conversation.full_plan
    conversation.prefill(toy.prompt)
    start = conversation.kv.length
    together = stack.logits(stack.run(plan, stack.embed(IDS), start)).copy()
    for i in range(len(IDS)):
        alone = stack.logits(stack.run(plan, stack.embed(IDS[i : i + 1]), start + i))
        np.testing.assert_array_equal(alone[0], together[i])


def test_a_long_pass_keeps_no_binding(fp32: Toy) -> None:
    """Prefill chunks of every length kept for ever: scratch memory that grows with each prompt."""
    conversation = fp32.conversation()
    for n in (40, 50, 60):
        conversation.stack.run(conversation.full_plan, conversation.stack.embed(np.arange(n)), 0)
    assert all(rows <= 32 for _, rows in conversation.stack._bound)


def test_passes_of_all_widths_share_their_buffers(fp32: Toy) -> None:
    """Else a conversation that saw 1 to 16 rows would hold the logits of 136."""
    conversation = fp32.conversation(exact=False)
    stack = conversation.stack
    graph = fp32.model.artifact.manifest.head.hot_graph
    for rows in (16, 1, 3):
        stack.logits(stack.run(conversation.full_plan, stack.embed(np.arange(rows)), 0))
    for name in ("hidden", "logits.0"):
        buffers = [stack._bound[graph, rows].arrays[name] for rows in (1, 3, 16)]
        assert all(np.shares_memory(buffers[0], other) for other in buffers)


def test_a_long_prompt_in_chunks_equals_one_pass(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks that start at the wrong position, or logits of the wrong chunk's last row."""
    whole = fp32.conversation().prefill(fp32.prompt)
    monkeypatch.setattr("selfspec.runtime.conversation.PREFILL_ROWS", 4)
    chunked = fp32.conversation()
    np.testing.assert_allclose(chunked.prefill(fp32.prompt), whole, rtol=0, atol=1e-4)
    assert chunked.tokens == fp32.prompt
    assert chunked.kv.length == len(fp32.prompt)


def test_prefill_shows_the_head_one_row_only(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits of a whole prompt: 600 rows of 49,152 floats are 118 MB for nothing."""
    conversation = fp32.conversation()
    seen: list[int] = []
    original = conversation.stack.logits

    def counted(hidden: Floats) -> Floats:
        seen.append(len(hidden))
        return original(hidden)

    monkeypatch.setattr(conversation.stack, "logits", counted)
    conversation.prefill(fp32.prompt)
    assert seen == [1]


def test_a_head_drafts_over_the_ids_that_it_names(toy: Toy) -> None:
    """Would catch columns that are put at their token ids, or a hot head that runs the rest."""
    stack = toy.conversation().stack
    hidden = np.random.default_rng(0).standard_normal((3, toy.spec.hidden)).astype(np.float32)
    full, hot, ids = stack.logits(hidden), stack.draft_logits("hot", hidden), stack.draft_ids("hot")
    assert ids.tolist() == [i for a, b in toy.model.artifact.manifest.head.hot_ranges for i in range(a, b)]
    assert np.array_equal(stack.draft_ids("full"), np.arange(toy.spec.vocab))
    assert np.array_equal(stack.draft_logits("full", hidden), full)
    assert np.array_equal(hot, full[:, ids])
    for ask in (lambda: stack.draft_ids("warm"), lambda: stack.draft_logits("warm", hidden)):
        with pytest.raises(UsageError, match=r"no head 'warm' .*full, hot"):
            ask()
