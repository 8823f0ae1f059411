"""How users name drafters: one grammar, with the right value for every spelling and one sentence for every mistake."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import UsageError
from selfspec.runtime.drafters import early_exit, fewer_experts, plain, prompt_lookup, registry
from selfspec.runtime.drafters.kind import DrafterKind
from selfspec.runtime.drafters.spec import parse, parse_list


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("none", plain.Options()),
        ("prompt-lookup", prompt_lookup.Options()),
        ("prompt-lookup:tokens=5", prompt_lookup.Options(5)),
        ("prompt-lookup:5", prompt_lookup.Options(5)),
        ("early-exit", early_exit.Options()),
        ("early-exit:layer=20,tokens=4", early_exit.Options(20, None, 4)),
        (" early-exit: tokens = 4 , layer = 20 ", early_exit.Options(20, None, 4)),
        ("early-exit:20", early_exit.Options(20)),
        ("early-exit:20:2", early_exit.Options(20, 2)),
        ("early-exit:020", early_exit.Options(20)),
        ("fewer-experts:2", fewer_experts.Options(2)),
        ("fewer-experts:experts=2,tokens=3", fewer_experts.Options(2, 3)),
    ],
)
def test_every_spelling_has_one_value(text: str, options: object) -> None:
    found = parse(text)
    assert found.options == options
    assert parse(str(found)) == found


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "unknown drafter ''"),
        ("lookup", "Did you mean 'prompt-lookup'"),
        ("early-exit:", "layer is '', where a whole number"),
        ("early-exit:x", "layer is 'x', where a whole number"),
        ("early-exit:layer=", "layer is ''"),
        ("early-exit:layer=2.5", "layer is '2.5'"),
        ("early-exit:layer=1_0", "layer is '1_0'"),
        ("early-exit:layer=٣", "where a whole number"),
        ("early-exit:layers=2", "unknown option 'layers'.*Did you mean 'layer'"),
        ("early-exit:layer=2,layer=3", "layer is given twice"),
        ("early-exit:layer=2,3", "layer is '2,3'"),
        ("early-exit:1:2:3:4", "it takes only layer, experts, tokens"),
        ("none:1", "it takes no options"),
        ("none:tokens=1", "unknown option 'tokens'"),
        ("auto:" + "9" * 2000, "more than any drafter takes"),
    ],
)
def test_a_mistake_is_one_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        parse(text)
    assert "\n" not in str(caught.value)
    assert caught.value.parameter == "draft"


@given(st.text(max_size=40), st.sampled_from(["", "early-exit:", "auto:tokens="]))
def test_no_text_is_a_traceback(text: str, before: str) -> None:
    with contextlib.suppress(UsageError):
        assert parse(before + text)


def test_flags_are_other_spellings_of_options() -> None:
    assert parse("early-exit", exit_layer=20, num_draft_tokens=4) == parse("early-exit:layer=20,tokens=4")
    assert parse("early-exit:layer=20", exit_layer=20) == parse("early-exit:20")
    with pytest.raises(UsageError, match="`exit_layer` 15: `draft` says layer=20 already"):
        parse("early-exit:layer=20", exit_layer=15)
    with pytest.raises(UsageError, match="`exit_layer` has no effect with the drafter auto; it goes with early-exit"):
        parse("auto", exit_layer=15)
    values: list[Any] = [True, 2.0, "3"]
    for value in values:
        with pytest.raises(UsageError, match="must be a whole number"):
            parse("early-exit", exit_layer=value)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("auto", ["auto"]),
        ("auto,none", ["auto", "none"]),
        ("auto, early-exit:layer=20,tokens=4 ,none", ["auto", "early-exit:layer=20,tokens=4", "none"]),
        ("early-exit:20,early-exit:25:1", ["early-exit:layer=20", "early-exit:layer=25,experts=1"]),
    ],
)
def test_lists_part_at_commas_that_belong_to_no_drafter(text: str, names: list[str]) -> None:
    assert [str(spec) for spec in parse_list(text)] == names


@dataclass(frozen=True, slots=True)
class SkipOptions:
    set: tuple[int, ...] | None = None
    share: float | None = None
    file: str | None = None


def test_options_may_be_lists_numbers_and_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the coming drafters need: a set of sublayers, a threshold, a file."""
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    registry.register(DrafterKind("skip", "skips", SkipOptions, lambda options, context: options))
    found = parse("skip:set=3,5,7,share=0.5,file=a=b.json")
    assert found.options == SkipOptions((3, 5, 7), 0.5, "a=b.json")
    assert parse(str(found)) == found
    assert [str(spec) for spec in parse_list("skip:set=3,5,auto")] == ["skip:set=3,5", "auto"]
    for text, words in (
        ("skip:set=3,x", "whole numbers"),
        ("skip:share=half", "a number"),
        ("skip:share=nan", "a number"),
        ("skip:share=1_0", "a number"),
        ("skip:share=٣", "a number"),
    ):
        with pytest.raises(UsageError, match=words):
            parse(text)
