"""How users name a drafter: ``NAME`` or ``NAME:key=value,...``, one grammar for the command line, bench and Python.

Values without a key are taken in the order of the drafter's options, with colons between them: ``early-exit:20`` is
``early-exit:layer=20``.
"""

from __future__ import annotations

import re
import types
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Union, get_args, get_origin, get_type_hints

from ...errors import UsageError, unknown_name
from ...models.manifest import Manifest
from .base import Drafter
from .kind import DraftContext, DrafterKind
from .registry import kind_named, kinds

FLAGS = {"exit_layer": "layer", "num_draft_tokens": "tokens", "draft_experts": "experts"}
"""Parameters of their own for some options, and the key that each of them sets."""

_LONGEST = 1000  # characters
_CONTINUES = re.compile(r"\s*([a-z_][a-z0-9_]*\s*=|[-+\d.])")  # a part of a list that belongs to the drafter before it


@dataclass(frozen=True, slots=True)
class DraftSpec:
    """A drafter's kind and its options."""

    kind: DrafterKind
    options: Any

    def __str__(self) -> str:
        """The same drafter as :func:`parse` reads it, with every option that is set."""
        found = {field.name: getattr(self.options, field.name) for field in fields(self.options)}
        shown = [f"{key}={_shown(value)}" for key, value in found.items() if value is not None]
        return f"{self.kind.name}:{','.join(shown)}" if shown else self.kind.name

    def check(self, manifest: Manifest) -> None:
        """Raises: UsageError where an option does not fit the model."""
        self.kind.check(self.options, manifest)

    def make(self, context: DraftContext) -> Drafter:
        """The drafter; its options must have been checked."""
        return self.kind.make(self.options, context)


def parse(text: str, **flags: int | None) -> DraftSpec:
    """Read ``NAME``, ``NAME:key=value,...`` or ``NAME:value:value``.

    Args:
        flags: values of :data:`FLAGS` by their own names; None leaves an option as ``text`` has it.

    Raises:
        UsageError: an unknown drafter or option, a value of the wrong type, or an option that is set twice.
    """
    if len(text) > _LONGEST:
        raise UsageError(f"`draft`: {len(text)} characters are more than any drafter takes.", parameter="draft")
    name, colon, rest = text.strip().partition(":")
    kind = kind_named(name)
    types = _option_types(kind)
    given = _values(text, rest, types) if colon else {}
    values = {key: _read(text, key, value, types[key]) for key, value in given.items()}
    for flag, value in flags.items():
        if value is not None:
            _set_flag(values, kind, flag, value)
    return DraftSpec(kind, kind.options(**values))


def parse_list(text: str) -> tuple[DraftSpec, ...]:
    """Several drafters with commas between them, each with options of its own: ``auto,early-exit:layer=20,tokens=4``.

    Raises:
        UsageError: as :func:`parse`.
    """
    parts: list[str] = []
    for part in text.split(","):
        if parts and ":" in parts[-1] and _CONTINUES.match(part):
            parts[-1] += f",{part}"
        else:
            parts.append(part)
    return tuple(parse(part) for part in parts)


def grammar() -> str:
    """All drafters with their options and what they do, for help texts."""
    return "; ".join(f"{kind.name}{_keys(kind)} ({kind.summary})" for kind in kinds())


def _keys(kind: DrafterKind) -> str:
    keys = [field.name for field in fields(kind.options)]
    return f"[:{','.join(f'{key}=…' for key in keys)}]" if keys else ""


def _option_types(kind: DrafterKind) -> dict[str, Any]:
    """option → its type without None."""
    hints = get_type_hints(kind.options)
    return {field.name: _without_none(hints[field.name]) for field in fields(kind.options)}


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = [part for part in get_args(hint) if part is not type(None)]
    return hint


def _values(text: str, rest: str, types: Mapping[str, Any]) -> dict[str, str]:
    """option → its value as it is written."""
    if "=" not in rest:
        values = rest.split(":")
        if len(values) > len(types):
            raise UsageError(f"`draft` {text}: {_takes(types)}", parameter="draft")
        return dict(zip(types, values, strict=False))
    found: dict[str, str] = {}
    last = ""
    for part in rest.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals and last:  # another number of a list
            found[last] += f",{key}"
            continue
        if key not in types:
            raise UsageError(f"`draft` {text}: {unknown_name('option', key, types)}", parameter="draft")
        if key in found:
            raise UsageError(f"`draft` {text}: {key} is given twice.", parameter="draft")
        found[key], last = value, key
    return found


def _takes(types: Mapping[str, Any]) -> str:
    return f"it takes only {', '.join(types)}." if types else "it takes no options."


def _read(text: str, key: str, value: str, kind: Any) -> Any:
    try:
        if get_origin(kind) is tuple:
            return tuple(_whole(part) for part in value.split(","))
        if kind is int:
            return _whole(value)
        if kind is float:
            return _number(value)
        return value
    except ValueError:
        expected = {int: "a whole number", float: "a number", str: "a text"}.get(kind, "whole numbers")
        message = f"`draft` {text}: {key} is {value!r}, where {expected} was expected."
        raise UsageError(message, parameter="draft") from None


def _whole(text: str) -> int:
    """int() takes more than a user means: underlines, digits of other scripts."""
    if not re.fullmatch(r"\s*[-+]?[0-9]{1,9}\s*", text):
        raise ValueError(text)
    return int(text)


def _number(text: str) -> float:
    if not re.fullmatch(r"\s*[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[-+]?[0-9]{1,2})?\s*", text, re.IGNORECASE):
        raise ValueError(text)
    return float(text)


def _set_flag(values: dict[str, Any], kind: DrafterKind, flag: str, value: int) -> None:
    key = FLAGS[flag]
    if not isinstance(value, int) or isinstance(value, bool):
        raise UsageError(f"`{flag}` {value!r}: it must be a whole number.", parameter=flag)
    if key not in _option_types(kind):
        takers = [other.name for other in kinds() if key in _option_types(other)]
        raise UsageError(
            f"`{flag}` has no effect with the drafter {kind.name}; it goes with {', '.join(takers)}.", parameter=flag
        )
    if values.get(key, value) != value:
        message = f"`{flag}` {value}: `draft` says {key}={values[key]} already; leave one of them out."
        raise UsageError(message, parameter=flag)
    values[key] = value


def _shown(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, tuple) else str(value)
