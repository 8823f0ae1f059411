"""Prompts: the built-in set, and files in Spec-Bench's format."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from selfspec.bench.prompts import (
    CATEGORIES,
    TEXT,
    Prompt,
    built_in_prompts,
    chosen,
    load_prompts,
    spec_bench_ids,
    spread,
)
from selfspec.errors import UsageError


def _line(question_id: Any = 1, category: Any = "qa", turns: Any = ("What is tea?",)) -> str:
    return json.dumps({"question_id": question_id, "category": category, "turns": turns})


def _write(folder: Path, *lines: str) -> Path:
    path = folder / "prompts.jsonl"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_built_in_set_has_four_prompts_in_each_of_six_categories() -> None:
    assert Counter(p.category for p in built_in_prompts()) == dict.fromkeys(CATEGORIES, 4)
    assert len(CATEGORIES) == 6


def test_built_in_ids_and_texts_are_unique() -> None:
    prompts = built_in_prompts()
    assert len({p.question_id for p in prompts}) == len({p.text for p in prompts}) == 24


def test_file_gives_first_turns_in_order_and_skips_blank_lines(tmp_path: Path) -> None:
    path = _write(tmp_path, _line(3, "rag", ["a", "b"]), "", _line(1))
    assert load_prompts(path) == (Prompt(3, "rag", "a"), Prompt(1, "qa", "What is tea?"))


@pytest.mark.parametrize(
    "name", ["writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities", "mt_bench"]
)
def test_small_categories_of_spec_bench_are_mt_bench(tmp_path: Path, name: str) -> None:
    assert load_prompts(_write(tmp_path, _line(category=name)))[0].category == "mt_bench"


def test_a_line_separator_inside_a_text_does_not_end_the_line(tmp_path: Path) -> None:
    """str.splitlines would cut there."""
    line = json.dumps({"question_id": 1, "category": "qa", "turns": ["one\u2028two"]}, ensure_ascii=False)
    assert load_prompts(_write(tmp_path, line))[0].text == "one\u2028two"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("{", "not valid JSON"),
        ("[1]", "no JSON object"),
        (_line(question_id=None), "question_id is None"),
        (_line(question_id=True), "question_id is True"),
        (_line(question_id="7"), "question_id is '7'"),
        (_line(category="translations"), "Did you mean 'translation'?"),
        (_line(category=None), "unknown category"),
        (_line(turns=[]), "turns must be a list"),
        (_line(turns="What is tea?"), "turns must be a list"),
        (_line(turns=[7]), "turns must be a list"),
        (_line(turns=["  "]), "turns must be a list"),
        (_line(), "for the second time"),
    ],
)
def test_bad_line_is_named_in_one_sentence(tmp_path: Path, line: str, found: str) -> None:
    path = _write(tmp_path, _line(), "", line)
    with pytest.raises(UsageError) as caught:
        load_prompts(path)
    text = str(caught.value)
    assert text.startswith(f"{path}, line 3")
    assert found in text
    assert "\n" not in text


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.jsonl cannot be read \(No such file"):
        load_prompts(tmp_path / "nowhere.jsonl")
    with pytest.raises(UsageError, match="cannot be read"):
        load_prompts(tmp_path)
    (tmp_path / "latin.jsonl").write_bytes(b"\xe9")
    with pytest.raises(UsageError, match="not UTF-8"):
        load_prompts(tmp_path / "latin.jsonl")


def test_file_without_prompts_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no prompts"):
        load_prompts(_write(tmp_path, "", " "))


def test_committed_ids_are_forty_in_all_categories() -> None:
    assert {category: len(ids) for category, ids in spec_bench_ids().items()} == {
        "translation": 7, "summarization": 7, "qa": 7, "math_reasoning": 7, "rag": 6, "mt_bench": 6,
    }  # fmt: skip


def test_spec_bench_is_cut_to_the_committed_ids_and_other_sets_are_not() -> None:
    bench = [Prompt(i, "qa", "x") for i in range(81, 561)]
    assert {p.question_id for p in chosen(bench)} == {i for ids in spec_bench_ids().values() for i in ids}
    assert chosen(built_in_prompts()) == built_in_prompts()


def test_spread_takes_every_category_in_turn() -> None:
    prompts = built_in_prompts()
    assert [p.category for p in spread(prompts, 8)] == [*CATEGORIES, *CATEGORIES[:2]]
    assert len(set(spread(prompts, 8))) == 8
    assert sorted(spread(prompts, 99), key=lambda p: p.question_id) == list(prompts)


def test_a_text_a_line_is_a_prompt_a_line(tmp_path: Path) -> None:
    """Blank lines are none, but count: a prompt is named by its line."""
    path = _write(tmp_path, "What is tea? ", "", "A {brace} inside\r", "[1]")
    assert load_prompts(path) == (
        Prompt(1, TEXT, "What is tea?"),
        Prompt(3, TEXT, "A {brace} inside"),
        Prompt(4, TEXT, "[1]"),
    )


def test_what_begins_with_a_brace_is_jsonl(tmp_path: Path) -> None:
    """Blank lines first, or a mistake in it, do not make it plain text."""
    assert load_prompts(_write(tmp_path, "", f" {_line()}")) == (Prompt(1, "qa", "What is tea?"),)
    with pytest.raises(UsageError, match="line 1 is not valid JSON"):
        load_prompts(_write(tmp_path, "{'question_id': 1}"))


def test_many_lines_of_text_are_not_taken_for_spec_bench(tmp_path: Path) -> None:
    """Their numbers are those of lines, and contain all of Spec-Bench's chosen ids."""
    found = load_prompts(_write(tmp_path, *["x"] * 600))
    assert chosen(found) == found
    assert spread(found, 2) == found[:2]
