"""Is a commit slower than an older one? Both decode the same prompts, each in a process of its own, in turns.

    python -m benchmarks.commits OLD_CHECKOUT NEW_CHECKOUT ARTIFACT [--old-artifact ARTIFACT] [--drafts none,auto]

The processes stay loaded; only one of them works at a time. A pair is one prompt, answered by both right after each
other, and every other pair begins with the new commit. A checkout is a folder with src/selfspec. Both run with the
Python, and so with the native kernels, that this runs with; ``--old-python`` names another one for the old commit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from selfspec.bench.bootstrap import Interval, ratio_interval
from selfspec.bench.markdown import markdown_table
from selfspec.bench.prompts import TEXT, Prompt, built_in_prompts, chosen, load_prompts, prompt_ids, spread
from selfspec.cli.command import Parser, run_command
from selfspec.errors import SelfSpecError, UsageError
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.limits import cpus
from selfspec.runtime.model import notify_stderr
from selfspec.runtime.text import TextCodec

from .peers.environment import WORKERS, PeerError, environment
from .peers.process import PeerProcess
from .peers.results import paces
from .peers.turns import PeerArm, Schedule, take_turns
from .results import machine_facts, write_results

_PROG = "python -m benchmarks.commits"
_PAUSE = 0.1  # between answers: idle threads of the other process spin for some milliseconds
_WARM_UP = "Write a short letter to a friend who has moved to the sea."


@dataclass(frozen=True, slots=True)
class Comparison:
    """One draft. ``ratio``: the speed of the new commit ÷ that of the old one, below 1 where the new one is slower,
    with its 95 % ``interval`` over prompts and their repeats. ``same_text``: prompts to which both gave the same ids.
    """

    draft: str
    prompts: int
    pairs: int
    old_tokens_per_second: float
    new_tokens_per_second: float
    ratio: float
    interval: Interval | None
    same_text: int


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return run_command(lambda: _run(args), _PROG)


def _parser() -> Parser:
    parser = Parser(prog=_PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, metavar="OLD_CHECKOUT")
    parser.add_argument("new", type=Path, metavar="NEW_CHECKOUT")
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT", help="that the new commit reads, and this one")
    parser.add_argument("--old-artifact", type=Path, metavar="ARTIFACT", help="for the old commit (ARTIFACT)")
    parser.add_argument("--old-python", type=Path, default=Path(sys.executable), metavar="FILE")
    parser.add_argument("--drafts", default="none,auto", metavar="NAME,NAME,...", help="default: none,auto")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="Spec-Bench's jsonl, or a text a line")
    parser.add_argument("--max-prompts", type=int, default=12, metavar="N", help="spread over categories (12)")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="pairs of each prompt (3)")
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="default: 48")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="of each process (the physical cores)")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="the same as JSON")
    return parser


def _run(args: argparse.Namespace) -> None:
    for option, least in (("max_prompts", 1), ("repeats", 1), ("max_new_tokens", 2), ("threads", 1)):
        value = getattr(args, option)
        if value is not None and value < least:
            raise UsageError(f"--{option.replace('_', '-')} {value}: it must be {least} or more.")
    threads = args.threads or cpus().threads
    plan = _plan(args)
    with tempfile.TemporaryDirectory(prefix="selfspec-commits-") as logs:
        sides = [
            _process(args.old, args.old_artifact or args.artifact, args.old_python, threads, Path(logs) / "old"),
            _process(args.new, args.artifact, Path(sys.executable), threads, Path(logs) / "new"),
        ]
        try:
            for process, checkout in zip(sides, (args.old, args.new), strict=True):
                _start(process, checkout)
            found = [measure(sides[0], sides[1], draft, plan) for draft in args.drafts.split(",")]
        finally:
            for process in sides:
                process.close()
    print(table(found))
    if args.output is not None:
        write_results(args.output, {"machine": machine_facts(threads), "rows": [asdict(row) for row in found]})


def _plan(args: argparse.Namespace) -> Schedule:
    prompts = built_in_prompts() if args.prompts is None else chosen(load_prompts(args.prompts))
    codec = TextCodec(open_artifact(args.artifact))
    *ids, warm_up = [prompt_ids(codec, p) for p in (*spread(prompts, args.max_prompts), Prompt(0, TEXT, _WARM_UP))]
    return Schedule(ids, [], args.max_new_tokens, args.repeats, _PAUSE, warm_up)


def _process(checkout: Path, artifact: Path, python: Path, threads: int, folder: Path) -> PeerProcess:
    """Each keeps its profile in a folder of its own: another commit may measure it otherwise."""
    spec = {"folder": str(artifact.resolve()), "threads": threads}
    command = [str(python), str(WORKERS / "checkout.py"), "serve", json.dumps(spec)]
    folders = [str(checkout.resolve() / "src"), os.environ.get("PYTHONPATH", "")]
    own = {"PYTHONPATH": os.pathsep.join(filter(None, folders)), "SELFSPEC_CACHE": str(folder / "cache")}
    return PeerProcess(command, environment(threads) | own, folder / "log.txt")


def _start(process: PeerProcess, checkout: Path) -> None:
    """
    Raises:
        SelfSpecError: it cannot be loaded, or what it imports is not ``checkout``'s selfspec.
    """
    try:
        process.start()
    except PeerError as failure:
        raise SelfSpecError(f"{checkout}: {failure}") from failure
    wanted = (checkout / "src" / "selfspec").resolve()
    if process.ready is not None and Path(process.ready.note) != wanted:
        raise SelfSpecError(f"{checkout} is no checkout: the process imports {process.ready.note}, not {wanted}.")


def measure(old: PeerProcess, new: PeerProcess, draft: str, plan: Schedule) -> Comparison:
    """
    Raises:
        SelfSpecError: one of them failed, or no answer has two tokens.
    """
    sides = [PeerArm("old", draft, old), PeerArm("new", draft, new)]
    take_turns(sides, plan, notify_stderr)
    for side in sides:
        if side.reason:
            raise SelfSpecError(f"the {side.peer} commit, {draft}: {side.reason}")
    return compare(*sides)


def compare(old: PeerArm, new: PeerArm) -> Comparison:
    """What the answers of both say. A prompt counts where both decoded it, with as many repeats on each side."""
    before, after = paces(old), paces(new)
    both = [prompt for prompt in before if prompt in after]
    if not both:
        raise SelfSpecError(f"{old.arm}: no answer has two tokens or more, so there is no speed; give other prompts.")
    slow, fast = ([list(side[prompt].repeats) for prompt in both] for side in (before, after))
    seconds = [sum(map(statistics.median, side)) for side in (slow, fast)]
    return Comparison(
        old.arm,
        prompts=len(both),
        pairs=sum(map(len, slow)),
        old_tokens_per_second=len(both) / seconds[0],
        new_tokens_per_second=len(both) / seconds[1],
        ratio=seconds[0] / seconds[1],
        interval=ratio_interval(slow, fast),
        same_text=sum(before[prompt].ids == after[prompt].ids for prompt in both),
    )


def table(found: Sequence[Comparison]) -> str:
    head = ["draft", "prompts", "pairs", "old tok/s", "new tok/s", "new ÷ old [95 %]", "same text"]
    return markdown_table(head, [
        [
            row.draft, str(row.prompts), str(row.pairs),
            f"{row.old_tokens_per_second:.1f}", f"{row.new_tokens_per_second:.1f}",
            f"{row.ratio:.3f}" + (f" [{row.interval.low:.3f}, {row.interval.high:.3f}]" if row.interval else ""),
            f"{row.same_text} of {row.prompts}",
        ]
        for row in found
    ])  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
