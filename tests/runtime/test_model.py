"""The public object: arguments that cannot work are refused before anything runs; results say what happened."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import pytest

from selfspec import Model, load
from selfspec.errors import ContextLengthError, UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.drafters.base import Draft, NoDrafter, Round
from selfspec.runtime.drafters.kind import DraftContext
from selfspec.runtime.drafters.model_path import PathDrafter
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.paths import exit_name
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stack import Plan
from selfspec.runtime.text import TextCodec

if TYPE_CHECKING:
    from tests.conftest import Toy

PROMPT = "It is not the wind"


@pytest.fixture
def model(fp32: Toy) -> Model:
    return fp32.model


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"prompt": ""}, "`prompt` is empty"),
        ({"prompt": None}, "either `prompt` or `messages`"),
        ({"prompt": "a", "messages": [{"role": "user", "content": "a"}]}, "not both"),
        ({"prompt": None, "messages": []}, "`messages` is empty"),
        ({"prompt": None, "messages": [{"role": "user", "content": "a"}]}, "no chat template"),
        ({"draft": "early_exit"}, "unknown drafter 'early_exit'.*Did you mean 'early-exit'"),
        ({"draft": "medusa"}, "known are auto, early-exit, fewer-experts, none"),
        ({"draft": ""}, "unknown drafter ''"),
        ({"draft": "early-exit", "exit_layer": 99}, r"`exit_layer` 99: .*exits 2, 4, 5, 6 \(the last"),
        ({"draft": "early-exit", "exit_layer": 3}, "`exit_layer` 3"),
        ({"draft": "early-exit", "exit_layer": 0}, "`exit_layer` 0"),
        ({"draft": "none", "exit_layer": 2}, "`exit_layer` has no effect with the drafter none"),
        ({"draft": "prompt-lookup", "exit_layer": 2}, "`exit_layer` has no effect"),
        ({"draft": "auto", "exit_layer": 2}, "`exit_layer` has no effect"),
        ({"draft": "none", "num_draft_tokens": 3}, "`num_draft_tokens` has no effect"),
        ({"draft": "prompt-lookup", "num_draft_tokens": -1}, "`num_draft_tokens` -1: .*between 1 and 15"),
        ({"draft": "prompt-lookup", "num_draft_tokens": 0}, "`num_draft_tokens` 0: .*the drafter none"),
        ({"draft": "early-exit", "num_draft_tokens": 16}, "`num_draft_tokens` 16"),
        ({"draft": "auto", "num_draft_tokens": 16}, "`num_draft_tokens` 16"),
        ({"max_new_tokens": -1}, "`max_new_tokens` -1"),
        ({"temperature": math.nan}, "`temperature` nan"),
        ({"temperature": -1.0}, "`temperature` -1"),
        ({"top_p": 0.0}, "`top_p` 0"),
        ({"top_p": 1.5}, "`top_p` 1.5"),
        ({"seed": -3}, "`seed` -3"),
    ],
)
def test_an_argument_that_cannot_work_is_refused_before_anything_runs(
    model: Model, arguments: dict[str, Any], named: str
) -> None:
    """Found at the call, not at the first token; in one sentence, not in a traceback from deep inside."""
    with pytest.raises(UsageError, match=named) as caught:
        model.stream(**{"prompt": PROMPT, "draft": "none"} | arguments)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 2


def test_unknown_keywords_are_errors(model: Model) -> None:
    """A misspelt option that is silently dropped: the text is greedy although temperatur was 0.8."""
    for call in (model.stream, model.generate, lambda prompt, **options: model.stream_ids([5], **options)):
        with pytest.raises(UsageError, match=r"unknown option 'temperatur': known are .*, top_p\. Did you") as caught:
            call(PROMPT, temperatur=0.8)  # type: ignore[call-arg]
        assert caught.value.parameter == "temperatur"
    with pytest.raises(UsageError, match=r"unknown option 'message': .* Did you mean 'messages'"):
        model.stream(message=[{"role": "user", "content": "a"}])  # type: ignore[call-arg]


def test_a_prompt_longer_than_the_context_names_both_numbers(model: Model, fp32: Toy) -> None:
    """'Index out of range' from a graph, after the machine has worked for a while."""
    count = len(fp32.model.codec.encode("word " * 300))
    with pytest.raises(ContextLengthError, match=f"{count} tokens.* holds 256"):
        model.stream("word " * 300, draft="none")
    with pytest.raises(ContextLengthError, match=r"257 tokens.* holds 256"):
        model.stream_ids([5] * 257, draft="none")
    assert list(model.stream_ids([5] * 256, draft="none")) == []


def test_token_ids_that_cannot_be_a_prompt_are_refused_before_anything_runs(model: Model) -> None:
    """An id beyond the embedding is a C++ error deep inside; no ids at all must not wait for the first token."""
    for ids in ([320], [5, -1]):
        with pytest.raises(UsageError, match="outside the vocabulary of 320"):
            model.stream_ids(ids, draft="none")
    with pytest.raises(UsageError, match="prompt is empty"):
        model.stream_ids([], draft="none")


def test_an_artifact_without_exits_can_only_leave_after_all_layers(make_toy: Callable[..., Toy]) -> None:
    """Division by an empty list of exits; and the short head is a draft of its own."""
    toy = make_toy(precision="fp32", exit_layers=())
    with pytest.raises(UsageError, match=r"exits 6 \(the last one"):
        toy.model.stream(PROMPT, draft="early-exit", exit_layer=3)
    plain = toy.model.generate(PROMPT, draft="none", max_new_tokens=30, exact=True)
    short = toy.model.generate(PROMPT, draft="early-exit", exit_layer=6, max_new_tokens=30, exact=True)
    assert short.token_ids == plain.token_ids
    assert short.stats.accepted_tokens > 0
    assert toy.model.generate(PROMPT, draft="auto", max_new_tokens=5).token_ids


@pytest.mark.parametrize("draft", ["none", "early-exit", "prompt-lookup", "auto"])
def test_every_drafter_gives_the_same_text_under_exact(toy: Toy, draft: str) -> None:
    """The engine's promise, through the front door."""
    plain = toy.model.generate(PROMPT, max_new_tokens=60, draft="none", exact=True)
    drafted = toy.model.generate(PROMPT, max_new_tokens=60, draft=draft, exact=True)
    assert drafted.token_ids == plain.token_ids
    assert drafted.text == plain.text
    warm: dict[str, Any] = {"temperature": 0.8, "seed": 5, "exact": True, "max_new_tokens": 40}
    plain = toy.model.generate(PROMPT, draft="none", **warm)
    assert toy.model.generate(PROMPT, draft=draft, **warm).token_ids == plain.token_ids


def test_the_public_model_says_what_the_engine_says(model: Model, fp32: Toy) -> None:
    """An encoded prompt, a seed or a position lost between the two."""
    for sampling in (Sampling(), Sampling(0.8, 0.9, 4)):
        warm: dict[str, Any] = asdict(sampling)
        found = model.generate(PROMPT, max_new_tokens=20, draft="none", exact=True, **warm)
        engine = fp32.run(NoDrafter(), prompt=model.codec.encode(PROMPT), sampling=sampling, count=20)
        assert found.token_ids == engine.tokens[: len(found.token_ids)]
        assert len(found.token_ids) == 20


def test_the_result_describes_the_generation(model: Model) -> None:
    """Counts of the wrong thing: prompt tokens, rounds, drafts; text that is not what was streamed."""
    stream = model.stream(PROMPT, max_new_tokens=30, draft="early-exit", exit_layer=4, exact=True)
    tokens = list(stream)
    result = stream.result
    assert result.text == "".join(t.text for t in tokens) == model.codec.decode(result.token_ids)
    assert result.token_ids == tuple(t.id for t in tokens)
    assert result.finish_reason == "length"
    stats, rounds = result.stats, stream.rounds
    assert stats.prompt_tokens == len(model.codec.encode(PROMPT))
    assert stats.generated_tokens == 30
    assert stats.rounds == len(rounds)
    assert stats.drafted_tokens == sum(r.num_drafted for r in rounds) > 0
    assert stats.accepted_tokens == sum(t.from_draft for t in tokens) == sum(r.num_accepted for r in rounds) > 0
    assert stats.tokens_per_round == pytest.approx(29 / stats.rounds)
    assert stats.ttft_seconds > 0
    assert stats.decode_seconds > 0
    assert stats.tokens_per_second == pytest.approx(29 / stats.decode_seconds)


def test_tokens_from_the_draft_are_marked(model: Model) -> None:
    """Every token of a round but its last comes from the draft."""
    stream = model.stream(PROMPT, max_new_tokens=30, draft="early-exit", exit_layer=4, exact=True)
    marks = [t.from_draft for t in stream]
    expected = [False]
    for r in stream.rounds:
        expected += [i < r.num_accepted for i in range(len(r.tokens))]
    assert marks == expected
    assert not marks[0]


def ending(model: Model, fp32: Toy, monkeypatch: pytest.MonkeyPatch, at: int) -> tuple[int, ...]:
    """Make the token that plain decoding says at ``at`` an end-of-sequence token; returns the text up to it."""
    tokens = fp32.run(NoDrafter(), prompt=model.codec.encode(PROMPT), count=60).tokens
    first = tokens.index(tokens[at])
    monkeypatch.setattr(model.codec, "eos_token_ids", frozenset({tokens[at]}))
    return tokens[: first + 1]


@pytest.mark.parametrize("draft", ["none", "early-exit", "prompt-lookup"])
def test_the_end_of_sequence_ends_the_text_and_is_the_reason(
    fp32: Toy, draft: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Generation that runs on, or a reason that says 'length'."""
    model = load(fp32.folder, threads=1, notify=lambda _: None)
    expected = ending(model, fp32, monkeypatch, 17)
    result = model.generate(PROMPT, max_new_tokens=60, draft=draft, exact=True)
    assert result.token_ids == expected
    assert result.finish_reason == "stop"


def test_the_exporters_end_of_sequence_tokens_are_used(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """The manifest's union, not only the first id."""
    tokens = fp32.run(NoDrafter(), prompt=fp32.model.codec.encode(PROMPT), count=60).tokens
    ends = [tokens[20], tokens[9]]
    toy = make_toy(replace(fp32.spec, eos=ends), precision="fp32", exit_layers=(2, 4, 5), hot_vocab=256)
    result = toy.model.generate(PROMPT, max_new_tokens=60, draft="none", exact=True)
    assert toy.model.codec.eos_token_ids == frozenset(ends)
    assert result.token_ids == tokens[: min(tokens.index(e) for e in ends) + 1]


@pytest.mark.parametrize("draft", ["none", "prompt-lookup", "early-exit", "auto"])
def test_reasons_for_ending_at_a_limit(model: Model, fp32: Toy, draft: str) -> None:
    """'context' tells the user to shorten the prompt, 'length' to ask for more tokens."""
    ids = [5 + i % 300 for i in range(250)]
    result = _all(model.stream_ids(ids, max_new_tokens=20, draft=draft))
    assert (len(result.token_ids), result.finish_reason) == (6, "context")
    result = _all(model.stream_ids(ids, max_new_tokens=6, draft=draft))
    assert (len(result.token_ids), result.finish_reason) == (6, "length")
    result = _all(model.stream_ids(ids, max_new_tokens=3, draft=draft))
    assert (len(result.token_ids), result.finish_reason) == (3, "length")
    result = _all(model.stream_ids([5] * 256, max_new_tokens=3, draft=draft))
    assert (result.token_ids, result.finish_reason) == ((), "context")


def _all(stream: Any) -> Any:
    for _ in stream:
        pass
    return stream.result


@pytest.mark.parametrize("draft", ["none", "prompt-lookup", "early-exit", "auto"])
@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_tokens_or_none(model: Model, draft: str, count: int) -> None:
    """Zero is an answer too; statistics of it must not divide by nothing."""
    result = model.generate(PROMPT, max_new_tokens=count, draft=draft)
    assert len(result.token_ids) == count
    assert result.finish_reason == "length"
    assert result.stats.to_dict()["generated_tokens"] == count


def test_half_a_character_at_the_last_token_is_given_out(make_toy: Callable[..., Toy], model: Model) -> None:
    """Streamed text and result must agree although the text ends inside a character."""
    ids = model.codec.encode("wind")
    seen = set()
    for count in range(1, 40):
        stream = model.stream_ids(ids, max_new_tokens=count, draft="none", exact=True)
        text = "".join(t.text for t in stream)
        assert text == stream.result.text == model.codec.decode(stream.result.token_ids)
        seen.add(text.endswith("\ufffd"))
    assert seen == {True, False}, "no text ended inside a character: nothing was tested"


def test_an_unfinished_stream_has_a_partial_result(model: Model) -> None:
    """A user who stops reading still wants what there was; and the model must stay usable."""
    stream = model.stream(PROMPT, max_new_tokens=50, draft="early-exit", exact=True)
    tokens = [next(stream) for _ in range(7)]
    assert stream.result.token_ids == tuple(t.id for t in tokens)
    again = model.generate(PROMPT, max_new_tokens=7, draft="none", exact=True)
    assert again.token_ids == stream.result.token_ids


def test_two_streams_may_be_read_alternately(model: Model) -> None:
    """State in the model object instead of in the conversation."""
    arguments: dict[str, Any] = {"max_new_tokens": 25, "draft": "early-exit", "exact": True}
    prompts = (PROMPT, "The keeper agrees.")
    alone = [model.generate(p, **arguments).token_ids for p in prompts]
    streams = [model.stream(p, **arguments) for p in prompts]
    together = [tuple(t.id for t in pair) for pair in zip(*streams, strict=True)]
    assert list(zip(*together, strict=True)) == alone


def test_a_drafter_of_ones_own_may_be_passed(model: Model) -> None:
    """The protocol is public."""

    class Mine:
        rounds = 0

        def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
            return Draft((9,) * min(2, max_tokens))

        def observe(self, result: Round) -> None:
            self.rounds += 1

    mine = Mine()
    found = model.generate(PROMPT, max_new_tokens=20, draft=mine, exact=True)
    assert mine.rounds == found.stats.rounds > 0
    assert found.token_ids == model.generate(PROMPT, max_new_tokens=20, draft="none", exact=True).token_ids


def test_messages_go_through_the_template(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """A chat encoded as raw text, or raw text put through the template."""
    template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
    toy = make_toy(replace(fp32.spec, layers=2), chat_template=template, precision="fp32")
    arguments: dict[str, Any] = {"max_new_tokens": 10, "draft": "none", "exact": True}
    chat = toy.model.generate(messages=[{"role": "user", "content": "hi"}], **arguments)
    assert chat.token_ids == toy.model.generate("<user>hi<assistant>", **arguments).token_ids
    assert chat.stats.prompt_tokens == len(toy.model.codec.encode("<user>hi<assistant>"))
    assert toy.model.generate("hi", **arguments).stats.prompt_tokens == len(toy.model.codec.encode("hi"))


def test_early_exit_without_a_layer_takes_the_profiles_choice(model: Model) -> None:
    """The deepest exit by default, or a measurement where the user has named one."""
    manifest = model.artifact.manifest
    right, wrong = (True,) * 50, (False,) * 50
    exits = {
        exit_name(k): MeasuredPath(cost, cost, (0.9,) * 50, hits)
        for k, cost, hits in ((2, 0.1, right), (4, 0.1, wrong), (6, 0.9, right))
    }
    profile = Profile({1: 1.0, 2: 1.1, 4: 1.3}, exits, None)
    found = parse("early-exit").make(DraftContext(manifest, lambda: profile))
    assert isinstance(found, PathDrafter)
    assert found.path.name == exit_name(2)
    for layer in (4, 6):  # the last one: all layers, and a short head
        spec = parse("early-exit", exit_layer=layer)
        spec.check(manifest)
        found = spec.make(DraftContext(manifest, _never))
        assert isinstance(found, PathDrafter)
        assert found.path.plan == Plan.layers(0, layer)
    assert isinstance(parse("none").make(DraftContext(manifest, _never)), NoDrafter)


def _never() -> Profile:
    raise AssertionError("measured without need")


def test_the_codec_is_the_artifacts(model: Model) -> None:
    """Text and ids agree with tokenizer.json as it was exported."""
    assert isinstance(model.codec, TextCodec)
    assert model.codec.decode(model.codec.encode(PROMPT)) == PROMPT


def test_iterating_yields_tokens_as_their_round_commits_them(model: Model) -> None:
    """A stream that computes everything before it yields its first token."""
    stream = model.stream(PROMPT, max_new_tokens=30, draft="none", exact=True)
    assert isinstance(stream, Iterator)
    assert stream.rounds == []
    next(stream)
    assert stream.rounds == []  # the first token is the prompt's own
    next(stream)
    assert len(stream.rounds) == 1
