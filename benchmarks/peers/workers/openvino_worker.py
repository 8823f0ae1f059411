"""OpenVINO GenAI as a peer: its own GGUF reader on the wheel's file, requantised here to Q4_0 or Q8_0.

Needs openvino-genai and gguf.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import openvino as ov
import openvino_genai as genai
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, quants
from protocol import Answer, Question, run_worker

DRAFT_TOKENS, NGRAM = 3, 2
"""Faster here than the 5 and 3 of OpenVINO GenAI's own sample."""

TYPES = {"int8": GGMLQuantizationType.Q8_0, "int4": GGMLQuantizationType.Q4_0}
NOTES = {
    "int8": "the wheel's Q4_1 made Q8_0 by gguf, read by OpenVINO GenAI",
    "int4": "the wheel's Q4_1 made Q4_0 by gguf, embedding and head Q8_0, read by OpenVINO GenAI",
}


class Clock(genai.StreamerBase):  # type: ignore[misc]  # the suite has no openvino-genai
    """Keeps the tokens and when the first and the last came."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []
        self.first = self.last = 0.0

    def write(self, token: int | Sequence[int]) -> genai.StreamingStatus:
        self.last = time.perf_counter()
        self.first = self.first or self.last
        self.ids += [token] if isinstance(token, int) else token
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        pass


class OpenVino:
    """The file in one pipeline an arm, with OpenVINO's defaults. ``note``: what the file is."""

    def __init__(self, path: Path, threads: int, note: str) -> None:
        self.versions = {name: version(name) for name in ("openvino", "openvino-genai", "openvino-tokenizers")}
        self.note = f"{note}; {_defaults()}; prompt lookup drafts {DRAFT_TOKENS}"
        self._plain = genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads)
        self._lookup = genai.LLMPipeline(str(path), "CPU", INFERENCE_NUM_THREADS=threads, prompt_lookup=True)

    def answer(self, request: Question) -> Answer:
        config = genai.GenerationConfig(max_new_tokens=request.max_new_tokens, stop_token_ids=set(request.eos))
        pipeline = self._plain
        if request.arm == "prompt-lookup":
            pipeline = self._lookup
            config.num_assistant_tokens, config.max_ngram_size = DRAFT_TOKENS, NGRAM
        clock = Clock()
        start = time.perf_counter()
        results = pipeline.generate(ov.Tensor([request.ids]), config, clock)
        return Answer(list(results.tokens[0]), clock.first - start, clock.last - clock.first)


def _defaults() -> str:
    """How OpenVINO computes on this CPU when nobody says how."""
    core = ov.Core()
    precision = core.get_property("CPU", "INFERENCE_PRECISION_HINT").get_type_name()
    cache = core.get_property("CPU", "KV_CACHE_PRECISION").get_type_name()
    group = core.get_property("CPU", "DYNAMIC_QUANTIZATION_GROUP_SIZE")
    return f"OpenVINO's defaults here: {precision}, {cache} KV cache, activations quantised in groups of {group}"


def requantised(spec: dict[str, Any]) -> Path:
    return Path(spec["folder"]) / f"model-{spec['precision']}.gguf"


def prepare(spec: dict[str, Any]) -> None:
    """The wheel's file with its Q4_1 matrices in another type; the embedding stays as it is, Q8_0."""
    source = GGUFReader(spec["gguf"])
    target = GGUFWriter(requantised(spec), source.fields["general.architecture"].contents())
    for name, field in source.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            inner = field.types[-1] if field.types[0] == GGUFValueType.ARRAY else None
            target.add_key_value(name, field.contents(), field.types[0], inner)
    for tensor in source.tensors:
        data, kind = tensor.data, tensor.tensor_type
        if kind == GGMLQuantizationType.Q4_1:
            kind = TYPES[spec["precision"]]
            data = quants.quantize(quants.dequantize(tensor.data, tensor.tensor_type), kind)
        target.add_tensor(tensor.name, data, raw_dtype=kind)
    target.write_header_to_file()
    target.write_kv_data_to_file()
    target.write_tensors_to_file()
    target.close()


def load(spec: dict[str, Any]) -> OpenVino:
    return OpenVino(requantised(spec), spec["threads"], NOTES[spec["precision"]])


if __name__ == "__main__":
    sys.exit(run_worker(prepare, load, sys.argv))
