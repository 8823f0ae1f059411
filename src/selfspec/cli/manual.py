"""Writes docs/reference.md: the command line and the Python interface, from the parsers and docstrings themselves.

``python -m selfspec.cli.manual FILE`` writes it; a test compares the file in the repository with what would be written.
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from .. import errors
from ..runtime.conversation import Conversation
from ..runtime.drafters.base import Draft, Drafter, Prefix, Round
from ..runtime.generation import Generation, Token, TokenStream
from ..runtime.logprobs import TokenLogprobs
from ..runtime.messages import Message
from ..runtime.model import GenerationOptions, Model, load
from ..runtime.sampling import Sampling
from ..runtime.stats import Stats
from .export import build_parser as build_export_parser
from .main import build_parser

_INTRODUCTION = """\
# Reference

Made by `make reference` from the code; a test keeps it true. The README is the place to begin.
"""
_CLASSES: tuple[type, ...] = (
    Model, GenerationOptions, Sampling, TokenStream, Token, TokenLogprobs, Generation, Stats, Conversation,
)  # fmt: skip
_DRAFTING: tuple[type, ...] = (Drafter, Draft, Prefix, Round)


def text() -> str:
    """The whole page."""
    return "\n".join([_INTRODUCTION, *_commands(), *_python()]).rstrip() + "\n"


def _commands() -> Iterator[str]:
    yield "## Command line\n"
    yield "Exit code 0 is success, 1 an error said in one sentence, 2 a mistake in the arguments, 130 an interrupt.\n"
    yield from _command(build_export_parser())
    (commands,) = (a for a in build_parser()._actions if isinstance(a, argparse._SubParsersAction))
    for parser in commands.choices.values():
        yield from _command(parser)


def _command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield f"### {parser.prog}\n\n{parser.description}\n"
    yield "| | |\n|---|---|"
    for action in parser._actions:
        if not isinstance(action, argparse._HelpAction | argparse._VersionAction):
            yield f"| {_flag(action)} | {_cell(action.help or '')} |"
    yield ""


def _flag(action: argparse.Action) -> str:
    value = action.metavar or (action.dest.upper() if action.nargs != 0 else "")
    value = value[0] if isinstance(value, tuple) else value
    if not action.option_strings:
        return f"`{value}`" if action.nargs != "?" else f"`[{value}]`"
    if action.choices is not None:
        value = "{" + ",".join(map(str, action.choices)) + "}"
    return ", ".join(f"`{f'{flag} {value}'.strip()}`" for flag in action.option_strings)


def _cell(words: str) -> str:
    return words.replace("|", "\\|")


def _python() -> Iterator[str]:
    yield "## Python\n"
    yield f"### selfspec.load\n\n**load**`{_signature(load)}`\n\n{_markdown(inspect.getdoc(load) or '')}\n"
    for cls in _CLASSES:
        yield from _class(cls)
    yield f"### Message\n\n`{_plain(str(Message))}`: a chat message.\n"
    yield "## A drafter of your own\n\nPass it as `draft=`; the engine cannot tell it from one that comes along.\n"
    for cls in _DRAFTING:
        yield from _class(cls)
    yield "## Errors\n"
    for error in _errors():
        yield f"- `{error.__name__}` (exit code {error.exit_code}): {_line(inspect.getdoc(error) or '')}"
    yield ""


def _errors() -> Iterable[type[errors.SelfSpecError]]:
    return (e for e in vars(errors).values() if inspect.isclass(e) and issubclass(e, errors.SelfSpecError))


def _class(cls: type) -> Iterator[str]:
    yield f"### {cls.__name__}\n\n{_markdown(inspect.getdoc(cls) or '')}\n"
    fields = [(name, _plain(kind)) for base in reversed(cls.__mro__) for name, kind in _annotations(base)]
    if fields:
        yield "\n".join(f"- `{name}: {kind}`" for name, kind in dict(fields).items()) + "\n"
    for name, member in vars(cls).items():
        if name.startswith("_") or not inspect.getdoc(member):
            continue
        if isinstance(member, property):
            yield f"**{name}**: {_line(inspect.getdoc(member) or '')}\n"
        elif inspect.isfunction(member):
            yield f"**{name}**`{_signature(member)}`\n\n{_markdown(inspect.getdoc(member) or '')}\n"


def _annotations(cls: type) -> Iterator[tuple[str, Any]]:
    for name, kind in inspect.get_annotations(cls).items():
        if not name.startswith("_"):
            yield name, kind


def _signature(function: Any) -> str:
    words = re.sub(r"<function (\w+) at 0x\w+>", r"\1", str(inspect.signature(function)))
    return _plain(words).replace("(self, ", "(").replace("(self)", "()")


def _plain(kind: Any) -> str:
    """Annotations are texts; whatever Python version shows them, they read as in the source."""
    words = kind if isinstance(kind, str) else getattr(kind, "__forward_arg__", None) or str(kind)
    words = re.sub(r"ForwardRef\('([^']*)'[^)]*\)", r"\1", str(words)).replace("'", "")
    return re.sub(r"\b(?:selfspec|collections|typing)(?:\.\w+)*\.(\w+)", r"\1", words)


def _line(doc: str) -> str:
    return " ".join(_markdown(doc).split())


def _markdown(doc: str) -> str:
    """A docstring's marks as Markdown's; sections as lists."""
    doc = doc.replace("``", "`")
    doc = re.sub(r":(?:class|meth|func):`~?([\w.]+)`", lambda m: f"`{m[1].rsplit('.', 1)[-1]}`", doc)
    lines: list[str] = []
    for line in doc.split("\n"):
        if line.strip() in ("Args:", "Raises:", "Returns:"):
            lines += [f"*{line.strip()[:-1]}*"]
        elif line.startswith("    ") and not line.startswith("     "):
            lines += ["", f"- {line.strip()}"] if lines and lines[-1].startswith("*") else [f"- {line.strip()}"]
        else:
            lines.append(line)
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Entry point of ``python -m selfspec.cli.manual``."""
    (path,) = sys.argv[1:] if argv is None else argv
    Path(path).write_text(text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
