"""Where a pass spends its time: ONNX Runtime's own profile by operator, and what no operator accounts for.

    python -m benchmarks.kernels.operators ARTIFACT [--rows 1] [--position 128] [--steps 64] [--threads N]

Profiling itself costs some time, so the pass is timed without it first. "between operators" is what remains of the
pass when the operators' times are taken off: Python, binding, hand-overs between graphs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from selfspec.bench.markdown import markdown_table
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.sessions import Sessions


class ProfiledSessions(Sessions):
    """Sessions that write ONNX Runtime's profile into ``folder``."""

    folder: Path

    def options(self) -> ort.SessionOptions:
        options = super().options()
        options.enable_profiling = True
        options.profile_file_prefix = str(self.folder / "profile")
        return options

    def end(self) -> list[Any]:
        """Every event of every session."""
        files = [session.end_profiling() for session in self._sessions.values()]
        return [event for file in files for event in json.loads(Path(file).read_text(encoding="utf-8"))]


def main() -> int:
    parser = Parser(
        prog="python -m benchmarks.kernels.operators",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--rows", type=int, default=1, help="of the pass")
    parser.add_argument("--position", type=int, default=128, help="tokens before it")
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    return run_command(lambda: run(args), "python -m benchmarks.kernels.operators")


def run(args: argparse.Namespace) -> None:
    """Raises UsageError where a number cannot be."""
    for name, least in (("rows", 1), ("position", 0), ("steps", 1)):
        if getattr(args, name) < least:
            raise UsageError(f"--{name} {getattr(args, name)}: it must be {least} or more.")
    artifact = open_artifact(args.artifact)
    plain = statistics.median(passes(Sessions(artifact, args.threads), args))
    with tempfile.TemporaryDirectory() as folder:
        sessions = ProfiledSessions(artifact, args.threads)
        sessions.folder = Path(folder)
        profiled = passes(sessions, args)
        spent, calls = by_operator(sessions.end())
    whole = 1e6 * statistics.fmean(profiled)
    name, precision = artifact.manifest.name, artifact.manifest.precision
    print(f"{name} {precision}, {sessions.threads} thread(s), {args.rows} row(s) behind {args.position} tokens:")
    print(f"{1000 * plain:.3f} ms a pass (median), {whole / 1000:.3f} ms under the profiler (mean)\n")
    times = [(name, f"{calls[name] / args.steps:.0f}", micros / args.steps) for name, micros in spent.most_common()]
    times.append(("between operators", "", whole - spent.total() / args.steps))
    rows = ([operator, count, f"{each:.0f}", f"{each / whole:.1%}"] for operator, count, each in times)
    print(markdown_table(["operator", "calls", "µs", "share"], rows))


def passes(sessions: Sessions, args: argparse.Namespace) -> list[float]:
    """Seconds of every pass, head included. The tokens before it are never run: what their rows hold costs no time."""
    conversation = Conversation(sessions)
    stack, plan = conversation.stack, conversation.full_plan
    rows = np.arange(300, 300 + args.rows)
    times = []
    for _ in range(args.steps):
        started = time.perf_counter()
        stack.logits(stack.run(plan, stack.embed(rows), args.position))
        times.append(time.perf_counter() - started)
    return times


def by_operator(events: list[Any]) -> tuple[Counter[str], Counter[str]]:
    """(microseconds, calls) by operator type."""
    spent: Counter[str] = Counter()
    calls: Counter[str] = Counter()
    for event in events:
        if event.get("cat") == "Node" and event["name"].endswith("kernel_time"):
            spent[event["args"]["op_name"]] += event["dur"]
            calls[event["args"]["op_name"]] += 1
    return spent, calls


if __name__ == "__main__":
    sys.exit(main())
