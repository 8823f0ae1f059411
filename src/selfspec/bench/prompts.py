"""Prompts: the built-in set, or a file, Spec-Bench's jsonl or plain text; their categories and their token ids."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from ..errors import UsageError, unknown_name
from ..runtime.messages import Message
from ..runtime.text import TextCodec

CATEGORIES = ("translation", "summarization", "qa", "math_reasoning", "rag", "mt_bench")

TEXT = "text"
"""The category of a plain text file's prompts."""

_MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
_CATEGORY = {name: name for name in CATEGORIES} | dict.fromkeys(_MT_BENCH, "mt_bench")


@dataclass(frozen=True, slots=True)
class Prompt:
    """A first turn. ``category``: of ``CATEGORIES`` (Spec-Bench's eight small ones are all mt_bench), or ``TEXT``."""

    question_id: int
    category: str
    text: str


def messages(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt.text}]


def prompt_ids(codec: TextCodec, prompt: Prompt) -> list[int]:
    """Through the chat template where the model has one, else as raw text, as a base model wants it."""
    return codec.encode_chat(messages(prompt)) if codec.has_chat_template else codec.encode(prompt.text)


def built_in_prompts() -> tuple[Prompt, ...]:
    """Our own prompts, four a category."""
    name = "prompts.jsonl"
    return _parse(_data(name), name)


def load_prompts(path: Path) -> tuple[Prompt, ...]:
    """The prompts of a file: Spec-Bench's jsonl where its first line with text begins with a brace, else one a line.

    Raises:
        UsageError: it cannot be read, or one of its lines is no prompt; names the file and the line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror or error}); give a file of prompts.") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not UTF-8 text ({error}); give a file of prompts.") from error
    if text.lstrip().startswith("{"):
        return _parse(text, str(path))
    lines = (line.strip() for line in text.split("\n"))
    prompts = tuple(Prompt(number, TEXT, line) for number, line in enumerate(lines, start=1) if line)
    if not prompts:
        raise UsageError(f"{path} has no prompts; give one JSON object or one text a line.")
    return prompts


def spec_bench_ids() -> dict[str, tuple[int, ...]]:
    """category → the question ids of Spec-Bench that exactness is checked on and speed is measured with.

    The shortest 7 each of translation, summarization, qa and math_reasoning and 6 each of rag and mt_bench, by the
    number of tokens of the first turn in SmolLM2's chat template; ties go to the lower id.
    """
    return {category: tuple(ids) for category, ids in json.loads(_data("spec_bench_ids.json")).items()}


def chosen(prompts: Sequence[Prompt]) -> tuple[Prompt, ...]:
    """Of Spec-Bench the prompts named by :func:`spec_bench_ids`; of any other set every prompt."""
    ids = {i for group in spec_bench_ids().values() for i in group}
    found = tuple(prompt for prompt in prompts if prompt.question_id in ids and prompt.category != TEXT)
    return found if len(found) == len(ids) else tuple(prompts)


def spread(prompts: Sequence[Prompt], count: int) -> tuple[Prompt, ...]:
    """At most ``count`` prompts, taken from every category in turn, each category's in their order."""
    turns: dict[str, int] = {}
    ranked = []
    for prompt in prompts:
        turns[prompt.category] = turns.get(prompt.category, 0) + 1
        ranked.append((turns[prompt.category], (*CATEGORIES, TEXT).index(prompt.category), prompt))
    return tuple(prompt for _, _, prompt in sorted(ranked, key=lambda item: item[:2])[:count])


def _data(name: str) -> str:
    return (resources.files(__package__) / "data" / name).read_text(encoding="utf-8")


def _parse(text: str, name: str) -> tuple[Prompt, ...]:
    prompts: dict[int, Prompt] = {}
    for number, line in enumerate(text.split("\n"), start=1):  # not splitlines: a text may contain U+2028
        if not line.strip():
            continue
        place = f"{name}, line {number}"
        prompt = _prompt(line, place)
        if prompt.question_id in prompts:
            raise UsageError(f"{place}: question_id {prompt.question_id} stands there for the second time.")
        prompts[prompt.question_id] = prompt
    if not prompts:
        raise UsageError(f"{name} has no prompts; give a file with one JSON object or one text a line.")
    return tuple(prompts.values())


def _prompt(line: str, place: str) -> Prompt:
    try:
        data = json.loads(line)
    except (json.JSONDecodeError, RecursionError) as error:
        raise UsageError(f"{place} is not valid JSON ({error}).") from error
    if not isinstance(data, dict):
        raise UsageError(f"{place} is no JSON object; it needs question_id, category and turns.")
    return Prompt(_question_id(data, place), _category(data, place), _first_turn(data, place))


def _question_id(data: dict[str, Any], place: str) -> int:
    value = data.get("question_id")
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"{place}: question_id is {value!r}, but it must be a whole number.")
    return value


def _category(data: dict[str, Any], place: str) -> str:
    value = data.get("category")
    if not isinstance(value, str) or value not in _CATEGORY:
        raise UsageError(f"{place}: {unknown_name('category', str(value), _CATEGORY)}")
    return _CATEGORY[value]


def _first_turn(data: dict[str, Any], place: str) -> str:
    turns = data.get("turns")
    if not isinstance(turns, list) or not turns or not isinstance(turns[0], str) or not turns[0].strip():
        raise UsageError(f"{place}: turns must be a list that begins with a text.")
    return turns[0]
