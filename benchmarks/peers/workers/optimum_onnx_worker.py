"""optimum-onnx: ORTModelForCausalLM on the float32 graph that its own exporter makes."""

from __future__ import annotations

import sys
from importlib.metadata import version
from typing import Any

from protocol import Answer, Question, run_worker


class OptimumWorker:
    def __init__(self, spec: dict[str, Any]) -> None:
        import onnxruntime
        from optimum.onnxruntime import ORTModelForCausalLM

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = spec["threads"]
        self._model = ORTModelForCausalLM.from_pretrained(
            spec["folder"], provider="CPUExecutionProvider", session_options=options
        )
        self.versions = {name: version(name) for name in ("optimum-onnx", "onnxruntime", "transformers", "torch")}
        self.note = ""

    def answer(self, request: Question) -> Answer:
        from hf_generate import answer

        return answer(self._model, request)


def prepare(spec: dict[str, Any]) -> None:
    from optimum.onnxruntime import ORTModelForCausalLM

    ORTModelForCausalLM.from_pretrained(spec["hf"], export=True).save_pretrained(spec["folder"])


if __name__ == "__main__":
    sys.exit(run_worker(prepare, OptimumWorker, sys.argv))
