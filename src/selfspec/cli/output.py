"""Standard streams as every command meets them: closed, a log file, or of an encoding that lacks characters.

What people read may lose a character to the terminal's encoding; what machines read never does.
"""

from __future__ import annotations

import errno
import io
import json
import os
import sys
from typing import Any, TextIO


class _Closed(io.TextIOBase):
    """Standard output where there is none: whoever has something to write is told so."""

    def write(self, text: str) -> int:
        raise OSError(errno.EBADF, "standard output is closed")


def prepare_streams() -> None:
    """Have all three standard streams, closed ones too (cron, some supervisors, ``>&-``; Python has None there):
    nothing can be read, what is said goes nowhere, and a result that cannot be written is an error.

    Their descriptors are taken first: a file that is opened next would get one, and whatever libraries print.
    """
    if os.name == "posix":
        for descriptor in range(3):
            try:
                os.fstat(descriptor)
            except OSError:
                os.open(os.devnull, os.O_RDWR)  # takes the lowest one that is free
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  (for as long as the process lives)
    if sys.stdout is None:
        sys.stdout = _Closed()
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # text that the terminal's encoding lacks is no reason to stop


def print_json(data: Any) -> None:
    """One JSON value in one line on standard output."""
    print(carried(json.dumps(data, ensure_ascii=False), sys.stdout), flush=True)


def carried(text: str, stream: TextIO) -> str:
    """JSON ``text`` as ``stream`` can carry it: escaped where its encoding, or any, lacks a character."""
    if _holds(stream, text):
        return text
    return "".join(c if c.isascii() else json.dumps(c)[1:-1] for c in text)


def print_csv(text: str) -> None:
    """A table on standard output. CSV has no escapes, so it is UTF-8 where the stream's encoding lacks a character;
    what is no text, as in some paths, is written as a backslash and its number."""
    stream = sys.stdout
    if _holds(stream, text) or not isinstance(stream, io.TextIOWrapper):
        print(text, end="", flush=True)
        return
    print(f"the table is in UTF-8: {stream.encoding} lacks some of its characters.", file=sys.stderr)
    stream.flush()
    stream.buffer.write(text.encode("utf-8", "backslashreplace"))
    stream.buffer.flush()


def _holds(stream: TextIO, text: str) -> bool:
    try:
        text.encode(getattr(stream, "encoding", None) or "utf-8")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
