"""llama.cpp as a peer with the wheel's GGUF file as it is: Q4_1, embedding and head Q8_0. Needs llama-cpp-python."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from llama_cpp_worker import LlamaCpp
from protocol import run_worker


def prepare(spec: dict[str, Any]) -> None:
    """Nothing to make."""


def load(spec: dict[str, Any]) -> LlamaCpp:
    return LlamaCpp(Path(spec["gguf"]), spec["threads"], "the wheel's file, Q4_1, as it is")


if __name__ == "__main__":
    sys.exit(run_worker(prepare, load, sys.argv))
