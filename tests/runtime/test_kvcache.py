"""The KV cache: after any history it holds what plain decoding would have written, or it raises."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import ContextLengthError, RuntimeSetupError
from selfspec.models.config import ModelConfig, RopeConfig
from selfspec.models.manifest import PAD_ROWS
from selfspec.runtime import kvcache
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.kvcache import KVCache
from selfspec.runtime.paths import FULL, exit_path
from selfspec.runtime.stack import Floats, Passes, Plan

if TYPE_CHECKING:
    from tests.conftest import Toy

CONFIG = ModelConfig("llama", 8, 16, 16, 2, 2, 1, 16, 1e-5, 24, RopeConfig(1e4), False, 0.25)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> KVCache:
    monkeypatch.setattr(kvcache, "INITIAL_ROWS", 4)
    return KVCache(CONFIG)


def fill(cache: KVCache, seed: int = 0) -> None:
    """Write noise into every row of every buffer through the memory that ONNX Runtime would write to."""
    rng = np.random.default_rng(seed)
    for layer in range(CONFIG.num_layers):
        for value in (cache.key(layer), cache.value(layer)):
            array = value.numpy()
            value.update_inplace(rng.standard_normal(array.shape).astype(np.float32))


def test_a_new_cache_is_empty_and_no_larger_than_it_must_be(small: KVCache) -> None:
    """A buffer of the whole context would cost gigabytes on long-context models before the first token."""
    assert (small.length, small.capacity) == (0, 4)
    assert small.key(0).shape() == [1, 1, 4 + PAD_ROWS, 16]
    assert KVCache(CONFIG).capacity == 4


def test_a_context_shorter_than_the_first_buffer_is_not_exceeded() -> None:
    """Rotary tables end with the context."""
    assert KVCache(CONFIG).capacity == 24


def test_growth_doubles_up_to_the_context_and_keeps_committed_rows(small: KVCache) -> None:
    """Rows lost or shifted when the buffer moves."""
    small.reserve(3)
    fill(small)
    small.commit(3)
    before = [small.rows(layer) for layer in range(2)]
    capacities = []
    for rows in (4, 5, 8, 9, 17, 24):
        small.reserve(rows)
        capacities.append(small.capacity)
    assert capacities == [4, 8, 8, 16, 24, 24]
    assert small.key(1).shape() == [1, 1, 24 + PAD_ROWS, 16]
    for layer in range(2):
        for old, new in zip(before[layer], small.rows(layer), strict=True):
            np.testing.assert_array_equal(old, new)


def test_growth_keeps_rows_that_a_draft_wrote_beyond_the_committed_ones(small: KVCache) -> None:
    """An early-exit draft that crosses the buffer's end: verification relies on the rows it wrote before."""
    small.reserve(4)
    fill(small)
    small.commit(2)
    written = small.key(0).numpy()[0, :, :4].copy()
    small.reserve(5)
    small.commit(2)
    np.testing.assert_array_equal(small.rows(0)[0], written)


def test_growth_is_announced_to_whoever_bound_the_buffers(small: KVCache) -> None:
    """A binding to the old memory: rows written where nobody reads."""
    small.reserve(4)
    assert small.generation == 0
    small.reserve(5)
    assert small.generation == 1


def test_overflow_raises_and_changes_nothing(small: KVCache) -> None:
    """A reserve that grows first and complains afterwards."""
    fill(small)
    small.commit(3)
    before, state = small.rows(0), (small.length, small.capacity, small.generation)
    with pytest.raises(ContextLengthError, match=r"25 tokens .* holds 24"):
        small.reserve(25)
    assert (small.length, small.capacity, small.generation) == state
    np.testing.assert_array_equal(small.rows(0)[0], before[0])


def test_truncate_is_exact_or_raises(small: KVCache) -> None:
    """A silent no-op, or a length beyond what was ever written."""
    fill(small)
    small.commit(4)
    small.truncate(4)
    small.truncate(1)
    assert small.rows(0)[0].shape == (1, 1, 16)
    for length in (2, 4, -1):
        with pytest.raises(ContextLengthError, match=f"holds 1 rows and cannot be truncated to {length}"):
            small.truncate(length)
    assert small.length == 1


def test_commit_counts_reserved_rows_only(small: KVCache) -> None:
    """Rows beyond the buffer counted as written."""
    small.commit(4)
    for rows in (1, -1):
        with pytest.raises(ContextLengthError, match=f"{rows} rows cannot be committed at 4"):
            small.commit(rows)
    assert small.length == 4


def test_rows_are_copies_of_committed_rows(small: KVCache) -> None:
    """A view would change under the reader's feet at the next pass."""
    fill(small, 1)
    small.commit(2)
    key = small.rows(0)[0]
    assert key.shape == (1, 2, 16)
    fill(small, 2)
    assert not np.array_equal(key, small.rows(0)[0])


# The property: histories of a toy model's cache, against plain decoding one row at a time.

OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 9), st.just(0)),
        st.tuples(st.just("draft and verify"), st.integers(1, 7), st.integers(0, 7)),
        st.tuples(st.just("early exit and verify"), st.integers(1, 7), st.integers(0, 7)),
        st.tuples(st.just("interior draft"), st.integers(1, 6), st.just(0)),
        st.tuples(st.just("reject"), st.integers(1, 7), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 100), st.just(0)),
    ),
    min_size=1,
    max_size=12,
)


class History:
    """Applies operations to a conversation. ``committed`` are the tokens whose rows the cache must hold."""

    def __init__(self, toy: Toy, seed: int) -> None:
        self.conversation = toy.conversation()
        self.committed: list[int] = []
        self._rng = np.random.default_rng(seed)
        self._layers = toy.spec.layers

    def apply(self, operation: str, size: int, kept: int) -> None:
        stack, kv = self.conversation.stack, self.conversation.kv
        ids = self._rng.integers(0, self.conversation.config.vocab_size, size)
        start, full = kv.length, self.conversation.full_plan
        if operation == "truncate":
            length = min(size, kv.length)
            kv.truncate(length)
            del self.committed[length:]
            return
        if operation == "interior draft":  # without layers 2 and 3, row by row; never committed
            for i in range(size):
                stack.run(Plan((*range(4), *range(8, 12))), stack.embed(ids[i : i + 1]), start + i)
            return
        if operation == "early exit and verify":
            rows = [stack.run(Plan.layers(0, 4), stack.embed(ids[i : i + 1]), start + i) for i in range(size - 1)]
            rows.append(stack.run(Plan.layers(0, 4), stack.embed(ids[-1:]), start + size - 1))
            stack.run(Plan.layers(4, self._layers), np.concatenate(rows), start)
        else:
            stack.run(full, stack.embed(ids), start)
        count = {"append": size, "reject": 0}.get(operation, min(size, 1 + kept))
        kv.commit(count)
        self.committed += ids[:count].tolist()


def plain_rows(toy: Toy, tokens: list[int]) -> list[tuple[Floats, Floats]]:
    conversation = toy.conversation()
    for i, token in enumerate(tokens):
        conversation.stack.run(conversation.full_plan, conversation.stack.embed(np.asarray([token])), i)
        conversation.kv.commit(1)
    return [conversation.kv.rows(layer) for layer in range(toy.spec.layers)]


@given(history=OPERATIONS, initial_rows=st.sampled_from([3, 5, 8, 2048]), seed=st.integers(0, 99))
def test_any_history_leaves_what_plain_decoding_leaves(
    fp32: Toy, history: list[tuple[str, int, int]], initial_rows: int, seed: int
) -> None:
    """A row of a rejected draft that survives, a row lost when the buffer grows, a position that is off by one."""
    assert fp32.passes  # found with buffers as they are, not with these small ones
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kvcache, "INITIAL_ROWS", initial_rows)
        past = History(fp32, seed)
        for operation, size, kept in history:
            past.apply(operation, size, kept)
    assert past.conversation.kv.length == len(past.committed)
    expected = plain_rows(fp32, past.committed)
    for layer, (key, value) in enumerate(expected):
        found_key, found_value = past.conversation.kv.rows(layer)
        np.testing.assert_array_equal(found_key, key, err_msg=f"keys of layer {layer}")
        np.testing.assert_array_equal(found_value, value, err_msg=f"values of layer {layer}")


@pytest.mark.parametrize("initial_rows", [20, 21, 22, 23, 24])
def test_a_buffer_that_grows_during_a_round_does_not_change_the_text(
    toy: Toy, initial_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An early-exit draft across the end of the buffer (first at 2,048 tokens), wherever in the round it falls."""
    prompt = toy.prompt[:18]
    plain = toy.run(NoDrafter(), prompt=prompt, count=40)
    monkeypatch.setattr(kvcache, "INITIAL_ROWS", initial_rows)
    identity = PathDrafter(exit_path(toy.spec.layers, FULL), 5, rule=Threshold(0.0))
    for drafter in (NoDrafter(), PathDrafter(exit_path(4), 5, rule=Threshold(0.0)), identity):
        assert toy.run(drafter, prompt=prompt, count=40).tokens == plain.tokens
    assert toy.run(identity, prompt=prompt, count=40).conversation.kv.capacity > initial_rows


def _snapshot(conversation: Conversation) -> list[bytes]:
    kv, layers = conversation.kv, range(conversation.config.num_layers)
    return [value.numpy().tobytes() for i in layers for value in (kv.key(i), kv.value(i))]


def test_a_pass_beyond_the_context_raises_before_any_write(fp32: Toy) -> None:
    """Rows written past the rotary tables, or half a pass written before the refusal."""
    conversation = fp32.conversation()
    context = fp32.spec.context
    conversation.prefill([i % 300 for i in range(context - 3)])
    before = _snapshot(conversation)
    hidden = conversation.stack.embed(np.asarray([5, 6, 7, 8]))
    with pytest.raises(ContextLengthError, match=f"{context + 1} tokens do not fit: .* {context}"):
        conversation.stack.run(conversation.full_plan, hidden, context - 3)
    assert _snapshot(conversation) == before
    assert conversation.kv.length == context - 3


def test_a_prompt_beyond_the_context_raises_before_any_write(fp32: Toy) -> None:
    """A prefill that runs its first chunks and fails at the last."""
    conversation = fp32.conversation()
    before = _snapshot(conversation)
    with pytest.raises(ContextLengthError, match="257 tokens, but the model's context holds 256"):
        conversation.prefill([1] * 257)
    assert _snapshot(conversation) == before
    assert conversation.tokens == []


def test_padding_is_left_behind_no_committed_row(fp32: Toy) -> None:
    """A pad row written before the real one would be read by it, and committed with it."""
    padded, bare = Conversation(fp32.model.sessions, Passes(8)), fp32.conversation()
    for conversation in (padded, bare):
        for i, token in enumerate(fp32.prompt):
            conversation.stack.run(conversation.full_plan, conversation.stack.embed(np.asarray([token])), i)
            conversation.kv.commit(1)
    for layer in range(fp32.spec.layers):
        for a, b in zip(padded.kv.rows(layer), bare.kv.rows(layer), strict=True):
            np.testing.assert_allclose(a, b, rtol=0, atol=1e-5)


def test_buffers_that_the_machine_does_not_give_are_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """An artifact of ten thousand layers and wide heads, where nothing says how much memory there is: MemoryError, or
    OSError out of mmap."""
    monkeypatch.setattr("selfspec.runtime.kvcache.memory_room", lambda: None)
    config = replace(CONFIG, num_layers=10_000, num_kv_heads=2**20, num_attention_heads=2**20, context_length=2**20)
    with pytest.raises(RuntimeSetupError, match="which this machine does not give"):
        KVCache(config)
