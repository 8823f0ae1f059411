"""The steps of benchmarks.synthetic, each for a process of its own. The last line of stdout is a JSON object.

python -m benchmarks.synthetic.steps export CHECKPOINT ARTIFACT PRECISION [KERNELS]
python -m benchmarks.synthetic.steps open ARTIFACT THREADS        opens it and loads every session
python -m benchmarks.synthetic.steps run ARTIFACT THREADS         the same again, then what passes cost
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from selfspec.bench.runs import random_ids, run_prefill
from selfspec.cli.command import run_command
from selfspec.errors import SelfSpecError
from selfspec.models.manifest import WEIGHTS_NAME
from selfspec.runtime.drafters import early_exit, fewer_experts
from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.drafters.registry import candidates
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.engine import decode
from selfspec.runtime.measure import ROW_COUNTS, time_passes
from selfspec.runtime.model import Model, load, notify_stderr
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stats import memory_bytes, peak_rss_bytes

from .table import PROMPT_TOKENS

NEW_TOKENS = 16
_REPEATS = 3  # of the prompt, of which the median counts; one more before them does not
_TIMING_SECONDS = 15.0


def export(checkpoint: str, output: str, precision: str, kernels: str = "auto") -> dict[str, Any]:
    """``selfspec-export``, its seconds and its process's peak."""
    from selfspec.cli import export as export_cli

    started = time.perf_counter()
    if export_cli.main([checkpoint, output, "--precision", precision, "--kernels", kernels]):
        raise SelfSpecError(f"{checkpoint} was not exported.")
    return {"export_seconds": time.perf_counter() - started, "export_peak_rss_bytes": peak_rss_bytes()}


def open_once(artifact: str, threads: str) -> dict[str, Any]:
    """Seconds from the path to the last session."""
    return _opened(artifact, threads)[1]


def run(artifact: str, threads: str) -> dict[str, Any]:
    """A prompt, plain steps behind it and what the process weighs then; and after that the costs of passes."""
    model, opened = _opened(artifact, threads)
    conversation = model.conversation()
    ids = random_ids(model, PROMPT_TOKENS)
    prompts = [run_prefill(conversation, ids) for _ in range(1 + _REPEATS)][1:]
    conversation.truncate(0)
    for _ in decode(conversation, conversation.prefill(ids), NoDrafter(), Sampling(), NEW_TOKENS, frozenset()).rounds:
        pass
    memory = {"pss_bytes": memory_bytes("Pss"), "rss_anon_bytes": memory_bytes("RssAnon")}
    conversation.truncate(len(ids))
    notify_stderr("costs of passes ...")
    tokens = np.asarray(ids[: max(ROW_COUNTS)], dtype=np.int64)
    manifest = model.artifact.manifest
    timed = time_passes(conversation, len(ids), tokens, candidates(manifest), _TIMING_SECONDS)
    steps = {parse(name): seconds / timed.steps[1] for name, (seconds, _) in timed.paths.items()}
    return {
        "layers": manifest.model.num_layers,
        "weights_bytes": manifest.files[WEIGHTS_NAME].size,
        "prefill_tokens_per_second": len(ids) / statistics.median(prompt.seconds for prompt in prompts),
        "step_seconds": timed.steps[1],
        "verify_costs": {rows: seconds / timed.steps[1] for rows, seconds in timed.steps.items()},
        "draft_costs": {s.options.layer: cost for s, cost in steps.items() if s.kind is early_exit.KIND},
        "fewer_costs": {s.options.experts: cost for s, cost in steps.items() if s.kind is fewer_experts.KIND},
    } | opened | memory  # fmt: skip


def _opened(artifact: str, threads: str) -> tuple[Model, dict[str, Any]]:
    started = time.perf_counter()
    model = load(artifact, threads=int(threads))
    return model, {"open_seconds": time.perf_counter() - started}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {"export": export, "open": open_once, "run": run}


def main() -> None:
    print(json.dumps(STEPS[sys.argv[1]](*sys.argv[2:])))


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.synthetic.steps"))
