"""``make bench``: measures on this machine what README and docs/log.md show, and rewrites their tables.

    python -m benchmarks.suite [--steps bench,beside,quality,memory,experts,synthetic] [--prompts FILE] [--threads N]

A result is one JSON file under benchmarks/results, replaced when its step has ended well; the tables are made of
whatever lies there (tables.py). What moved since the results before is told at the end.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from selfspec.bench.prompts import load_prompts
from selfspec.check.artifacts import DEFAULT_FOLDER, artifact_name, ensure_artifact
from selfspec.cli.command import Parser, run_command
from selfspec.errors import SelfSpecError, UsageError, unknown_name
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.model import notify_stderr

from . import RESULTS
from .child import importable, run_child, run_group, terminable
from .results import write_results
from .tables import rewrite

ARTIFACTS = DEFAULT_FOLDER / "bench"
PICTURES = RESULTS.parents[1] / "docs" / "img"
SMOLLM2, GEMMA = "smollm2-135m", "gemma3-270m"
NEW_TOKENS = 48
NOTEWORTHY = 0.05


@dataclass(frozen=True, slots=True)
class Case:
    """A model in a precision, and the drafts that it is measured with; ``none`` is plain once more: the noise.
    ``kernels``: as for an export. ``repeats``: those that count; a disturbed machine runs more (bench/calm.py)."""

    model: str
    precision: str
    drafts: str
    repeats: int
    kernels: str = "auto"


CASES = (
    Case(SMOLLM2, "fp32", "none,prompt-lookup,auto", 3),
    Case(SMOLLM2, "int8", "none,prompt-lookup,auto", 4),
    Case(SMOLLM2, "int4", "none,prompt-lookup,auto", 4),
    Case(SMOLLM2, "int4", "none,prompt-lookup,auto", 4, kernels="ort"),
    Case(GEMMA, "fp32", "none,early-exit,auto", 2),
    Case(GEMMA, "int4", "none,early-exit,auto", 3),
)


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m benchmarks.suite", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    usual = [name for name in STEPS if name != "experts"]  # a first run of which carves a model, for some minutes
    parser.add_argument(
        "--steps", default=",".join(usual), help=f"of {', '.join(STEPS)} (default: all but experts, half an hour)"
    )
    parser.add_argument(
        "--prompts", type=Path, help="for bench: Spec-Bench's jsonl, or a text a line (default: our own)"
    )
    parser.add_argument("--threads", type=int, help="default: the physical cores")
    args = parser.parse_args(argv)
    return run_command(lambda: run(args), "python -m benchmarks.suite")


def run(args: argparse.Namespace) -> None:
    """The steps in turn, then the tables.

    Raises:
        UsageError: an unknown step; nothing was measured.
        SelfSpecError: a step failed; what was measured before it is kept.
    """
    if args.prompts is not None:
        load_prompts(args.prompts)  # not found out after minutes
    names = args.steps.split(",")
    for name in names:
        if name not in STEPS:
            raise UsageError(f"--steps: {unknown_name('step', name, tuple(STEPS))}")
    before = speed_ups()
    try:
        for name in names:
            started = time.perf_counter()
            STEPS[name](args)
            notify_stderr(f"{name}: {time.perf_counter() - started:.0f} s")
    finally:
        for path in rewrite():
            notify_stderr(f"{path}: rewritten")
    if "bench" in names:
        report_changes(before, speed_ups())


def bench(args: argparse.Namespace) -> None:
    """``selfspec profile`` and ``selfspec bench`` on every case, with pictures."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    for case in CASES:
        artifact = exported(case.precision, case.model, case.kernels)
        python(["-m", "selfspec", "profile", str(artifact), *_threads(args)], f"selfspec profile of {artifact.name}")
        command = ["-m", "selfspec", "bench", str(artifact), "-o", "json", "-p", "512", "-n", str(NEW_TOKENS)]
        command += ["-r", str(case.repeats), "--draft", case.drafts, "--plot", str(PICTURES / f"{artifact.name}.png")]
        command += [] if args.prompts is None else ["--prompts", str(args.prompts)]
        report = json.loads(python([*command, *_threads(args)], f"selfspec bench of {artifact.name}"))
        prompts = "built-in" if args.prompts is None else args.prompts.name
        report |= {"prompt_set": prompts, "new_tokens": NEW_TOKENS}
        write_results(RESULTS / f"bench-{artifact.name}.json", report)
    known = {f"bench-{artifact_name(case.model, case.precision, case.kernels)}" for case in CASES}
    for path in (path for path in RESULTS.glob("bench-*.json") if path.stem not in known):
        path.unlink()  # of a case that there is no more


def beside(args: argparse.Namespace) -> None:
    """Native kernels beside ONNX Runtime's, where there are any."""
    for precision in ("int8", "int4"):
        native = exported(precision)
        if open_artifact(native).manifest.kernels is None:
            notify_stderr(
                "native kernels are not installed here, so there is nothing to compare: pip install ./kernels"
            )
            return
        pair = [str(native), str(exported(precision, kernels="ort"))]
        python(["-m", "benchmarks.kernels.beside_ort", *pair, *_threads(args)], f"kernels.beside_ort in {precision}")


def quality(args: argparse.Namespace) -> None:
    folders = [str(exported(precision)) for precision in ("fp32", "int8", "int4")]
    folders.append(str(exported("int4", kernels="ort")))
    python(["-m", "benchmarks.quality", *folders, *_threads(args)], "quality")


def memory(args: argparse.Namespace) -> None:
    first, second = exported("fp32"), exported("int4")
    PICTURES.mkdir(parents=True, exist_ok=True)
    command = ["-m", "benchmarks.memory", str(first), "--second", str(second), "--plot", str(PICTURES / "memory.png")]
    python([*command, *_threads(args)], "memory")


def synthetic(args: argparse.Namespace) -> None:
    python(["-m", "benchmarks.synthetic", *_threads(args)], "synthetic")


def experts(args: argparse.Namespace) -> None:
    """The carved model, and a wide random one beside a dense one of its active size, in both kinds of kernels."""
    ARTIFACTS.mkdir(parents=True, exist_ok=True)
    with terminable(), tempfile.TemporaryDirectory(prefix="selfspec-experts-") as temporary:
        carved = ARTIFACTS / "carved"  # is kept: it takes minutes, and the same arguments give the same bytes
        sparse, dense = (Path(temporary) / name for name in ("wide-moe", "wide-dense"))
        if not carved.exists():
            python(["-m", "benchmarks.carve", str(carved)], "carve")
        for folder in (sparse, dense):
            arguments = ["-m", "benchmarks.synthetic.checkpoints", folder.name, str(folder)]
            python(arguments, f"checkpoint of {folder.name}")
        module = ["-m", "benchmarks.experts"]
        python([*module, str(made(carved, "int4")), *_threads(args)], "experts on the carved model")
        python([*module, str(made(carved, "fp32")), "--prompts", "0", *_threads(args)], "experts on it in fp32")
        for kernels in ("auto", "ort"):
            pair = [str(made(sparse, "int4", kernels)), "--dense", str(made(dense, "int4", kernels))]
            python([*module, *pair, "--prompts", "0", "--temperature", "1", *_threads(args)], f"experts, {kernels}")


def made(checkpoint: Path, precision: str, kernels: str = "auto") -> Path:
    """An artifact beside its checkpoint."""
    output = checkpoint.with_name(artifact_name(checkpoint.name, precision, kernels))
    shutil.rmtree(output, ignore_errors=True)  # it may be an older exporter's
    run_child("benchmarks.synthetic.steps", "export", str(checkpoint), str(output), precision, kernels)
    return output


@cache
def exported(precision: str, model: str = SMOLLM2, kernels: str = "auto") -> Path:
    """An artifact made by this run: what lies there may be an older exporter's."""
    shutil.rmtree(ARTIFACTS / artifact_name(model, precision, kernels), ignore_errors=True)
    return ensure_artifact(ARTIFACTS, precision, notify_stderr, model, kernels)


STEPS: dict[str, Callable[[argparse.Namespace], None]] = {
    "bench": bench, "beside": beside, "quality": quality, "memory": memory, "experts": experts,
    "synthetic": synthetic,
}  # fmt: skip


def _threads(args: argparse.Namespace) -> list[str]:
    return [] if args.threads is None else ["--threads", str(args.threads)]


def python(arguments: Sequence[str], what: str) -> str:
    """What a Python process says on stdout; its own words on stderr go through. It ends with this one.

    Raises:
        SelfSpecError: it failed.
    """
    notify_stderr(f"{what} ...")
    done = run_group([sys.executable, *arguments], stdout=subprocess.PIPE, env=importable())
    if done.returncode:
        raise SelfSpecError(f"{what} failed with exit code {done.returncode}; its own message stands above.")
    return done.stdout


def speed_ups() -> dict[tuple[str, str, str], float]:
    """(results file, category, draft) → speed-up, of all that lies in the results folder."""
    found: dict[tuple[str, str, str], float] = {}
    for path in sorted(RESULTS.glob("bench-*.json")):
        data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        found |= {
            (path.stem.removeprefix("bench-"), row["category"], row["draft"]): row["speed_up"]
            for row in data["rows"]
            if row["speed_up"] is not None
        }
    return found


def report_changes(before: dict[tuple[str, str, str], float], after: dict[tuple[str, str, str], float]) -> None:
    """How far speed-ups are from those of the results before."""
    changes = {key: after[key] / before[key] - 1 for key in after if key in before}
    if not changes:
        return
    key, worst = max(changes.items(), key=lambda item: abs(item[1]))
    above = sum(abs(change) > NOTEWORTHY for change in changes.values())
    notify_stderr(
        f"{len(changes)} speed-ups against the results before: {above} moved by more than {NOTEWORTHY:.0%}; "
        f"most {' '.join(key)}: {before[key]:.2f} to {after[key]:.2f} ({worst:+.1%})"
    )


if __name__ == "__main__":
    sys.exit(main())
