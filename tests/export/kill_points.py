"""Run by test_interrupted.py in a process of its own: exports in children that are killed at chosen points.

    kill_points.py CHECKPOINT ROOT force|new

Prints a JSON list of [folder below ROOT, point, wait status]. An audit hook counts what a child asks of the file system
below its folder (opening, making, renaming, removing) and has it killed right before the n-th of these.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model

EVENTS = ("open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree")
POINTS = 10


def export(source: Path, folder: Path, precision: str, force: bool) -> None:
    checkpoint, name = open_model(str(source))
    export_model(checkpoint, name, folder / "out", ExportOptions(precision=precision, kernels="ort", force=force))


def in_child(work: Callable[[], None], seconds: float | None = None) -> int:
    """Run ``work`` in a child, killed after ``seconds``; returns its wait status."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
            os._exit(0)
        finally:
            os._exit(1)
    if seconds is not None:
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


def watched(source: Path, folder: Path, force: bool, act: Callable[[int, str], None]) -> int:
    """Export in a child whose events are shown to ``act``; returns its wait status."""

    def work() -> None:
        watch(folder, act)
        export(source, folder, "fp32", force)

    return in_child(work)


def watch(folder: Path, act: Callable[[int, str], None]) -> None:
    """Call ``act`` with the number and kind of every event below ``folder``, from now on."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        if event in EVENTS and isinstance(arguments[0], str | Path) and str(arguments[0]).startswith(str(folder)):
            act(count, event)
            count += 1

    sys.addaudithook(hook)


def main(source: Path, root: Path, force: bool) -> None:
    def prepared(name: str) -> Path:
        folder = root / name
        folder.mkdir()
        if force:
            export(source, folder, "int4", force=False)
        return folder

    def events_of(folder: Path) -> list[str]:
        log = root / "events"

        def note(_: int, event: str) -> None:
            with os.fdopen(os.open(log, os.O_APPEND | os.O_CREAT | os.O_WRONLY), "a") as file:
                file.write(event + "\n")

        status = watched(source, folder, force, note)
        assert status == 0
        return log.read_text().split()

    def killed_at(folder: Path, point: int) -> int:
        def kill(count: int, _: str) -> None:
            if count == point:
                os.kill(os.getpid(), signal.SIGKILL)

        return watched(source, folder, force, kill)

    events = events_of(prepared("whole"))
    renames = [i for i, event in enumerate(events) if event == "os.rename"]
    chosen = {0, len(events) - 1, *renames, *(i + 1 for i in renames if i + 1 < len(events))}
    chosen |= set(range(1, len(events), max(1, len(events) // (POINTS - len(chosen)))))
    done = []
    for point in sorted(chosen):
        status = killed_at(prepared(f"at-{point:03}"), point)
        done.append([f"at-{point:03}", f"before {events[point]}", status])
    for milliseconds in (3, 10, 30):
        folder = prepared(f"after-{milliseconds}")
        status = in_child(partial(export, source, folder, "fp32", force), milliseconds / 1000)
        done.append([folder.name, f"after {milliseconds} ms", status])
    print(json.dumps(done))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3] == "force")
