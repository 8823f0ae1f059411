"""selfspec of any commit, for benchmarks.commits: it uses ``load`` and ``stream_ids`` only. SPEC["folder"] is an
artifact, and an arm is the text of a draft."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

from protocol import Answer, Question, run_worker

import selfspec


class Checkout:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._model = selfspec.load(spec["folder"], threads=spec["threads"])
        self.versions = {"selfspec": selfspec.__version__}
        self.note = str(Path(selfspec.__file__).resolve().parent)  # the driver asks whether it is the right one

    def answer(self, request: Question) -> Answer:
        ids: list[int] = []
        times: list[float] = []
        start = time.perf_counter()
        for token in self._model.stream_ids(
            request.ids, max_new_tokens=request.max_new_tokens, draft=request.arm, temperature=0.0
        ):
            ids.append(token.id)
            times.append(time.perf_counter())
        return Answer(ids, times[0] - start, times[-1] - times[0])


def prepare(spec: dict[str, Any]) -> None:
    """The artifact exists."""


if __name__ == "__main__":
    sys.exit(run_worker(prepare, Checkout, sys.argv))
