"""Hugging Face transformers on PyTorch, float32: plain, its own early exit, its own prompt lookup."""

from __future__ import annotations

import sys
from typing import Any

from protocol import Answer, Question, run_worker

_LOOKUP_TOKENS = 10  # as in its documentation


class TransformersWorker:
    def __init__(self, spec: dict[str, Any]) -> None:
        import torch
        import transformers

        torch.set_num_threads(spec["threads"])
        self._model = transformers.AutoModelForCausalLM.from_pretrained(spec["hf"], dtype=torch.float32).eval()
        self._options: dict[str, dict[str, Any]] = {
            "plain": {},
            "early-exit": {"assistant_early_exit": spec.get("exit_layer")},
            "prompt-lookup": {"prompt_lookup_num_tokens": _LOOKUP_TOKENS},
        }
        self.versions = {"transformers": transformers.__version__, "torch": torch.__version__}
        self.note = f"early exit after layer {spec.get('exit_layer')}; prompt_lookup_num_tokens={_LOOKUP_TOKENS}"

    def answer(self, request: Question) -> Answer:
        from hf_generate import answer

        return answer(self._model, request, **self._options[request.arm])


def prepare(spec: dict[str, Any]) -> None:
    """The Hugging Face folder is its own form."""


if __name__ == "__main__":
    sys.exit(run_worker(prepare, TransformersWorker, sys.argv))
