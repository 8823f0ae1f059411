"""Jinja2's sandbox for an untrusted chat template, with what Hugging Face's environment offers it.

Bounded: what a template writes, sums, products, powers, formats and recursion. Not bounded: time (loops in loops) and
memory by other ways (``~``, filters); jinja2 offers no hold on them, so chat with a stranger's artifact only where you
would run his program.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sized
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from .messages import Parts

_MAX_TEXT = 2**24  # characters that a template may write, or put together in one sum or product
_MAX_BITS = 4096  # of a power


class Sandbox(ImmutableSandboxedEnvironment):
    """Refuses operators whose result would be unreasonably large."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _GenerationTag],
            optimized=False, finalize=_as_it_is,  # else jinja2 would compute constants when the artifact is opened
        )  # fmt: skip
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = lambda pattern: datetime.now().strftime(pattern)
        self.filters["tojson"] = _to_json

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sizes = [len(side) if isinstance(side, Sized) else None for side in (left, right)]
        if operator == "**" and isinstance(left, int) and isinstance(right, int):
            bounded(left.bit_length() * right, _MAX_BITS)
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            bounded(left.bit_length() + right.bit_length(), _MAX_BITS)
        elif operator == "+" and None not in sizes:
            bounded(len(left) + len(right))
        elif operator == "%" and isinstance(left, str):
            for digits in re.findall(r"\d+", left):
                bounded(int(digits[:10]))
        elif operator == "*":
            for size, factor in zip(sizes, (right, left), strict=True):
                if size is not None and isinstance(factor, int):
                    bounded(size * factor)
        return super().call_binop(context, operator, left, right)


def bounded(size: int, limit: int = _MAX_TEXT) -> int:
    """Raises: TemplateError for a text of unreasonable size."""
    if size > limit:
        raise jinja2.TemplateError("it makes more text than any prompt has")
    return size


@jinja2.pass_context
def _as_it_is(context: Context, value: Any) -> Any:
    """What is written, unchanged: that it depends on a context keeps jinja2 from writing it before there is one."""
    return value


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
    if isinstance(value, Parts):
        str(value)  # refuses: nobody says {"type": "text", ...}
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: str) -> Any:
    raise jinja2.TemplateError(message)
