"""selfspec itself, in a process like every peer's. SPEC["folder"] is an artifact."""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from typing import Any

from protocol import Answer, Question, run_worker

from selfspec import load


class OurWorker:
    """``early-exit`` leaves at SPEC["exit_layer"], as transformers' does."""

    def __init__(self, spec: dict[str, Any]) -> None:
        model = load(spec["folder"], threads=spec["threads"])
        model.profile(refresh=True)  # as this machine is now, and not within an answer
        self._model = model
        self._drafts: dict[str, dict[str, Any]] = {
            "plain": {"draft": "none"},
            "prompt-lookup": {"draft": "prompt-lookup"},
            "early-exit": {"draft": "early-exit", "exit_layer": spec.get("exit_layer")},
            "auto": {"draft": "auto"},
        }
        self.versions = {name: version(name) for name in ("selfspec", "onnxruntime")}
        self.note = f"{model.sessions.kernels_name} kernels, sha256 {model.artifact.digest[:12]}"

    def answer(self, request: Question) -> Answer:
        if set(request.eos) != set(self._model.codec.eos_token_ids):
            raise ValueError(f"the artifact ends at {sorted(self._model.codec.eos_token_ids)}, not at {request.eos}")
        ids: list[int] = []
        times: list[float] = []
        start = time.perf_counter()
        for token in self._model.stream_ids(
            request.ids, max_new_tokens=request.max_new_tokens, **self._drafts[request.arm]
        ):
            ids.append(token.id)
            times.append(time.perf_counter())
        return Answer(ids, times[0] - start, times[-1] - times[0])


def prepare(spec: dict[str, Any]) -> None:
    """benchmarks.peers exports the artifact."""


if __name__ == "__main__":
    sys.exit(run_worker(prepare, OurWorker, sys.argv))
