"""A worker that speaks the peers' protocol and computes nothing: ids count up from the prompt's last.

Arms beside plain: ``dies``, ``fails``, ``hangs``, ``babbles``. SPEC["load"]: what happens while it loads.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[3]))
from benchmarks.peers.workers.protocol import Answer, Question, run_worker


class FakeWorker:
    versions = {"fake": "1"}  # noqa: RUF012
    note = "counts"

    def __init__(self, spec: dict[str, Any]) -> None:
        happen(spec.get("load", "plain"))
        print("a library's greeting on stdout")

    def answer(self, request: Question) -> Answer:
        happen(request.arm)
        if request.arm == "babbles":
            return Answer(None, 0.5, 1.0)  # type: ignore[arg-type]
        last = request.ids[-1]
        return Answer(list(range(last + 1, last + 1 + request.max_new_tokens)), 0.5, 1.0)


def happen(arm: str) -> None:
    if arm == "dies":
        print("out of luck", file=sys.stderr, flush=True)
        os._exit(3)
    if arm == "fails":
        raise ValueError("no such\narm")
    if arm == "hangs":
        time.sleep(60)


def prepare(spec: dict[str, Any]) -> None:
    folder = Path(spec["folder"])
    (folder / "model").write_text(f"{len(list(folder.parent.glob('*.count')))}", encoding="utf-8")
    (folder.parent / f"{time.monotonic_ns()}.count").touch()
    happen(spec.get("prepare", "plain"))


if __name__ == "__main__":
    sys.exit(run_worker(prepare, FakeWorker, sys.argv))
