"""A model's chat template: messages → the text that the model was trained on.

It is an untrusted program and runs in a sandbox, when messages are put through it and not when an artifact is opened.
Templates differ in the form of content that they read, and some leave out what they do not know. So every rendering is
compared with what was said.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.meta import TrackingCodeGenerator

from ..errors import ArtifactError, UsageError, unknown_name
from .messages import FORMS, Message, as_text, checked, marked, said
from .sandbox import Sandbox, bounded

_MAX_WORDS = 500  # characters of an error's own words
_MAX_QUOTED = 40  # characters of a message that are quoted
_GIVEN = ("messages", "tools", "add_generation_prompt")


class ChatTemplate:
    """Messages → the text that the model was trained on."""

    def __init__(self, source: str, special_tokens: Mapping[str, str], name: str) -> None:
        """Args: special_tokens: variables such as ``bos_token``. name: the file, for errors.

        Raises:
            ArtifactError: the source is no template.
        """
        self._special_tokens = dict(special_tokens)
        self._source = source
        self._sandbox = Sandbox()
        try:
            self._template = self._sandbox.from_string(source)
        except Exception as error:  # also what Python says of the code that jinja2 makes: RecursionError, SyntaxError
            raise ArtifactError(
                f"{name} is no usable template ({_words(error)}); mend it in the checkpoint and export again."
            ) from error

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Up to where the assistant's answer begins.

        Content is tried as it was given, then as text, then as parts. The first form in which everything arrives that
        user and system say is the one that the template reads.

        Args:
            tools: JSON schemas of functions that the model may call.
            variables: others that the template reads, such as ``enable_thinking``.

        Raises:
            UsageError: a message is none; the template refuses these messages, fails, writes without end, leaves out
                what was said, or does not read ``tools`` or one of the ``variables``.
        """
        given = checked(messages)
        others = {"documents": None, **self._checked(variables), "tools": _checked_tools(tools)}
        lost: str | None = None
        refused: Exception | None = None
        for form in FORMS:
            try:
                written, missing = self._attempt([form(message) for message in given], others)
            except Exception as error:  # it may raise anything
                refused = error if form is as_text or refused is None else refused  # most templates read text
                continue
            if missing is None:
                _check_tools_arrive(tools or (), written)
                return written
            lost = lost or _leaves_out(missing)
        if lost is not None:
            raise UsageError(lost, "messages")
        words = "" if refused is None else _words(refused)
        raise UsageError(f"the model's chat template refuses these messages ({words}).", "messages") from refused

    def _attempt(self, messages: Sequence[Message], others: Mapping[str, Any]) -> tuple[str, Message | None]:
        """The text that comes of ``messages`` in this form, and the first message of which something is missing.

        A text arrives where a made-up word in its place can be found, and where some word of its own can. The first
        tells it from what the template says by itself. The second is not asked for more, since some templates change
        what is said: they take out switches (/no_think) and tags, trim and escape.
        """
        written = self._written(messages, others)
        token = secrets.token_hex(8)
        stand_ins, places = marked(messages, (f"q{token}{i}q" for i in itertools.count()))
        try:
            arrived = set(re.findall(f"q{token}[0-9]+q", self._written(stand_ins, others).casefold()))
        except Exception:  # it looks into what is said, and refuses the words
            arrived = set(places)
        folded = written.casefold()
        for word, (message, text) in places.items():
            if word not in arrived or not _occurs(text, folded):
                return written, message
        return written, None

    def _written(self, messages: Sequence[Message], others: Mapping[str, Any]) -> str:
        variables = {**self._special_tokens, **others, "messages": messages, "add_generation_prompt": True}
        pieces, length = [], 0
        for piece in self._template.generate(variables):
            length += bounded(len(piece) + length) - length
            pieces.append(piece)
        return "".join(pieces)

    @cached_property
    def _reads(self) -> frozenset[str]:
        """Variables that the template reads and does not make itself."""
        tracker = TrackingCodeGenerator(self._sandbox)
        tracker.optimizer = None  # it would compute constants
        tracker.visit(self._sandbox.parse(self._source))
        return frozenset(tracker.undeclared_identifiers)

    def _checked(self, variables: Mapping[str, Any] | None) -> Mapping[str, Any]:
        if variables is None:
            return {}
        if not isinstance(variables, Mapping):
            found = f"{type(variables).__name__}, where a mapping was expected, such as {{'enable_thinking': False}}"
            raise UsageError(f"`chat_template_kwargs` is {found}.", "chat_template_kwargs")
        taken = {*_GIVEN, *self._special_tokens, *self._sandbox.globals}
        for name in variables:
            if name in taken:
                raise UsageError(
                    f"`chat_template_kwargs` sets {name!r}, which the template has from elsewhere; leave it out.",
                    "chat_template_kwargs",
                )
            if name not in self._reads:
                known = self._reads - taken or {"none"}
                words = unknown_name("variable of the model's chat template", str(name), known)
                raise UsageError(words, "chat_template_kwargs")
        return variables


def _checked_tools(tools: Sequence[Mapping[str, Any]] | None) -> Sequence[Mapping[str, Any]] | None:
    if not isinstance(tools, list | tuple | None):
        raise UsageError(f"`tools` is {type(tools).__name__}, where a list of JSON schemas was expected.", "tools")
    for tool in tools or ():
        if not isinstance(tool, Mapping) or _tool_name(tool) is None:
            raise UsageError(
                '`tools`: a tool is a JSON schema with a name: {"type": "function", "function": {"name": ..., ...}}.',
                "tools",
            )
    return tools or None


def _tool_name(tool: Mapping[str, Any]) -> str | None:
    function = tool.get("function", tool)
    name = function.get("name") if isinstance(function, Mapping) else None
    return name if isinstance(name, str) and name else None


def _check_tools_arrive(tools: Sequence[Mapping[str, Any]], written: str) -> None:
    for tool in tools:
        name = _tool_name(tool)
        if name is not None and name not in written:
            raise UsageError(
                f"the model's chat template has no place for `tools`: {name!r} does not arrive, so the model would not "
                "know of it; describe it in the system message.",
                "tools",
            )


def _occurs(text: str, folded: str) -> bool:
    """Whether some word of ``text``, or all of it as JSON has it, stands in ``folded``; switches are no words."""
    words = [found[0] for found in re.finditer(r"(?<![/\w])\w+", text.casefold())]
    return not words or any(word in folded for word in words) or json.dumps(text)[1:-1].casefold() in folded


def _leaves_out(message: Message) -> str:
    text = " ".join(" ".join(said(message)).split())
    shown = text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "..."
    return (
        f"the model's chat template leaves out what the {message['role']} message says ({shown!r}), so the model would "
        "never read it; say it in another message or use raw text."
    )


def _words(error: Exception) -> str:
    """In one line: a template chooses them freely."""
    return " ".join(str(error).split())[:_MAX_WORDS]
