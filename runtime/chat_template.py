"""A model's chat template: messages → the text that the model was trained on.

It is an untrusted program and runs in a sandbox, when messages are put through it and not when an artifact is opened.
Templates differ in the form of content that they read, and some leave out what they do not know. So every rendering is
compared with what was said.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from jinja2.meta import TrackingCodeGenerator

from ..errors import ArtifactError, UsageError, unknown_name
from .messages import FORMS, Message, as_text, checked, said, with_texts
from .sandbox import Sandbox, bounded
from .tools import Tool, checked_tools, renamed, tool_name

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
        tools: Sequence[Tool] | None = None,
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
        given, functions = checked(messages), checked_tools(tools)
        others = {"documents": None, **self._checked(variables)}
        lost: UsageError | None = None
        refused: Exception | None = None
        for form in FORMS:
            try:
                written, problem = self._attempt([form(message) for message in given], functions, others)
            except Exception as error:  # it may raise anything
                refused = error if form is as_text or refused is None else refused  # most templates read text
                continue
            if problem is None:
                return written
            if lost is None or problem.parameter == "tools":  # then all messages have arrived
                lost = problem
        if lost is not None:
            raise lost
        words = "" if refused is None else _words(refused)
        raise UsageError(f"the model's chat template refuses these messages ({words}).", "messages") from refused

    def _attempt(
        self, messages: Sequence[Message], tools: Sequence[Tool], others: Mapping[str, Any]
    ) -> tuple[str, UsageError | None]:
        """The text that comes of ``messages`` in this form, and what to say of the first thing that is missing in it.

        A text arrives where a made-up word in its place can be found, and where some word of its own can. The first
        tells it from what the template says by itself. The second is not asked for more, since some templates change
        what is said: they take out switches (/no_think) and tags, trim and escape.
        """
        written = self._written(messages, tools, others)
        words = _StandIns()
        probe_messages = [with_texts(m, lambda text, m=m: words.of(text, _leaves_out(m))) for m in messages]  # type: ignore[misc]
        probe_tools = [renamed(tool, words.of(tool_name(tool), _no_place(tool_name(tool)))) for tool in tools]
        try:
            probe = self._written(probe_messages, probe_tools, others)
        except Exception:  # it looks into what is said, and refuses the words
            probe = None
        return written, words.missing(written, probe)

    def _written(self, messages: Sequence[Message], tools: Sequence[Tool], others: Mapping[str, Any]) -> str:
        given = {"messages": messages, "tools": tools or None, "add_generation_prompt": True}
        variables = {**self._special_tokens, **others, **given}
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


class _StandIns:
    """Made-up words, each in the place of a text that must arrive."""

    def __init__(self) -> None:
        self._token = secrets.token_hex(8)
        self._places: dict[str, tuple[str, UsageError]] = {}

    def of(self, text: str, problem: UsageError) -> str:
        """A word to write in the place of ``text``. Args: problem: what to say where it is missing."""
        word = f"q{self._token}{len(self._places)}q"
        self._places[word] = text, problem
        return word

    def missing(self, written: str, probe: str | None) -> UsageError | None:
        """What to say of the first text that is missing in ``written``, or whose word is missing in ``probe``: the
        rendering of the words, None where there is none."""
        arrived = set(self._places if probe is None else re.findall(f"q{self._token}[0-9]+q", probe.casefold()))
        folded = written.casefold()
        found = self._places.items()
        return next((error for word, (text, error) in found if word not in arrived or not _occurs(text, folded)), None)


def _occurs(text: str, folded: str) -> bool:
    """Whether some word of ``text``, or all of it as JSON has it, stands in ``folded``; switches are no words."""
    words = [found[0] for found in re.finditer(r"(?<![/\w])\w+", text.casefold())]
    return not words or any(word in folded for word in words) or json.dumps(text)[1:-1].casefold() in folded


def _leaves_out(message: Message) -> UsageError:
    text = " ".join(" ".join(part[: 2 * _MAX_QUOTED] for part in said(message)).split())
    shown = text if len(text) <= _MAX_QUOTED else text[:_MAX_QUOTED] + "..."
    return UsageError(
        f"the model's chat template leaves out what the {message['role']} message says ({shown!r}), so the model would "
        "never read it; say it in another message or use raw text.",
        "messages",
    )


def _no_place(name: str) -> UsageError:
    return UsageError(
        f"the model's chat template has no place for `tools`: {name!r} does not arrive, so the model would not know of "
        "it; describe it in the system message.",
        "tools",
    )


def _words(error: Exception) -> str:
    """In one line: a template chooses them freely."""
    return " ".join(str(error).split())[:_MAX_WORDS]
