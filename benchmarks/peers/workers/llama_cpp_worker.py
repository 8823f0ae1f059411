"""llama.cpp as a peer, through llama-cpp-python: the wheel's GGUF file in the type that a precision is there.

Plain decoding calls llama.cpp's own functions, a batch of one token and its greedy sampler: with less Python a token
than llama-cpp-python's ``Llama.generate``. Prompt lookup is ``Llama``'s. Needs llama-cpp-python.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import llama_cpp
from llama_cpp.llama_speculative import LlamaPromptLookupDecoding
from protocol import Answer, Question, run_worker

CONTEXT = 2048

DRAFT_TOKENS = 2
"""What llama-cpp-python's README advises on CPUs; 10, its default, took nearly twice the time a token here."""

FILE_TYPES = {
    "fp32": llama_cpp.LLAMA_FTYPE_ALL_F32,
    "int8": llama_cpp.LLAMA_FTYPE_MOSTLY_Q8_0,
    "int4": llama_cpp.LLAMA_FTYPE_MOSTLY_Q4_0,
}
NOTES = {
    "fp32": "the wheel's file widened to F32 by llama.cpp",
    "int8": "the wheel's file made Q8_0 by llama.cpp",
    "int4": "the wheel's file made Q4_0 by llama.cpp, embedding and head Q8_0",
}


class LlamaCpp:
    """A GGUF file, loaded once an arm. ``note``: what the file is."""

    def __init__(self, path: Path, threads: int, note: str) -> None:
        self.versions = {"llama-cpp-python": version("llama-cpp-python")}
        self.note = f"{note}; f16 KV cache; prompt lookup drafts {DRAFT_TOKENS}"
        self._lookup = llama_cpp.Llama(
            str(path),
            n_ctx=CONTEXT,
            n_threads=threads,
            n_threads_batch=threads,
            flash_attn=True,  # what llama.cpp chooses by itself, and llama-cpp-python does not
            draft_model=LlamaPromptLookupDecoding(num_pred_tokens=DRAFT_TOKENS),
            verbose=False,
        )
        self._plain = Decoder(path, threads)

    def answer(self, request: Question) -> Answer:
        start = time.perf_counter()
        tokens = {"plain": self._plain.tokens, "prompt-lookup": self._drafted}[request.arm](request.ids)
        return timed(tokens, request, start)

    def _drafted(self, ids: list[int]) -> Iterator[int]:
        self._lookup.reset()  # or it would find this prompt's rows of the last time
        return self._lookup.generate(ids, temp=0.0, repeat_penalty=1.0)


class Decoder:
    """A model and a context with llama.cpp's defaults. One sequence at a time."""

    def __init__(self, path: Path, threads: int) -> None:
        model = llama_cpp.llama_model_load_from_file(str(path).encode(), llama_cpp.llama_model_default_params())
        if model is None:
            raise RuntimeError(f"llama.cpp cannot load {path.name}")
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = params.n_batch = CONTEXT
        params.n_threads = params.n_threads_batch = threads
        context = llama_cpp.llama_init_from_model(model, params)
        if context is None:
            raise RuntimeError(f"llama.cpp makes no context for {path.name}")
        self._context = context
        self._greedy = llama_cpp.llama_sampler_init_greedy()

    def tokens(self, ids: list[int]) -> Iterator[int]:
        """The greedy tokens behind ``ids``, without an end."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self._context), True)
        self._decode((llama_cpp.llama_token * len(ids))(*ids))
        one = (llama_cpp.llama_token * 1)()
        while True:
            one[0] = llama_cpp.llama_sampler_sample(self._greedy, self._context, -1)
            yield one[0]
            self._decode(one)

    def _decode(self, tokens: ctypes.Array[ctypes.c_int32]) -> None:
        status = llama_cpp.llama_decode(self._context, llama_cpp.llama_batch_get_one(tokens, len(tokens)))
        if status:
            raise RuntimeError(f"llama_decode returned {status}")


def timed(tokens: Iterator[int], request: Question, start: float) -> Answer:
    """As many of ``tokens`` as were asked for. ``start``: when they were, by ``perf_counter``."""
    ids: list[int] = []
    first = start
    for token in tokens:
        ids.append(token)
        if len(ids) == 1:
            first = time.perf_counter()
        if len(ids) == request.max_new_tokens or token in request.eos:
            break
    return Answer(ids, first - start, time.perf_counter() - first)


def requantised(spec: dict[str, Any]) -> Path:
    return Path(spec["folder"]) / f"model-{spec['precision']}.gguf"


def prepare(spec: dict[str, Any]) -> None:
    """By llama.cpp's own rules, which keep the embedding, the head here too, at Q8_0 in a Q4_0 file."""
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FILE_TYPES[spec["precision"]]
    params.allow_requantize = True
    target = requantised(spec)
    status = llama_cpp.llama_model_quantize(spec["gguf"].encode(), str(target).encode(), ctypes.byref(params))
    if status:
        raise RuntimeError(f"llama_model_quantize returned {status} for {target.name}")


def load(spec: dict[str, Any]) -> LlamaCpp:
    return LlamaCpp(requantised(spec), spec["threads"], NOTES[spec["precision"]])


if __name__ == "__main__":
    sys.exit(run_worker(prepare, load, sys.argv))
