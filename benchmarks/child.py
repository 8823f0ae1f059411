"""Runs a module of this package in a process of its own, so that nothing but its work is in its figures of memory; and
any command so that nothing of it is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfspec.errors import SelfSpecError

_ROOT = Path(__file__).resolve().parents[1]


def run_child(module: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``module`` says: the last line of its stdout, a JSON object. Its stderr is ours; an interrupt ends it too.

    Args:
        module: its full name, such as ``benchmarks.memory.arm``.
        environment: further variables.

    Raises:
        SelfSpecError: it failed; it has said why on stderr.
    """
    command = [sys.executable, "-m", module, *arguments]
    done = run_group(command, stdout=subprocess.PIPE, env=importable() | dict(environment or {}))
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SelfSpecError(f"{module} {' '.join(arguments)} failed (exit code {done.returncode}); see above.")
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def importable() -> dict[str, str]:
    """The environment of a process that is to import this package, whatever its working folder is."""
    folders = [str(_ROOT), os.environ.get("PYTHONPATH", "")]
    return os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, folders))}


def run_group(
    command: Sequence[str], timeout: float | None = None, **popen_arguments: Any
) -> subprocess.CompletedProcess[str]:
    """``subprocess.run`` in text mode, in a session of its own: whatever ends the wait early, an
    interrupt or a SIGTERM too, ends
    the command with all that it has started.

    Raises:
        subprocess.TimeoutExpired: it took longer than ``timeout`` seconds.
    """
    with terminable(), subprocess.Popen(command, text=True, start_new_session=True, **popen_arguments) as process:
        try:
            stdout, stderr = process.communicate(timeout=timeout)
        except BaseException:
            kill_group(process)
            raise
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@contextlib.contextmanager
def terminable() -> Iterator[None]:
    """A SIGTERM raises SystemExit meanwhile, so that what was started or is temporary goes too."""
    if threading.current_thread() is not threading.main_thread():  # only there may it be set
        yield
        return
    previous = signal.signal(signal.SIGTERM, _terminated)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


def _terminated(number: int, frame: object) -> None:
    raise SystemExit(128 + number)


def kill_group(process: subprocess.Popen[str]) -> None:
    """``process``, started with ``start_new_session``, and all that it has started. Wait for it afterwards."""
    if sys.platform == "win32":
        process.kill()
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):  # nobody is left; macOS says so by the latter
        os.killpg(process.pid, signal.SIGKILL)
