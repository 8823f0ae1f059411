"""selfspec itself, in a process like every peer's. SPEC["folder"] is an artifact."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from protocol import Answer, Request, run_worker

from selfspec import load

_DRAFTS = {"plain": "none", "prompt-lookup": "prompt-lookup", "auto": "auto"}


class OurWorker:
    def __init__(self, spec: dict[str, Any]) -> None:
        self._model = load(spec["folder"], threads=spec["threads"])
        self._model.profile()  # measured while nothing else runs, not within an answer
        self.versions = {name: version(name) for name in ("selfspec", "onnxruntime")}
        self.note = ""

    def answer(self, request: Request) -> Answer:
        if set(request.eos) != set(self._model.codec.eos_token_ids):
            raise ValueError(f"the artifact ends at {sorted(self._model.codec.eos_token_ids)}, not at {request.eos}")
        stream = self._model.stream_ids(request.ids, max_new_tokens=request.max_new_tokens, draft=_DRAFTS[request.arm])
        ids = [token.id for token in stream]
        stats = stream.result.stats
        return Answer(ids, stats.ttft_seconds, stats.decode_seconds)


def prepare(spec: dict[str, Any]) -> None:
    """peers.py exports the artifact."""


if __name__ == "__main__":
    sys.exit(run_worker(prepare, OurWorker, sys.argv))
