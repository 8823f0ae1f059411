"""What every command of selfspec runs in: one sentence for a mistake, exit codes, and streams that fail quietly."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable
from typing import NoReturn

from ..errors import SelfSpecError, UsageError, one_line
from .output import prepare_streams

_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one sentence and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        prepare_streams()  # print would say it on standard output where there is no other
        print(f"{self.prog}: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(UsageError.exit_code)

    def spelled(self, text: str) -> str:
        """``text`` with the flag in place of every parameter that stands in backquotes and has one: --top-p."""
        flags = {action.dest: max(action.option_strings, key=len) for action in self._actions if action.option_strings}
        return re.sub(r"`(\w+)`", lambda found: flags.get(found[1], found[0]), text)


def run_command(command: Callable[[], None], prog: str, parser: Parser | None = None) -> int:
    """Run ``command``; library errors, and what the system refuses, become one sentence and their exit code.

    Args:
        parser: knows the flags of the parameters that errors name.
    """
    prepare_streams()
    try:
        command()
        sys.stdout.flush()
    except SelfSpecError as error:
        print(f"{prog}: {parser.spelled(str(error)) if parser else error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone
        _forget_output()
        return 1
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:  # it is the output that cannot be written
            _forget_output()
        print(f"{prog}: the system refuses this ({one_line(str(error))}).", file=sys.stderr)
        return SelfSpecError.exit_code
    except UnicodeEncodeError as error:  # half of a character, as in a path that is no text
        found = one_line(repr(error.object[max(0, error.start - 40) : error.end + 40]))
        print(f"{prog}: {found} is no UTF-8 text, which is needed here; use another name or text.", file=sys.stderr)
        return SelfSpecError.exit_code
    return 0


def _forget_output() -> None:
    """Keeps Python from complaining at exit about what could not be written."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
