"""Messages of a chat: what one must have, and the two forms that their content comes in, text and lists of parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..errors import UsageError

Message = Mapping[str, Any]
"""``role`` and ``content``: a text, or a list of parts {"type": "text", "text": ...}. Other fields, such as
``tool_calls``, ``tool_call_id`` and ``name``, reach the chat template as they are."""

MUST_ARRIVE = frozenset({"user", "system", "developer"})
"""Roles whose text has to be in the prompt. Templates leave out some of an assistant's (its thinking) on purpose."""


class Parts(list[Any]):
    """A content's parts. A template that writes the list as if it were text is stopped: a model would read Python."""

    def __str__(self) -> str:
        raise ValueError("it writes a list of parts as text")

    __repr__ = __str__


class _Part(dict[str, Any]):
    def __str__(self) -> str:
        raise ValueError("it writes a part of a message as text")

    __repr__ = __str__


def checked(messages: Sequence[Message]) -> list[Message]:
    """Raises: UsageError where one is no message, or has a part that is no text."""
    for message in messages:
        if not isinstance(message, Mapping):
            found = type(message).__name__
            raise UsageError(f"a message is {found}, where a mapping with role and content was expected.", "messages")
        if not isinstance(message.get("role"), str) or not {"content", "tool_calls"} & message.keys():
            keys = sorted(map(str, message))
            raise UsageError(f"a message has the keys {keys}; it needs a role and a content.", "messages")
        content = message.get("content")
        if content is not None and not isinstance(content, str | list):
            raise UsageError(
                f"a message's content is {type(content).__name__}, where text or a list of parts is expected.",
                "messages",
            )
        said(message)
    return list(messages)


def said(message: Message) -> list[str]:
    """What a message says, part by part."""
    content = message.get("content")
    if isinstance(content, list):
        return [_part_text(part) for part in content]
    return [] if content is None else [content]


def _part_text(part: Any) -> str:
    kind = part.get("type") if isinstance(part, Mapping) else None
    text = part.get("text") if kind == "text" else None
    if not isinstance(text, str):
        raise UsageError(
            f"a message's content has a part of type {kind!r}; only parts of type 'text' can be read.", "messages"
        )
    return text


def as_given(message: Message) -> Message:
    """Lists stay lists, of which a template cannot write the inside by mistake."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {**message, "content": Parts(_Part(part) for part in content)}


def as_text(message: Message) -> Message:
    """Parts become one text, each on its own line as in vLLM."""
    if not isinstance(message.get("content"), list):
        return message
    return {**message, "content": "\n".join(said(message))}


def as_parts(message: Message) -> Message:
    """A text becomes a list of one part."""
    content = message.get("content")
    if not isinstance(content, str):
        return as_given(message)
    return {**message, "content": Parts([_Part(type="text", text=content)])}


FORMS: tuple[Callable[[Message], Message], ...] = (as_given, as_text, as_parts)
"""Bring a message's content to a form that templates read."""


def with_texts(message: Message, change: Callable[[str], str]) -> Message:
    """The same message with other words in the place of each text that must arrive."""
    content = message.get("content")
    if message["role"] not in MUST_ARRIVE or content is None:
        return message
    if isinstance(content, str):
        return {**message, "content": change(content) if content.strip() else content}
    parts = (_Part(part, text=change(part["text"])) if part["text"].strip() else part for part in content)
    return {**message, "content": Parts(parts)}
