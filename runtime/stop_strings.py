"""Ends a text at a stop string, and never shows anything of it. Knows pieces of text, not what makes them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ..errors import UsageError


class Match(NamedTuple):
    """A stop string and where it begins."""

    text: str
    start: int


class StopStrings:
    """A set of strings to look for. The one that is complete first wins, of those that end together the longest: what
    ends a text must not depend on how many tokens came at once."""

    def __init__(self, strings: Sequence[str] = ()) -> None:
        """Raises: UsageError where one is empty or no text."""
        if isinstance(strings, str):
            raise UsageError(f"`stop` {strings!r}: it must be a list of texts, such as [{strings!r}].", "stop")
        for string in strings:
            if not isinstance(string, str) or not string:
                raise UsageError(f"`stop` {string!r}: it must be a text of at least one character.", "stop")
        self._strings = tuple(dict.fromkeys(strings))

    def __bool__(self) -> bool:
        return bool(self._strings)

    def find(self, text: str) -> Match | None:
        """The first to be complete in ``text``."""
        found = [Match(string, text.find(string)) for string in self._strings if string in text]
        return min(found, key=lambda match: (match.start + len(match.text), match.start), default=None)

    def settled(self, text: str) -> int:
        """How many characters of ``text``, which holds no stop string, can belong to none whatever follows."""
        longest = max(map(len, self._strings), default=1) - 1
        for start in range(max(0, len(text) - longest), len(text)):
            if any(string.startswith(text[start:]) for string in self._strings):
                return start
        return len(text)


@dataclass(frozen=True, slots=True)
class Piece:
    """What one token adds to the text; ``index`` counts the tokens."""

    index: int
    text: str


class StopFilter:
    """Holds tokens back while their text may belong to a stop string.

    A token stays if its text begins before the stop string, and then loses what lies behind that point. One without
    text of its own goes with the token after it, to whose character it may belong.
    """

    def __init__(self, strings: StopStrings) -> None:
        self.match: str | None = None
        """The stop string that ended the text."""
        self._strings = strings
        self._held: list[Piece] = []
        self._count = 0

    def push(self, text: str) -> list[Piece]:
        """The next token's text; returns the tokens that are certain now. Once ``match`` is set, the rest is gone."""
        self._held.append(Piece(self._count, text))
        self._count += 1
        whole = "".join(piece.text for piece in self._held)
        found = self._strings.find(whole)
        if found is not None:
            self.match = found.text
            return self._before(found.start)
        settled, end, ready = self._strings.settled(whole), 0, 0
        for i, piece in enumerate(self._held, 1):
            end += len(piece.text)
            if end <= settled and (piece.text or not self._strings):
                ready = i
        released, self._held = self._held[:ready], self._held[ready:]
        return released

    def _before(self, cut: int) -> list[Piece]:
        kept, start = [], 0
        for piece in self._held:
            if start < cut:
                kept.append(Piece(piece.index, piece.text[: cut - start]))
            start += len(piece.text)
        self._held = []
        return kept

    def finish(self) -> list[Piece]:
        """What is still held back, where no more text comes."""
        released, self._held = self._held, []
        return released
