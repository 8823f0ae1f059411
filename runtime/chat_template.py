"""A model's chat template: a stranger's program, run in jinja2's sandbox with what Hugging Face's environment offers.

It runs when messages are put through it, and not when an artifact is opened. Bounded: what it writes, sums,
products, powers, formats and recursion. Not bounded: time (loops in loops) and memory by other ways (``~``, filters);
jinja2 offers no hold on them, so chat with a stranger's artifact only where you would run his program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence, Sized
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ..errors import ArtifactError, UsageError

Message = Mapping[str, Any]
"""``role`` and ``content``: a text, or a list of parts {"type": "text", "text": ...}."""

_MAX_TEXT = 2**24  # characters that a template may write, or put together in one sum or product
_MAX_BITS = 4096  # of a power
_MAX_WORDS = 500  # characters of an error's own words


class ChatTemplate:
    """Messages → the text that the model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], name: str) -> None:
        """Args: special_tokens: variables such as ``bos_token``. name: the file, for errors.

        Raises:
            ArtifactError: the source is no template.
        """
        self._special_tokens = dict(special_tokens)
        environment = _Sandbox(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            optimized=False, finalize=_as_it_is,  # else jinja2 would compute constants when the artifact is opened
        )  # fmt: skip
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        environment.filters["tojson"] = _to_json
        try:
            self._template = environment.from_string(source)
        except Exception as error:  # also what Python says of the code that jinja2 makes: RecursionError, SyntaxError
            raise ArtifactError(
                f"{name} is no usable template ({_words(error)}); mend it in the checkpoint and export again."
            ) from error

    def render(self, messages: Sequence[Message]) -> str:
        """Up to where the assistant's answer begins.

        Raises:
            UsageError: a message is none, or the template refuses these messages, fails or writes without end.
        """
        variables = self._special_tokens | {
            "messages": [_plain(message) for message in messages],
            "add_generation_prompt": True,
            "tools": None,
            "documents": None,
        }
        try:
            return self._written(variables)
        except Exception as error:  # it may raise anything
            raise UsageError(f"the model's chat template refuses these messages ({_words(error)}).") from error

    def _written(self, variables: Mapping[str, Any]) -> str:
        pieces, length = [], 0
        for piece in self._template.generate(**variables):
            length += _bounded(len(piece) + length) - length
            pieces.append(piece)
        return "".join(pieces)


class _Sandbox(ImmutableSandboxedEnvironment):
    """Refuses operators whose result would be unreasonably large."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, Sized) else None for side in (left, right)]
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            _bounded(left.bit_length() * right, _MAX_BITS)
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _bounded(left.bit_length() + right.bit_length(), _MAX_BITS)
        elif operator == "+" and None not in sizes:
            _bounded(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            for digits in re.findall(r"\d+", left):
                _bounded(int(digits[:10]))
        elif operator == "*":
            for size, factor in zip(sizes, (right, left), strict=True):
                if size is not None and isinstance(factor, int):
                    _bounded(size * factor)
        return super().call_binop(context, operator, left, right)


@jinja2.pass_context
def _as_it_is(context: Context, value: Any) -> Any:
    """What is written, unchanged: that it depends on a context keeps jinja2 from writing it before there is one."""
    return value


def _bounded(size: int, limit: int = _MAX_TEXT) -> int:
    if size > limit:
        raise jinja2.TemplateError("it makes more text than any prompt has")
    return size


def _plain(message: Message) -> Message:
    """A list of text parts becomes one text, each on its own line as in vLLM: few templates know lists."""
    if not isinstance(message, Mapping):
        raise UsageError(f"a message is {type(message).__name__}, where a mapping with role and content was expected.")
    if not isinstance(message.get("role"), str) or not {"content", "tool_calls"} & message.keys():
        raise UsageError(f"a message has the keys {sorted(map(str, message))}; it needs a role and a content.")
    content = message.get("content")
    if content is None or isinstance(content, str):
        return message
    if not isinstance(content, list):
        raise UsageError(f"a message's content is {type(content).__name__}, where text or a list of parts is expected.")
    return {**message, "content": "\n".join(_part_text(part) for part in content)}


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind == "text" else None
    if not isinstance(text, str):
        raise UsageError(f"a message's content has a part of type {kind!r}; only parts of type 'text' can be read.")
    return text


def _words(error: Exception) -> str:
    """In one line: a template chooses them freely."""
    return " ".join(str(error).split())[:_MAX_WORDS]


class _GenerationTag(Extension):
    """``{% generation %}`` marks the assistant's words for training; here it only stands around them."""

    tags = {"generation"}  # noqa: RUF012  (jinja2's own convention)

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """As Hugging Face's environment has it: jinja2's own escapes for HTML, which a model was never trained on."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> Any:
    raise jinja2.TemplateError(message)
