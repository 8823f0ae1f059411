"""CTranslate2 as a peer, by its converter of transformers models.

Needs ctranslate2, tokenizers, and to prepare transformers and torch.
"""

from __future__ import annotations

import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import ctranslate2
from protocol import Answer, Question, run_worker
from tokenizers import Tokenizer

COMPUTE_TYPES = {"fp32": "float32", "int8": "int8"}


class CTranslate2:
    """A converted model. It takes and gives tokens as pieces of text, so ids go through the tokenizer's table."""

    def __init__(self, folder: Path, tokenizer: Path, threads: int, compute_type: str) -> None:
        self.versions = {"ctranslate2": version("ctranslate2")}
        self.note = f"converted from float32, computes in {compute_type}"
        self._model = ctranslate2.Generator(str(folder), intra_threads=threads, compute_type=compute_type)
        self._tokenizer = Tokenizer.from_file(str(tokenizer))

    def answer(self, request: Question) -> Answer:
        ids: list[int] = []
        times: list[float] = []

        def came(step: Any) -> bool:
            times.append(time.perf_counter())
            ids.append(step.token_id)
            return False

        start = time.perf_counter()
        prompt = [self._tokenizer.id_to_token(token) for token in request.ids]
        self._model.generate_batch(
            [prompt],
            max_length=request.max_new_tokens,
            sampling_topk=1,
            end_token=request.eos,
            return_end_token=True,
            include_prompt_in_result=False,
            callback=came,
        )
        return Answer(ids, times[0] - start, times[-1] - times[0])


def converted(spec: dict[str, Any]) -> Path:
    return Path(spec["folder"]) / f"model-{spec['precision']}"


def prepare(spec: dict[str, Any]) -> None:
    converter = ctranslate2.converters.TransformersConverter(spec["hf"])
    converter.convert(str(converted(spec)), quantization=COMPUTE_TYPES[spec["precision"]], force=True)


def load(spec: dict[str, Any]) -> CTranslate2:
    tokenizer = Path(spec["hf"]) / "tokenizer.json"
    return CTranslate2(converted(spec), tokenizer, spec["threads"], COMPUTE_TYPES[spec["precision"]])


if __name__ == "__main__":
    sys.exit(run_worker(prepare, load, sys.argv))
