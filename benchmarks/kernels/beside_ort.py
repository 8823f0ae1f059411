"""Native kernels beside ONNX Runtime's: the same model in both artifacts, in one process, in turns; and what each
artifact adds to a process of its own when it is opened.

    python -m benchmarks.kernels.beside_ort NATIVE ORT [--threads N] [--rounds 40] [-o FILE]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from selfspec.bench.bootstrap import resampled_interval
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.model import Model, load, notify_stderr

from .. import RESULTS
from ..child import run_child
from ..results import machine_facts, write_results
from ..timing import alternate, median_ms
from .table import PREFILL, ROWS, markdown

_CONTEXT = 128  # tokens before a pass
_PREFILL_ROUNDS = 7
_BLOCK = 8
_OPENINGS = 5


def main() -> int:
    parser = Parser(
        prog="python -m benchmarks.kernels.beside_ort",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("native", type=Path)
    parser.add_argument("ort", type=Path)
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    parser.add_argument("--rounds", type=int, default=20, help=f"of {_BLOCK} passes each; medians count")
    parser.add_argument("-o", "--output", type=Path, help="default: benchmarks/results/beside-MODEL-PRECISION.json")
    args = parser.parse_args()
    return run_command(lambda: run(args), "python -m benchmarks.kernels.beside_ort")


def run(args: argparse.Namespace) -> None:
    """Raises UsageError where the two are not the same model in two kinds of kernels."""
    if args.rounds < 1:
        raise UsageError(f"--rounds {args.rounds}: it must be 1 or more.")
    models = {name: load(getattr(args, name), threads=args.threads) for name in ("native", "ort")}
    check(models)
    found = measure(models, args.rounds)
    for name in models:
        found[f"{name}_open"] = opened(getattr(args, name), args.threads)
    manifest = models["native"].artifact.manifest
    facts = machine_facts(args.threads)
    output = args.output or RESULTS / f"beside-{manifest.name}-{manifest.precision}.json"
    about = {"model": manifest.name, "precision": manifest.precision, "kernels": models["native"].sessions.kernels_name}
    write_results(output, {"machine": facts, "settings": about | {"rounds": args.rounds, "context": _CONTEXT}} | found)
    print(markdown([about | found]))


def check(models: Mapping[str, Model]) -> None:
    """Raises UsageError."""
    manifests = [models[name].artifact.manifest for name in ("native", "ort")]
    found = [f"{m.name} {m.precision} for {'ORT' if m.kernels is None else m.kernels.name} kernels" for m in manifests]
    same = len({(m.name, m.precision, m.quantization.source) for m in manifests}) == 1
    if not same or manifests[0].kernels is None or manifests[1].kernels is not None:
        raise UsageError(
            f"NATIVE is {found[0]} and ORT is {found[1]}; give one model in one precision, exported with --kernels "
            "native and with --kernels ort."
        )


def measure(models: Mapping[str, Model], rounds: int) -> dict[str, Any]:
    """Milliseconds of passes by rows, heads included, and of a prompt: medians of alternating calls. A call is several
    passes, since the first of them finds the other's weights in the cache."""
    conversations = {name: Conversation(model.sessions) for name, model in models.items()}
    for conversation in conversations.values():
        conversation.prefill(list(range(300, 300 + _CONTEXT)))
    passes = []
    for rows in ROWS:
        notify_stderr(f"passes over {rows} row(s) ...")
        times = alternate({name: _passes(c, rows) for name, c in conversations.items()}, rounds)
        passes.append({"rows": rows} | _compared(times, _BLOCK))
    notify_stderr(f"prompts of {PREFILL} tokens ...")
    times = alternate({name: _prefill(c) for name, c in conversations.items()}, _PREFILL_ROUNDS)
    return {"passes": passes, "prefill": {"tokens": PREFILL} | _compared(times, 1)}


def _compared(times: Mapping[str, list[float]], calls: int) -> dict[str, float]:
    """Medians, and the 95 % interval of their ratio by bootstrap over rounds."""
    found = {f"{name}_ms": median_ms(seconds) / calls for name, seconds in times.items()}
    interval = resampled_interval([times["ort"]], [times["native"]])
    return found if interval is None else found | {"low": interval.low, "high": interval.high}


def _passes(conversation: Conversation, rows: int) -> Callable[[], object]:
    stack, ids = conversation.stack, np.arange(300, 300 + rows)

    def run() -> object:
        for _ in range(_BLOCK):
            stack.logits(stack.run(conversation.full_plan, stack.embed(ids), _CONTEXT))
        return None

    return run


def _prefill(conversation: Conversation) -> Callable[[], object]:
    def answer() -> object:
        conversation.truncate(0)
        return conversation.prefill(list(range(300, 300 + PREFILL)))

    return answer


def opened(artifact: Path, threads: int | None) -> dict[str, Any]:
    """Of several processes, the quickest opening, and the most that one added to anonymous memory."""
    arguments = [] if threads is None else [str(threads)]
    found = [run_child("benchmarks.kernels.opening", str(artifact), *arguments) for _ in range(_OPENINGS)]
    return {
        "seconds": min(each["seconds"] for each in found),
        "graphs_anonymous_bytes": max(each["graphs_anonymous_bytes"] for each in found),
        "anonymous_bytes": max(each["anonymous_bytes"] for each in found),
        "answer_anonymous_bytes": max(each["answer_anonymous_bytes"] for each in found),
        "kv_bytes": found[0]["kv_bytes"],
    }


if __name__ == "__main__":
    sys.exit(main())
