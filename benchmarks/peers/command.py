"""selfspec beside the tools one would use instead: same model, prompts, token counts and threads, greedy.

    python -m benchmarks.peers [--model gemma3-270m] [--precision fp32,int8,int4] [--peers NAME,NAME] [-o FILE]

Each peer runs in a process and a virtual environment of its own, made here the first time (which takes long, and
gigabytes, in the cache folder). All peers of a precision are loaded together and take turns. Tables go to stdout,
everything to a JSON file, after every precision; a peer that cannot run is listed with its reason.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from selfspec.bench.prompts import TEXT, Prompt, built_in_prompts, chosen, load_prompts, prompt_ids, spread
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError, unknown_name
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.cache import cache_folder
from selfspec.runtime.limits import cpus
from selfspec.runtime.model import notify_stderr
from selfspec.runtime.text import TextCodec

from .. import RESULTS
from ..results import machine_facts, write_results
from .environment import WORKERS, PeerError, environment, make_environment, prepare, without_folders
from .model import Sources, make_sources
from .process import PeerProcess
from .results import OURS, rows
from .roster import EARLY_EXIT, MODELS, NOT_TRIED, PEERS, PLAIN, PROMPT_LOOKUP, SMOLLM2, Peer
from .table import PeerRow, table
from .turns import PeerArm, Schedule, take_turns

PRECISIONS = ("fp32", "int8", "int4")

_PROG = "python -m benchmarks.peers"
_PROMPTS = 12
_WARM_UP = "Write a short letter to a friend who has moved to the sea."
_PAUSE = 0.1  # GNU's OpenMP, TBB and ONNX Runtime let idle threads spin for some milliseconds


def main(argv: Sequence[str] | None = None) -> int:
    args = _parser().parse_args(argv)
    return run_command(lambda: _run(args), _PROG)


def _parser() -> Parser:
    parser = Parser(prog=_PROG, description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=SMOLLM2, metavar="MODEL", help=f"of {', '.join(MODELS)} ({SMOLLM2})")
    parser.add_argument("--prompts", type=Path, metavar="FILE", help="Spec-Bench's jsonl, or a text a line")
    parser.add_argument("--max-prompts", type=int, metavar="N", help=f"spread over categories ({_PROMPTS})")
    parser.add_argument("--max-new-tokens", type=int, default=48, metavar="N", help="default: 48")
    parser.add_argument("--repeats", type=int, default=3, metavar="N", help="default: 3")
    parser.add_argument("-t", "--threads", type=int, metavar="N", help="of every process (the physical cores)")
    parser.add_argument("--precision", metavar="P,P,...", help="default: all that the model has peers in")
    parser.add_argument("--peers", metavar="NAME,NAME,...", help="beside selfspec (all)")
    where = "benchmarks/results/peers-MODEL.json, but for a part"
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help=where)
    return parser


def _run(args: argparse.Namespace) -> None:
    for option, least in (("max_prompts", 1), ("max_new_tokens", 2), ("repeats", 1), ("threads", 1)):
        if getattr(args, option) is not None and getattr(args, option) < least:
            name = "--" + option.replace("_", "-")
            raise UsageError(f"{name} {getattr(args, option)}: it must be {least} or more.")
    output = result_file(args)
    (model,) = chosen_names(args.model, MODELS, "model")
    known = [p for p in PRECISIONS if any(peer.precision == p and model in peer.models for peer in PEERS)]
    precisions = chosen_names(args.precision or ",".join(known), known, "precision")
    peers = chosen_peers(args.peers, precisions)
    prompts = built_in_prompts() if args.prompts is None else chosen(load_prompts(args.prompts))
    prompts = spread(prompts, args.max_prompts or _PROMPTS)
    threads = args.threads or cpus().threads
    cache = cache_folder().resolve()
    folder = cache / "peers"
    facts = machine_facts(threads)
    sources = make_sources(folder, model, precisions, notify_stderr)
    codec = TextCodec(open_artifact(sources.artifacts[precisions[0]]))
    *ids, warm_up = [prompt_ids(codec, p) for p in (*prompts, Prompt(0, TEXT, _WARM_UP))]
    plan = Schedule(ids, sorted(codec.eos_token_ids), args.max_new_tokens, args.repeats, _PAUSE, warm_up)
    settings = {
        "model": model, "source": sources.gguf.name,
        "prompts": len(ids), "prompt_ids": [p.question_id for p in prompts],
        "prompt_file": "built-in" if args.prompts is None else args.prompts.name,
        "max_new_tokens": plan.max_new_tokens, "repeats": plan.repeats, "threads": threads, "pause": plan.pause,
    }  # fmt: skip
    commands = {peer: _prepared(peer, folder, model, sources, threads) for peer in peers}
    tables: dict[str, list[PeerRow]] = {}
    for precision in precisions:
        mine = {peer: command for peer, command in commands.items() if peer.precision == precision}
        notify_stderr(f"{precision}: {', '.join(peer.name for peer in mine)}")
        found = measure(mine, plan, environment(threads), folder / "logs")
        tables[precision] = [replace(row, reason=without_folders(row.reason, cache, Path.home())) for row in found]
        print(f"## {precision}\n\n{table(tables[precision])}\n", flush=True)
        write_results(output or RESULTS / f"peers-{model}.json", {
            "machine": facts,
            "settings": settings,
            "precisions": {name: [asdict(row) for row in done] for name, done in tables.items()},
        })  # fmt: skip


def result_file(args: argparse.Namespace) -> Path | None:
    """Where to write, if that was said.

    Raises:
        UsageError: it was not, and a part would replace the results of the whole.
    """
    for option in ("peers", "precision", "max_prompts"):
        if args.output is None and getattr(args, option) is not None:
            name = "--" + option.replace("_", "-")
            raise UsageError(f"{name} measures a part, which must not replace the whole: name another file with -o.")
    output: Path | None = args.output
    return output


def chosen_names(text: str, known: Sequence[str], kind: str) -> tuple[str, ...]:
    """The names in a list with commas, each once.

    Raises:
        UsageError: one is not known.
    """
    names = tuple(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in known:
            raise UsageError(unknown_name(kind, name, known))
    return names


def chosen_peers(names: str | None, precisions: Sequence[str]) -> list[Peer]:
    """selfspec in each precision, and the peers of those names; all without ``names``."""
    known = list(dict.fromkeys(peer.name for peer in PEERS))
    wanted = known if names is None else chosen_names(names, known, "peer")
    arms = (PLAIN, PROMPT_LOOKUP, EARLY_EXIT, "auto")
    ours = [Peer(OURS, precision, "ours.py", "", (), arms, models=MODELS) for precision in precisions]
    return ours + [peer for peer in PEERS if peer.precision in precisions and peer.name in wanted]


def _prepared(peer: Peer, folder: Path, model: str, sources: Sources, threads: int) -> list[str] | str:
    """The command that serves ``peer``; or, a text, the reason why there is none."""
    if model not in peer.models:
        return NOT_TRIED
    slug = re.sub(r"[^\w.-]+", "-", f"{peer.name}-{peer.precision}-{model}").lower()
    own = sources.artifacts[peer.precision] if peer.name == OURS else folder / "models" / slug
    spec = {
        "precision": peer.precision, "threads": threads, "hf": str(sources.hf), "gguf": str(sources.gguf),
        "folder": str(own), "exit_layer": sources.exit_layer,
    }  # fmt: skip
    python = Path(sys.executable)
    try:
        if peer.name != OURS:
            notify_stderr(f"{peer.name} ({peer.precision}): environment and model")
            python = make_environment(folder / "environments", peer)
            prepare(peer, python, spec)
    except PeerError as failure:
        return str(failure)
    return [str(python), str(WORKERS / peer.worker), "serve", json.dumps(spec)]


def measure(commands: dict[Peer, list[str] | str], plan: Schedule, env: dict[str, str], logs: Path) -> list[PeerRow]:
    """A row for every arm of every peer of one precision. ``commands``: what serves each, or why nothing does."""
    processes: dict[str, PeerProcess] = {}
    contenders: list[PeerArm] = []
    for peer, command in commands.items():
        reason = command if isinstance(command, str) else ""
        own = env | {name: os.environ[name] for name in ("PYTHONPATH",) if peer.name == OURS and name in os.environ}
        process = PeerProcess([] if isinstance(command, str) else command, own, logs / f"{peer.name}.txt")
        processes[peer.name] = process
        contenders += [PeerArm(peer.name, arm, process, reason=reason) for arm in peer.arms]
    try:
        for contender in contenders:
            _load(contender, processes[contender.peer])
        take_turns(contenders, plan, notify_stderr)
        return rows(contenders, {name: p.ready for name, p in processes.items() if p.ready is not None})
    finally:
        for process in processes.values():
            process.close()


def _load(contender: PeerArm, process: PeerProcess) -> None:
    if not contender.reason:
        try:
            process.start()
        except PeerError as failure:
            contender.reason = str(failure)
