"""A conversation that goes on equals one that begins anew, bit for bit under exact, however the last turn ended."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from selfspec.errors import ContextLengthError, UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.prompt_lookup import PromptLookup
from selfspec.runtime.generation import Generation
from selfspec.runtime.stack import Floats

if TYPE_CHECKING:
    from tests.conftest import Toy

DRAFTS = ("none", "early-exit", "prompt-lookup", "auto")
OPTIONS: dict[str, Any] = {"max_new_tokens": 24, "logprobs": 4}


def ids(toy: Toy, text: str) -> list[int]:
    return toy.model.codec.encode(text)


def ask(toy: Toy, prompt: list[int], conversation: Conversation | None = None, **options: Any) -> Generation:
    exact = {} if conversation is not None else {"exact": True}
    stream = toy.model.stream_ids(prompt, conversation=conversation, **(OPTIONS | exact | options))
    for _ in stream:
        pass
    return stream.result


def same(found: Generation, fresh: Generation) -> None:
    assert found.token_ids == fresh.token_ids
    assert found.logprobs == fresh.logprobs
    assert found.text == fresh.text


@pytest.mark.parametrize("draft", DRAFTS)
def test_turns_equal_fresh_runs(toy: Toy, draft: str) -> None:
    """Rows written by drafts, by narrow passes and by long prefills must be the same rows."""
    conversation = toy.model.conversation(exact=True)
    prompt = ids(toy, "It is not the wind that worries me, ")
    for turn in ("he said.", " The keeper agrees.", " In 1987 the town had two thousand people"):
        prompt = prompt + ids(toy, turn)
        found = ask(toy, prompt, conversation, draft=draft)
        same(found, ask(toy, prompt, draft=draft))
        assert conversation.tokens == prompt + list(found.token_ids)
        prompt += found.token_ids


def test_only_what_is_new_is_run(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that is kept and then filled again from the start."""
    conversation = fp32.model.conversation(exact=True)
    first = fp32.prompt
    found = ask(fp32, first, conversation)
    assert found.stats.reused_prompt_tokens == 0
    run: list[int] = []
    original = conversation.prefill

    def counted(new: list[int]) -> Floats:
        run.append(len(new))
        return original(new)

    monkeypatch.setattr(conversation, "prefill", counted)
    longer = [*first, *found.token_ids, 9, 8, 7]
    kept = len(first) + len(found.token_ids) - 1  # the last one was pending
    assert ask(fp32, longer, conversation).stats.reused_prompt_tokens == kept
    assert ask(fp32, longer, conversation).stats.reused_prompt_tokens == len(longer) - 1
    assert ask(fp32, [5, 6], conversation).stats.reused_prompt_tokens == 0
    assert run == [len(longer) - kept, 1, 2]


@pytest.mark.parametrize("change", [0, 3, 10, -1])
def test_a_changed_history_is_run_again_from_the_change_on(fp32: Toy, change: int) -> None:
    """Rows of tokens that were edited, or of an answer that was regenerated."""
    conversation = fp32.model.conversation(exact=True)
    prompt = list(fp32.prompt)
    ask(fp32, prompt, conversation)
    prompt[change] = 77
    found = ask(fp32, prompt, conversation, draft="early-exit")
    same(found, ask(fp32, prompt, draft="none"))
    assert found.stats.reused_prompt_tokens == change % len(prompt)


@pytest.mark.parametrize("seen", [0, 1, 2, 7, 11])
@pytest.mark.parametrize("draft", ["none", "early-exit", "prompt-lookup"])
def test_an_answer_that_was_broken_off_leaves_a_usable_conversation(fp32: Toy, draft: str, seen: int) -> None:
    """Tokens of a block that nobody saw: still in the conversation, and the next turn would build on them."""
    conversation = fp32.model.conversation(exact=True)
    stream = fp32.model.stream_ids(fp32.prompt, conversation=conversation, draft=draft, **OPTIONS)
    said = [next(stream).id for _ in range(seen)]
    stream.close()
    assert conversation.tokens == (fp32.prompt + said if seen else [])
    prompt = [*fp32.prompt, *said, 9, 8]
    same(ask(fp32, prompt, conversation, draft=draft), ask(fp32, prompt, draft="none"))


@pytest.mark.parametrize("kind", [KeyboardInterrupt, RuntimeError])
@pytest.mark.parametrize("where", ["embed", "run", "logit_rows"])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_an_error_or_interrupt_in_a_round_leaves_a_usable_conversation(
    fp32: Toy, monkeypatch: pytest.MonkeyPatch, kind: type[BaseException], where: str, after: int
) -> None:
    """Ctrl-C lands anywhere: in prefill, in a draft, between a commit and its tokens."""
    conversation = fp32.model.conversation(exact=True)
    ask(fp32, fp32.prompt[:5], conversation)
    original, calls = getattr(conversation.stack, where), [0]

    def failing(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] > after:
            raise kind
        return original(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(conversation.stack, where, failing)
        with pytest.raises(kind):
            ask(fp32, fp32.prompt, conversation, draft="early-exit")
    same(ask(fp32, fp32.prompt, conversation, draft="early-exit"), ask(fp32, fp32.prompt, draft="none"))


def test_an_interrupt_between_rows_and_tokens_is_survived_too(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """KV rows committed and their tokens not yet noted: more rows than tokens."""
    conversation = fp32.model.conversation(exact=True)
    original = conversation.kv.commit
    calls = [0]

    def interrupted(rows: int) -> None:
        original(rows)
        calls[0] += 1
        if calls[0] == 4:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(conversation.kv, "commit", interrupted)
        with pytest.raises(KeyboardInterrupt):
            ask(fp32, fp32.prompt, conversation, draft="early-exit")
    same(ask(fp32, fp32.prompt, conversation), ask(fp32, fp32.prompt))


def test_a_stop_string_and_no_new_tokens_leave_a_usable_conversation(toy: Toy) -> None:
    conversation = toy.model.conversation(exact=True)
    plain = ask(toy, toy.prompt)
    stopped = ask(toy, toy.prompt, conversation, stop=[plain.text[20:23]], draft="early-exit")
    assert len(stopped.token_ids) < len(plain.token_ids)
    same(ask(toy, toy.prompt, conversation), plain)
    assert ask(toy, toy.prompt, conversation, max_new_tokens=0).token_ids == ()
    assert conversation.tokens == toy.prompt
    same(ask(toy, toy.prompt, conversation), plain)


def test_wide_and_narrow_prefill_write_the_same_rows(toy: Toy) -> None:
    """What makes a turn equal a fresh run: a row's bits must not depend on the rows it was run with."""
    prompt = np.random.default_rng(3).integers(2, toy.spec.vocab, 240).tolist()
    reference = toy.conversation()
    expected = reference.prefill(prompt)
    for sizes in ([1] * 240, [7] * 35, [16] * 15, [100, 1, 139], [148, 240], [33, 35, 65, 67, 40]):
        conversation = toy.conversation()
        begin = 0
        for size in sizes:
            chunk = np.asarray(prompt[begin : begin + size])
            if not len(chunk):
                break
            hidden = conversation.stack.run(conversation.full_plan, conversation.stack.embed(chunk), begin)
            conversation.kv.commit(len(chunk))
            begin += len(chunk)
        np.testing.assert_array_equal(conversation.stack.logits(hidden[-1:])[0], expected)
        for layer in range(toy.spec.layers):
            for found, wanted in zip(conversation.kv.rows(layer), reference.kv.rows(layer), strict=True):
                np.testing.assert_array_equal(found, wanted)


def test_a_prompt_of_any_length_ends_in_the_same_logits(toy: Toy) -> None:
    """Kernels that mind some widths of a pass: with heads of 16, 33 and 35 rows gave the last one other bits."""
    ids = np.random.default_rng(5).integers(2, toy.spec.vocab, 130).tolist()
    alone = toy.conversation()
    for n in range(1, 130):
        one_by_one = alone.prefill(ids[n - 1 : n])
        np.testing.assert_array_equal(toy.conversation().prefill(ids[:n]), one_by_one, err_msg=f"{n} tokens")


def test_prompt_lookup_copies_from_earlier_turns(fp32: Toy) -> None:
    """A drafter that only sees the new prompt tokens could not copy what was said two turns ago."""
    conversation = fp32.model.conversation(exact=True)
    found = ask(fp32, fp32.prompt, conversation)
    prompt = [*fp32.prompt, *found.token_ids, 9, 8, *found.token_ids[:6]]
    ask(fp32, prompt, conversation, max_new_tokens=0)
    assert PromptLookup().propose(conversation, 5).tokens == found.token_ids[6:11]


def test_a_prompt_beyond_the_context_is_refused_and_what_was_held_stays(fp32: Toy) -> None:
    """Counting what is held on top of the new prompt refuses prompts that fit; truncating first loses what was held."""
    conversation = fp32.model.conversation(exact=True)
    ask(fp32, fp32.prompt, conversation)
    held = list(conversation.tokens)
    with pytest.raises(ContextLengthError, match=r"257 tokens.* holds 256"):
        ask(fp32, [5] * 257, conversation)
    assert conversation.tokens == held
    assert ask(fp32, [5] * 250, conversation).finish_reason == "context"
    same(ask(fp32, fp32.prompt, conversation), ask(fp32, fp32.prompt))


def test_one_conversation_serves_one_generation_at_a_time(fp32: Toy) -> None:
    """Two streams over one KV cache would each overwrite what the other reads."""
    conversation = fp32.model.conversation()
    first = fp32.model.stream_ids(fp32.prompt, conversation=conversation, draft="none")
    second = fp32.model.stream_ids(fp32.prompt, conversation=conversation, draft="none")
    next(first)
    with pytest.raises(UsageError, match="in use"):
        next(second)
    errors: list[BaseException] = []

    def other() -> None:
        try:
            list(fp32.model.stream_ids(fp32.prompt, conversation=conversation, draft="none"))
        except UsageError as error:
            errors.append(error)

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert len(errors) == 1
    next(first)
    first.close()
    assert ask(fp32, fp32.prompt, conversation).token_ids


def test_a_stream_that_is_dropped_lets_its_conversation_go(fp32: Toy) -> None:
    """``break`` in a for loop is how people stop: a cycle of references would hold the conversation until a GC."""
    conversation = fp32.model.conversation()
    for _ in range(3):
        for _token in fp32.model.stream_ids(fp32.prompt, conversation=conversation, draft="none"):
            break
    assert len(conversation.tokens) == len(fp32.prompt) + 1


def test_a_conversation_stays_with_its_exactness_and_its_model(fp32: Toy, make_toy: Callable[..., Toy]) -> None:
    """Rows with other bits under a promise of equal ones; rows of another model."""
    for made in (True, False):
        conversation = fp32.model.conversation(exact=made)
        with pytest.raises(UsageError, match=rf"conversation\(exact={not made}\)"):
            fp32.model.stream_ids(fp32.prompt, conversation=conversation, exact=not made)
        fp32.model.stream_ids(fp32.prompt, conversation=conversation, exact=made)
    other = make_toy(type(fp32.spec)(layers=2), precision="int4")
    with pytest.raises(UsageError, match="another model's"):
        other.model.stream_ids(fp32.prompt, conversation=conversation)


def test_two_threads_on_one_model_say_what_they_say_alone(toy: Toy) -> None:
    """Scratch, bindings or counters shared between conversations: texts that depend on who runs beside them."""
    prompts = [ids(toy, "It is not the wind that"), ids(toy, "He has written down the weather of every day")]

    def dialogue(index: int) -> list[Generation]:
        conversation, prompt, said = toy.model.conversation(exact=True), list(prompts[index]), []
        for turn in range(4):
            options = {"temperature": 0.8, "seed": turn} if turn % 2 else {"repetition_penalty": 1.2}
            said.append(ask(toy, prompt, conversation, draft=DRAFTS[turn], **options))
            prompt += [*said[-1].token_ids, 9, 8 + index]
        return said

    alone = [dialogue(0), dialogue(1)]
    for _ in range(3):
        barrier = threading.Barrier(2)

        def work(index: int, barrier: threading.Barrier = barrier) -> list[Generation]:
            barrier.wait()
            return dialogue(index)

        with ThreadPoolExecutor(2) as pool:
            together = list(pool.map(work, (0, 1)))  # raises what a thread raised
        for found, expected in zip(together, alone, strict=True):
            for a, b in zip(found, expected, strict=True):
                same(a, b)


def test_observers_of_rounds_do_not_change_with_reuse(fp32: Toy) -> None:
    """The first token of a turn is the prompt's own prediction and no round, as in a fresh run."""
    conversation = fp32.model.conversation(exact=True)
    ask(fp32, fp32.prompt, conversation)
    stream = fp32.model.stream_ids([*fp32.prompt, 9], conversation=conversation, draft="none", **OPTIONS)
    tokens = list(stream)
    assert [r.tokens for r in stream.rounds] == [(token.id,) for token in tokens[1:]]
    assert stream.result.stats.ttft_seconds > 0
