"""A generation as its reader sees it: stop strings inside accepted blocks, log-probabilities, ends of every kind."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from selfspec import Model
from selfspec.errors import UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft, Drafter, Round
from selfspec.runtime.generation import Generation, TokenStream

if TYPE_CHECKING:
    from tests.conftest import Toy

PROMPT = "It is not the wind"
DRAFTS = ("none", "early-exit", "prompt-lookup", "auto")
EXACT: dict[str, Any] = {"exact": True, "max_new_tokens": 60}


class Right:
    """Drafts what plain decoding said: every block is accepted, so that ends fall into the middle of blocks."""

    def __init__(self, prompt: int, tokens: tuple[int, ...]) -> None:
        self._prompt, self._tokens = prompt, tokens

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        at = len(conversation.tokens) - self._prompt
        return Draft(self._tokens[at : at + min(7, max_tokens)])

    def observe(self, result: Round) -> None:
        """Nothing to learn."""


@pytest.fixture
def model(toy: Toy) -> Model:
    return toy.model


@pytest.fixture
def plain(model: Model) -> Generation:
    return model.generate(PROMPT, draft="none", **EXACT)


def right(model: Model, plain: Generation) -> Drafter:
    return Right(len(model.codec.encode(PROMPT)), plain.token_ids)


def drafts(model: Model, plain: Generation) -> list[str | Drafter]:
    return [*DRAFTS, right(model, plain)]


def stop_at(plain: Generation, begin: int, length: int) -> str:
    return plain.text[begin : begin + length]


@pytest.mark.parametrize(("begin", "length"), [(30, 1), (31, 4), (40, 9), (20, 17), (0, 3)])
def test_a_stop_string_ends_text_ids_and_conversation_alike(
    model: Model, plain: Generation, begin: int, length: int
) -> None:
    """Tokens behind it that were accepted in the same block: in the ids, in the statistics, or in the KV cache."""
    stop = stop_at(plain, begin, length)
    cut = plain.text.index(stop)
    kept, text = 0, ""
    for token in model.stream(PROMPT, draft="none", **EXACT):
        if len(text) >= cut:
            break
        kept, text = kept + 1, text + token.text
    for draft in drafts(model, plain):
        conversation = model.conversation(exact=True)
        stream = model.stream(PROMPT, draft=draft, stop=[stop], conversation=conversation, **EXACT)
        shown = "".join(token.text for token in stream)
        result = stream.result
        assert shown == result.text == plain.text[:cut]
        assert (result.finish_reason, result.stop_string) == ("stop", stop)
        assert result.token_ids == plain.token_ids[:kept]
        assert result.stats.generated_tokens == kept
        assert conversation.tokens == model.codec.encode(PROMPT) + list(plain.token_ids[:kept])
        assert conversation.kv.length <= len(conversation.tokens)


def test_the_first_token_may_belong_to_the_stop_string(model: Model, plain: Generation) -> None:
    """No token at all, and statistics that divide by nothing or are negative."""
    result = model.generate(PROMPT, draft="none", stop=[plain.text[:2]], **EXACT)
    assert (result.text, result.token_ids, result.finish_reason) == ("", (), "stop")
    assert result.stats.tokens_per_second == result.stats.tokens_per_round == 0


def test_a_stop_string_that_never_comes_changes_nothing(model: Model, plain: Generation) -> None:
    """Text held back at the end and never given out."""
    almost = plain.text[-3:] + "\x00"
    for draft in DRAFTS:
        result = model.generate(PROMPT, draft=draft, stop=[almost, "\x00"], **EXACT)
        assert (result.text, result.token_ids) == (plain.text, plain.token_ids)
        assert (result.finish_reason, result.stop_string) == ("length", None)


def test_streams_stop_alike_at_every_place(fp32: Toy) -> None:
    """Every two characters of the text as the stop string: wherever tokens and characters begin."""
    model = fp32.model
    plain = model.generate(PROMPT, draft="none", **EXACT)
    for begin in range(len(plain.text) - 2):
        stop = stop_at(plain, begin, 2)
        expected = plain.text[: plain.text.index(stop)]
        result = model.generate(PROMPT, draft=right(model, plain), stop=[stop], **EXACT)
        assert result.text == expected
        assert result.token_ids == plain.token_ids[: len(result.token_ids)]


@pytest.mark.parametrize("stop", [[""], "text", [b"x"]])
def test_what_can_stop_nothing_is_refused(fp32: Toy, stop: Any) -> None:
    with pytest.raises(UsageError, match="stop"):
        fp32.model.stream(PROMPT, stop=stop)


def test_log_probabilities_come_with_tokens_and_result(model: Model, plain: Generation) -> None:
    """One entry a token, of that token, the same bits with every draft, and none where none were asked for."""
    assert plain.logprobs is None
    told = model.generate(PROMPT, draft="none", logprobs=3, **EXACT)
    assert told.token_ids == plain.token_ids
    for draft in drafts(model, plain):
        stream = model.stream(PROMPT, draft=draft, logprobs=3, **EXACT)
        tokens, result = list(stream), stream.result
        assert result.logprobs == told.logprobs
        assert result.logprobs is not None
        assert [(t.logprob, t.top_logprobs) for t in tokens] == [(e.logprob, e.top) for e in result.logprobs]
        for token in tokens:  # greedy: the token is the likeliest one
            assert (token.id, token.logprob) == token.top_logprobs[0]
            assert token.logprob == max(top.logprob for top in token.top_logprobs)
    assert all(t.logprob is None and not t.top_logprobs for t in model.stream(PROMPT, draft="none", max_new_tokens=3))


def test_log_probabilities_are_of_the_raw_logits(fp32: Toy) -> None:
    """A penalty and a temperature choose another token; what is told of the first position must stay the same."""
    raw = fp32.model.generate(PROMPT, draft="none", logprobs=5, **EXACT).logprobs
    warm = fp32.model.generate(
        PROMPT, draft="none", logprobs=5, temperature=3.0, top_k=3, repetition_penalty=2.0, seed=1, **EXACT
    )
    assert raw is not None
    assert warm.logprobs is not None
    assert warm.logprobs[0].top == raw[0].top


def test_log_probabilities_are_cut_with_the_text(model: Model, plain: Generation) -> None:
    stop = stop_at(plain, 31, 4)
    result = model.generate(PROMPT, draft=right(model, plain), stop=[stop], logprobs=0, **EXACT)
    assert result.logprobs is not None
    assert len(result.logprobs) == len(result.token_ids)


def test_options_without_effect_are_said_once(fp32: Toy) -> None:
    """Silently greedy, or a line for each of a thousand answers."""
    notices: list[str] = []
    model = Model(fp32.model.artifact, fp32.model.sessions, notices.append)
    for _ in range(2):
        greedy = model.generate(PROMPT, draft="none", max_new_tokens=4, top_k=3, min_p=0.2)
    assert greedy.token_ids == fp32.model.generate(PROMPT, draft="none", max_new_tokens=4).token_ids
    assert [n for n in notices if "greedy" in n] == [
        "warning: temperature 0 is greedy, so `top_k`, `min_p` will have no effect; set a temperature."
    ]


def read(stream: TokenStream, count: int) -> tuple[int, ...]:
    return tuple(next(stream).id for _ in range(count))


def test_a_closed_stream_gives_no_more_and_its_result_stays(fp32: Toy) -> None:
    stream = fp32.model.stream(PROMPT, draft="early-exit", **EXACT)
    seen = read(stream, 5)
    stream.close()
    assert list(stream) == []
    assert stream.result.token_ids == seen
    assert stream.result.stats.generated_tokens == 5
    assert stream.result.finish_reason == "unfinished"


def test_a_special_token_ends_the_answer_although_it_never_shows(model: Model, plain: Generation) -> None:
    """As text it could not be found, and the option would do nothing: <|bos|> stands for a token of the answer here."""

    middle = next(i for i in plain.token_ids if i > 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(model.codec), "special_id", lambda codec, text: middle if text == "<|bos|>" else None)
        found = model.generate(PROMPT, stop=["<|bos|>"], **EXACT)
    assert found.token_ids == plain.token_ids[: plain.token_ids.index(middle) + 1]
    assert found.finish_reason == "stop"
    assert model.codec.special_id("<|bos|>") == 0
    assert model.codec.special_id("the") is None
    ended = model.generate(PROMPT, draft="none", stop=None, **EXACT)
    assert ended.token_ids == plain.token_ids


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"draft": None}, "`draft` None"), ({"draft": object()}, "an object that proposes"),
        ({"num_draft_tokens": "3"}, "`num_draft_tokens` '3'"), ({"num_draft_tokens": 2.5}, "`num_draft_tokens` 2.5"),
        ({"exit_layer": 2.0, "draft": "early-exit"}, "`exit_layer` 2.0"), ({"temperature": 10**400}, "`temperature`"),
        ({"max_new_tokens": True}, "`max_new_tokens` True"), ({"repetition_penalty": 1e-300}, "between 0.01 and 100"),
    ],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_one_sentence(model: Model, options: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match=named):
        model.stream(PROMPT, **options)


def test_numpys_numbers_are_numbers(model: Model, plain: Generation) -> None:
    """A seed or a temperature out of an array."""
    options: dict[str, Any] = {"temperature": np.float32(0.5), "seed": np.int64(3), "max_new_tokens": np.int64(5)}
    found = model.generate(PROMPT, draft="none", exact=True, **options)
    same = model.generate(PROMPT, draft="none", exact=True, temperature=0.5, seed=3, max_new_tokens=5)
    assert found.token_ids == same.token_ids
