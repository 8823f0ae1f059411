"""Every error this library raises on purpose. Imports nothing of ours; the command line prints them and exits."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Callable, Iterable, Iterator

_LONGEST = 1000  # characters of a message


def one_line(text: str) -> str:
    """``text`` without line ends, its middle left out where it is long, control characters escaped."""
    line = " ".join(text.splitlines())
    if len(line) > _LONGEST:
        line = f"{line[: _LONGEST // 2]} ... {line[-_LONGEST // 2 :]}"
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in line)


class SelfSpecError(Exception):
    """Base of all library errors. ``exit_code`` is what the command line exits with.

    Its text is one printable line: messages quote what stands in files by strangers.
    """

    exit_code = 1

    def __str__(self) -> str:
        return one_line(super().__str__())


class UsageError(SelfSpecError):
    """An option or argument that can never work, whatever the files contain.

    Messages write a parameter in backquotes under its Python name, as in "`top_p` 2: it must be at most 1"; the command
    line puts its flag there instead. ``parameter`` is the name of the one that the error is about.
    """

    exit_code = 2

    def __init__(self, message: str, parameter: str | None = None) -> None:
        super().__init__(message)
        self.parameter = parameter


class CheckpointError(SelfSpecError):
    """The model to export is missing, damaged or incomplete."""


class UnsupportedModelError(SelfSpecError):
    """The model is readable, but uses something this version does not implement."""


class ArtifactError(SelfSpecError):
    """An exported folder is missing, damaged, or of an unknown format version."""


class ContextLengthError(SelfSpecError):
    """More tokens than the model's context holds."""


class RuntimeSetupError(SelfSpecError):
    """The process or machine cannot run the request as asked (threads, exactness)."""


class KernelSetupError(RuntimeSetupError):
    """The native kernels that an artifact was exported for are not installed, or cannot run here."""


@contextlib.contextmanager
def foreign_errors(made: Callable[[str], SelfSpecError]) -> Iterator[None]:
    """Turns whatever a compiled library raises into a library error. The tokenizers library raises plain Exception, and
    its panics are no Exception at all.

    Args:
        made: an error's own words, in one line → the error to raise.
    """
    try:
        yield
    except (SelfSpecError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise made(one_line(str(error)) or type(error).__name__) from error


def unknown_name(kind: str, name: str, known: Iterable[str]) -> str:
    """One sentence for an unknown name: what was found, the nearest known one, and all known ones."""
    names = sorted(known)
    nearest = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
    return f"unknown {kind} {name!r}: known are {', '.join(names)}.{hint}"
