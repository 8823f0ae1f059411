"""What sizes that people ship cost here, on random weights: export, opening, passes, memory.

python -m benchmarks.synthetic [--models llama-3.2-1b,qwen3-1.7b,olmoe-1b-7b] [--precision int4] [--threads N] [-o FILE]

Checkpoints of the published shapes are written into a temporary folder (TMPDIR), exported and run, each step in a
process of its own, and removed. What a step costs does not depend on the values of the weights; what a draft would
be worth does, so nothing is said about it. Models are opened twice: the first time their bytes are hashed. Both times
the file is still in the system's page cache, as far as memory goes. Table on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from selfspec.cli.command import Parser, run_command
from selfspec.errors import SelfSpecError, UsageError, unknown_name
from selfspec.runtime.limits import cpus
from selfspec.runtime.model import notify_stderr

from .. import RESULTS
from ..child import run_child, terminable
from ..results import machine_facts, write_results
from .checkpoints import BYTES_PER_VALUE, CONFIGS, STD, num_parameters, write_checkpoint
from .steps import NEW_TOKENS
from .table import PROMPT_TOKENS, markdown

DEFAULT_MODELS = ("llama-3.2-1b", "qwen3-1.7b")
_SHARDS = 2
_SCRIPT = "benchmarks.synthetic.steps"
# An artifact's size in units of its bfloat16 checkpoint's, rounded up; and bytes for its tables and tokenizer.
_ARTIFACT_SIZES = {"fp32": 2.0, "int8": 0.7, "int4": 0.5}
_SMALL_FILES = 200 * 10**6


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    return run_command(lambda: _main(args), "python -m benchmarks.synthetic")


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.synthetic", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--models", default=",".join(DEFAULT_MODELS), help=f"of {', '.join(CONFIGS)}")
    parser.add_argument("--precision", default="int4", help="fp32, int8 or int4 (default: int4)")
    parser.add_argument("--threads", type=int, default=cpus().threads, help="default: the physical cores")
    parser.add_argument("-o", dest="output", type=Path, default=RESULTS / "synthetic.json", help="JSON file to write")
    return parser


def _main(args: argparse.Namespace) -> None:
    names = [name.strip() for name in args.models.split(",")]
    for name in names:
        if name not in CONFIGS:
            raise UsageError(f"--models: {unknown_name('model', name, CONFIGS)}")
    if args.precision not in _ARTIFACT_SIZES:
        raise UsageError(f"--precision: {unknown_name('precision', args.precision, _ARTIFACT_SIZES)}")
    if args.threads < 1:
        raise UsageError(f"--threads {args.threads}: it must be 1 or more.")
    started = time.perf_counter()
    rows = [measure_model(name, args.precision, args.threads) for name in names]
    taken = time.perf_counter() - started
    data = {"machine": machine_facts(args.threads), "precision": args.precision, "seconds": taken, "rows": rows}
    print(markdown(data), flush=True)
    write_results(args.output, data)


def measure_model(name: str, precision: str, threads: int) -> dict[str, Any]:
    """A row: everything about one model, whose files are gone afterwards, however this ends.

    Raises:
        SelfSpecError: no room, or a step failed.
    """
    config = CONFIGS[name]
    with terminable(), tempfile.TemporaryDirectory(prefix="selfspec-synthetic-") as temporary:
        folder = Path(temporary)
        check_room(folder, BYTES_PER_VALUE * num_parameters(config)[0], precision)
        return {"model": name} | _measure(folder, name, precision, threads)


def _measure(folder: Path, name: str, precision: str, threads: int) -> dict[str, Any]:
    config = CONFIGS[name]
    checkpoint, artifact, environment = folder / name, folder / "artifact", {"SELFSPEC_CACHE": str(folder / "cache")}
    parameters, active = num_parameters(config)
    notify_stderr(f"{name}: writing {BYTES_PER_VALUE * parameters / 1e9:.1f} GB of random weights ...")
    # Experts: with embeddings as small as all else, every row would choose the same ones, and V(m) be a dense model's.
    write_checkpoint(checkpoint, config, shards=_SHARDS, embedding_std=1.0 if "num_experts" in config else STD)
    facts = {"parameters": parameters, "active_parameters": active, "checkpoint_bytes": _size(checkpoint)}
    notify_stderr(f"{name}: export to {precision} ...")
    exported = run_child(_SCRIPT, "export", str(checkpoint), str(artifact), precision, environment=environment)
    shutil.rmtree(checkpoint)  # its pages need not compete with the artifact's
    notify_stderr(f"{name}: opening, and running {PROMPT_TOKENS} + {NEW_TOKENS} tokens ...")
    first = run_child(_SCRIPT, "open", str(artifact), str(threads), environment=environment)
    again = run_child(_SCRIPT, "run", str(artifact), str(threads), environment=environment)
    seconds = {"first_open_seconds": first["open_seconds"], "open_seconds": again["open_seconds"]}
    return facts | exported | {"artifact_bytes": _size(artifact)} | again | seconds


def check_room(folder: Path, checkpoint_bytes: int, precision: str) -> None:
    """Raises: SelfSpecError where ``folder`` has no room for the checkpoint and the artifact beside it."""
    needed = int(checkpoint_bytes * (1 + _ARTIFACT_SIZES[precision])) + _SMALL_FILES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise SelfSpecError(
            f"{folder.parent} has {free / 1e9:.1f} GB free and {needed / 1e9:.1f} GB are needed; point TMPDIR to a "
            "folder with more room."
        )


def _size(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
