"""onnxruntime-genai, int4 by its own builder."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from typing import Any

from protocol import Answer, Question, run_worker


class GenAIWorker:
    def __init__(self, spec: dict[str, Any]) -> None:
        import onnxruntime_genai as og

        config = og.Config(spec["folder"])
        session = {"intra_op_num_threads": spec["threads"]}
        config.overlay(json.dumps({"model": {"decoder": {"session_options": session}}}))
        self._og, self._model = og, og.Model(config)
        self.versions = {name: version(name) for name in ("onnxruntime-genai", "onnxruntime")}
        self.note = "its builder's default int4: symmetric blocks of 32, accuracy level 4, the head too"

    def answer(self, request: Question) -> Answer:
        started = time.perf_counter()
        params = self._og.GeneratorParams(self._model)
        params.set_search_options(
            max_length=len(request.ids) + request.max_new_tokens, do_sample=False, repetition_penalty=1.0
        )
        generator = self._og.Generator(self._model, params)
        generator.append_tokens(request.ids)
        ids: list[int] = []
        first = started
        while len(ids) < request.max_new_tokens and not (ids and ids[-1] in request.eos):
            generator.generate_next_token()
            ids.append(int(generator.get_next_tokens()[0]))
            if len(ids) == 1:
                first = time.perf_counter()
        return Answer(ids, first - started, time.perf_counter() - first)


def prepare(spec: dict[str, Any]) -> None:
    module = [sys.executable, "-m", "onnxruntime_genai.models.builder"]
    with tempfile.TemporaryDirectory() as cache:
        command = [*module, "-i", spec["hf"], "-o", spec["folder"], "-p", spec["precision"], "-e", "cpu", "-c", cache]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"the builder failed: {done.stderr.strip().splitlines()[-1:]}")


if __name__ == "__main__":
    sys.exit(run_worker(prepare, GenAIWorker, sys.argv))
