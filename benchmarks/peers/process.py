"""A peer's process, as the driver sees it: started when it is asked, ended when it does not answer."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

from ..child import kill_group
from .environment import PeerError, last_words
from .workers.protocol import Answer, Question

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds that a process may take to load, and to answer."""

    load: float = 600.0
    answer: float = 300.0


@dataclass(frozen=True, slots=True)
class Ready:
    """What a worker says of itself once it is loaded."""

    versions: dict[str, str]
    note: str


class PeerProcess:
    """One ``serve`` process. After a failure the next request starts another one, unless it was loading that failed."""

    def __init__(self, command: Sequence[str], env: dict[str, str], log: Path, limits: Limits = Limits()) -> None:
        """``log``: a file for what the process prints to stderr."""
        self._command, self._env, self._log, self._limits = list(command), env, log, limits
        self._process: subprocess.Popen[str] | None = None
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._cannot_load = ""
        self.ready: Ready | None = None

    def start(self) -> None:
        """Load, unless it is loaded.

        Raises:
            PeerError: it cannot be loaded, now or at an earlier try.
        """
        self._started()

    def ask(self, request: Question) -> Answer:
        """
        Raises:
            PeerError: the process died, said an error, or took too long; it has ended.
        """
        process = self._started()
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # a dead process: its reply tells
                process.stdin.write(json.dumps(asdict(request)) + "\n")
                process.stdin.flush()
        return self._reply(process, "answer", _answer, self._limits.answer, "answer")

    def _started(self) -> subprocess.Popen[str]:
        if self._cannot_load:
            raise PeerError(self._cannot_load)
        if self._process is not None:
            return self._process
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("w", encoding="utf-8") as log:
            process = subprocess.Popen(
                self._command,
                env=self._env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                encoding="utf-8",
                errors="replace",
                start_new_session=True,
            )
        self._process, self._lines = process, queue.Queue()
        threading.Thread(target=_forward, args=(process, self._lines), daemon=True).start()
        try:
            self.ready = self._reply(process, "ready", _ready, self._limits.load, "load")
        except PeerError as failure:
            self._cannot_load = str(failure)
            raise
        return process

    def _reply(
        self, process: subprocess.Popen[str], kind: str, made: Callable[..., _T], seconds: float, verb: str
    ) -> _T:
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            self.close()
            raise PeerError(f"did not {verb} in {seconds:g} s") from None
        message: dict[str, Any] = {"error": self._obituary(process)} if line is None else _parsed(line)
        with contextlib.suppress(KeyError, TypeError, ValueError):  # garbage: told below
            return made(**message[kind])
        self.close()
        raise PeerError(str(message.get("error", f"said {line!r} where its {kind} was expected"))[:300])

    def _obituary(self, process: subprocess.Popen[str]) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        words = last_words(self._log.read_text(encoding="utf-8", errors="replace"))
        return f"its process ended with exit code {process.returncode}" + (f": {words}" if words else "")

    def close(self) -> None:
        """End the process, if there is one."""
        if self._process is None:
            return
        process, self._process = self._process, None
        if process.stdin is not None:
            with contextlib.suppress(OSError):  # it may be dead
                process.stdin.close()
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(1)
        finally:
            kill_group(process)  # and what it has started, which may live on without it
            process.wait()


def _forward(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    if process.stdout is not None:
        for line in process.stdout:
            lines.put(line)
    lines.put(None)


def _answer(ids: Iterable[int], ttft_seconds: float, decode_seconds: float) -> Answer:
    return Answer([int(token) for token in ids], float(ttft_seconds), float(decode_seconds))


def _ready(versions: Mapping[str, str], note: str) -> Ready:
    return Ready(dict(versions), str(note))


def _parsed(line: str) -> dict[str, Any]:
    try:
        found = json.loads(line)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
