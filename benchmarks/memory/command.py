"""What drafting weighs: plain decoding, each drafter, and a second model as draft, each in a process of its own.

python -m benchmarks.memory ARTIFACT [--second ARTIFACT] [--max-new-tokens 256] [-o FILE] [--plot FILE]

Every arm generates the same number of tokens behind the same prompt, greedily, and reads its memory then. PSS counts a
page by the share of those who map it, so the arms run one after the other; this script itself maps the libraries they
use, which takes a few MB off the PSS of every arm alike. RssAnon, memory of the process's own, depends on nobody. The
profile is measured before, in another process. Early-exit drafts in every round, through the exit that the profile
names. ``--second`` is by default the smallest artifact beside ARTIFACT of the same model in another precision. Table on
stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from selfspec.bench.plot import check_plot
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.limits import cpus
from selfspec.runtime.model import notify_stderr

from .. import RESULTS
from ..child import run_child
from ..results import machine_facts, write_results
from .arm import SECOND
from .plot import write_plot
from .second_model import check_second, default_second
from .table import markdown

_SCRIPT = "benchmarks.memory.arm"


def main(argv: Sequence[str] | None = None) -> int:
    args = build_parser().parse_args(argv)
    return run_command(lambda: _main(args), "python -m benchmarks.memory")


def build_parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.memory", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument("--second", type=Path, metavar="ARTIFACT", help="drafts, as a second model would")
    parser.add_argument("--max-new-tokens", type=int, default=256, metavar="N", help="exactly so many (default: 256)")
    parser.add_argument("--threads", type=int, default=cpus().threads, help="default: the physical cores")
    parser.add_argument("-o", dest="output", type=Path, default=RESULTS / "memory.json", help="JSON file to write")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="picture to draw: .png, .svg or .pdf")
    return parser


def _main(args: argparse.Namespace) -> None:
    for flag, value, least in (("--max-new-tokens", args.max_new_tokens, 3), ("--threads", args.threads, 1)):
        if value < least:
            raise UsageError(f"{flag} {value}: it must be {least} or more.")
    if args.plot is not None:
        check_plot(args.plot)
    data = measure(args.artifact, args.second, args.max_new_tokens, args.threads)
    print(markdown(data), flush=True)
    write_results(args.output, data)
    if args.plot is not None:
        write_plot(data, args.plot)


def measure(artifact: Path, second: Path | None, max_new_tokens: int, threads: int) -> dict[str, Any]:
    """Facts, and a row an arm; ``pss_ratio`` and ``rss_anon_ratio`` are to plain, None where the system does not say.

    Raises:
        SelfSpecError: an artifact does not open, the two do not go together, or an arm failed.
    """
    target = open_artifact(artifact)
    second = second or default_second(target)
    other = open_artifact(second)
    check_second(target, other)
    exit_layer = profiled_exit(artifact, threads)
    arms = {"plain": "none", "prompt-lookup": "prompt-lookup"}
    if exit_layer is not None:
        arms[f"early-exit {exit_layer}"] = f"early-exit:{exit_layer}"
    arms |= {"auto": "auto", f"second model ({other.manifest.name} {other.manifest.precision})": SECOND}
    rows = measure_arms(artifact, arms, max_new_tokens, threads, second)
    facts = {"name": target.manifest.name, "precision": target.manifest.precision, "digest": target.digest}
    return {"machine": machine_facts(threads), "artifact": facts, "rows": rows}


def profiled_exit(artifact: Path, threads: int) -> int | None:
    """Measures the profile in a process of its own, so that no arm has to; what early-exit drafts through."""
    notify_stderr("profile ...")
    found: int | None = run_child(_SCRIPT, "profile", str(artifact), str(threads))["exit_layer"]
    return found


def measure_arms(
    artifact: Path, arms: Mapping[str, str], max_new_tokens: int, threads: int, second: Path | None = None
) -> list[dict[str, Any]]:
    """A row an arm; the first one is what the others are compared with.

    Args:
        arms: what the table calls them → what arm.py does.
        second: artifact of the arm ``SECOND``.
    """
    rows: list[dict[str, Any]] = []
    for name, arm in arms.items():
        notify_stderr(f"{name} ...")
        further = [str(second)] if arm == SECOND else []
        found = run_child(_SCRIPT, arm, str(artifact), str(threads), str(max_new_tokens), *further)
        rows.append({"arm": name} | found | _ratios(found, rows[0] if rows else found))
    return rows


def _ratios(row: Mapping[str, Any], plain: Mapping[str, Any]) -> dict[str, float | None]:
    return {
        f"{name}_ratio": row[f"{name}_bytes"] / plain[f"{name}_bytes"] if plain[f"{name}_bytes"] else None
        for name in ("pss", "rss_anon")
    }
