"""What experts cost and what drafting with fewer of them brings, for an artifact that has some.

    python -m benchmarks.experts ARTIFACT [--dense ARTIFACT] [--prompts 4] [--temperature 0] [--threads N] [-o FILE]

Always: how many experts passes over the model's own text touch, what they cost, and the most that any draft could gain
with that. With --prompts: every number of experts × exit as a draft, auto, and memory, all beside plain decoding. With
--dense, a model whose MLPs are as wide as the experts that a token runs: plain steps of both in turns, over random
tokens, so that routing varies. Tables on stdout, progress on stderr.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from selfspec.bench.bootstrap import resampled_interval
from selfspec.bench.command import BenchSettings, bench
from selfspec.bench.prompts import built_in_prompts, prompt_ids, spread
from selfspec.bench.rows import PLAIN
from selfspec.bench.work import works
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError
from selfspec.models.config import ModelConfig, MoEConfig
from selfspec.models.manifest import Manifest
from selfspec.runtime.artifact import Artifact, open_artifact
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.costs import Profile
from selfspec.runtime.drafters import early_exit, fewer_experts
from selfspec.runtime.drafters.auto import AutoDrafter
from selfspec.runtime.drafters.base import Draft, Round
from selfspec.runtime.drafters.fewer_experts import tried_experts
from selfspec.runtime.drafters.kind import DrafterKind
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.limits import cpus
from selfspec.runtime.model import Model, load, notify_stderr
from selfspec.runtime.path_policy import best_path
from selfspec.runtime.sampling import Sampling

from .. import RESULTS
from ..memory.command import measure_arms, profiled_exit
from ..results import machine_facts, write_results
from ..timing import alternate, median_ms
from .table import markdown
from .union import ROWS, ceilings, own_text, random_union, timed_passes, union

NEW_TOKENS = 48
_TEXTS = 12
_GRID_REPEATS = 2
_AUTO_PROMPTS, _AUTO_REPEATS = 3, 3  # prompts: times as many
_MEMORY_TOKENS = 128
_CONTEXT, _BLOCK, _ROUNDS = 128, 16, 40
_ROW_KEYS = (
    "draft", "prompts", "repeats", "median", "speed_up", "speed_up_low", "speed_up_high", "acceptance_rate",
    "acceptance_by_position", "tokens_per_round", "same_text",
)  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    parser = Parser(
        prog="python -m benchmarks.experts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path, metavar="ARTIFACT")
    parser.add_argument("--dense", type=Path, metavar="ARTIFACT", help="of the same active size")
    parser.add_argument("--prompts", type=int, default=4, help="that drafts are tried on; 0: no drafts (default: 4)")
    parser.add_argument("--temperature", type=float, default=0.0, help="of the text that is looked at (default: 0)")
    parser.add_argument("--threads", type=int, default=cpus().threads, help="default: the physical cores")
    parser.add_argument("-o", dest="output", type=Path, help="default: benchmarks/results/experts-NAME-PRECISION.json")
    args = parser.parse_args(argv)
    return run_command(lambda: run(args), "python -m benchmarks.experts")


def run(args: argparse.Namespace) -> None:
    """Raises UsageError where there are no experts, or the dense model is not of the same active size."""
    artifact = open_artifact(args.artifact)
    manifest = artifact.manifest
    experts_of(artifact)
    if args.prompts < 0:
        raise UsageError(f"--prompts {args.prompts}: it must be 0 or more.")
    if args.dense is not None:
        dense = open_artifact(args.dense).manifest
        check_dense(manifest.model, dense.model)
        if (dense.precision, dense.kernels) != (manifest.precision, manifest.kernels):
            raise UsageError("--dense: it must be in the same precision and for the same kernels.")
    data: dict[str, Any] = {"machine": machine_facts(args.threads), "settings": _settings(artifact, args)}
    if args.prompts:  # before this process maps the weights too, and takes its share of them
        data["memory"] = memory(args.artifact, manifest.model, manifest.exit_layers, args.threads)
    model = load(args.artifact, threads=args.threads)
    data["settings"]["kernels"] = model.sessions.kernels_name
    data |= passes(model, args.temperature)
    if args.dense is not None:
        data["beside"] = beside(model, load(args.dense, threads=args.threads))
    if args.prompts:
        data |= drafts(model, args.prompts)
    suffix = "-ort" if manifest.kernels is None else ""
    write_results(args.output or RESULTS / f"experts-{manifest.name}-{manifest.precision}{suffix}.json", data)
    print(markdown(data))


def experts_of(artifact: Artifact) -> MoEConfig:
    """Raises: UsageError where it has none."""
    if (moe := artifact.manifest.model.moe) is None:
        raise UsageError(f"{artifact.manifest.name} has no experts; give an artifact of a model that has some.")
    return moe


def check_dense(sparse: ModelConfig, dense: ModelConfig) -> None:
    """Raises: UsageError where the two differ in more than their MLPs, or a token does not use as much of both."""
    same = ("hidden_size", "num_layers", "num_attention_heads", "num_kv_heads", "head_dim", "vocab_size")
    width = _active_width(sparse)
    apart = [name for name in same if getattr(sparse, name) != getattr(dense, name)]
    if dense.moe is not None or apart or dense.intermediate_size != width:
        raise UsageError(
            f"--dense: it must be a model without experts whose MLPs are {width} wide, otherwise of the same shape; "
            f"this one's are {dense.intermediate_size} wide"
            + (f" and it differs in {', '.join(apart)}." if apart else ".")
        )


def _experts_per_token(config: ModelConfig) -> int:
    return 0 if config.moe is None else config.moe.experts_per_token


def _active_width(config: ModelConfig) -> int:
    """Neurons of a layer that a token runs."""
    moe = config.moe
    return config.intermediate_size if moe is None else moe.experts_per_token * moe.expert_size + moe.shared_size


def _settings(artifact: Artifact, args: argparse.Namespace) -> dict[str, Any]:
    manifest, moe = artifact.manifest, experts_of(artifact)
    return {
        "model": manifest.name,
        "precision": manifest.precision,
        "digest": artifact.digest,
        "layers": manifest.model.num_layers,
        "experts": moe.num_experts,
        "experts_per_token": moe.experts_per_token,
        "step_bytes": works(artifact).step.weight_bytes,
        "temperature": args.temperature,
        "new_tokens": NEW_TOKENS,
    }


def passes(model: Model, temperature: float) -> dict[str, Any]:
    """U(m) and V(m), and what no draft can go beyond."""
    config = model.artifact.manifest.model
    moe = experts_of(model.artifact)
    notify_stderr(f"{_TEXTS} answers, and the experts that they touch ...")
    texts = [
        own_text(model, prompt_ids(model.codec, prompt), NEW_TOKENS, Sampling(temperature=temperature, seed=seed))
        for seed, prompt in enumerate(spread(built_in_prompts(), _TEXTS))
    ]
    notify_stderr("costs of passes over them ...")
    costs = timed_passes(model, texts)
    rows = [
        {
            "rows": m,
            "union": union([text.touched for text in texts], m),
            "random": random_union(moe.num_experts, moe.experts_per_token, m),
            "cost": costs.verify_cost(m),
        }
        for m in ROWS
    ]
    return {
        "text_tokens": sum(len(text.touched) for text in texts),
        "step_ms": 1000 * costs.step_seconds[1],
        "passes": rows,
        "ceilings": [asdict(found) for found in ceilings(costs, config.num_layers, moe.experts_per_token)],
    }


def beside(sparse: Model, dense: Model) -> dict[str, Any]:
    """Milliseconds of a plain step of both over the same random tokens, medians of blocks in turns, and the interval of
    their ratio. A block is several steps, since the first of them finds the other model's weights in the cache."""
    notify_stderr("plain steps beside the dense model's ...")
    models = {"sparse": sparse, "dense": dense}
    conversations = {name: model.conversation() for name, model in models.items()}
    steps = {name: _steps(conversation) for name, conversation in conversations.items()}
    times = alternate(steps, _ROUNDS)
    interval = resampled_interval([times["sparse"]], [times["dense"]])
    found = {f"{name}_ms": median_ms(seconds) / _BLOCK for name, seconds in times.items()}
    found |= {f"{name}_bytes": works(model.artifact).step.weight_bytes for name, model in models.items()}
    with conversations["sparse"].stack.watch_experts() as touched:
        steps["sparse"]()
    return found | {
        "touched": statistics.fmean(map(len, touched.values())),
        "dense": dense.artifact.manifest.name,
        "low": None if interval is None else interval.low,
        "high": None if interval is None else interval.high,
        "rounds": _ROUNDS,
        "steps": _BLOCK,
    }


def _steps(conversation: Conversation) -> Callable[[], object]:
    """Other tokens each time it is called."""
    stack, random = conversation.stack, np.random.default_rng(0)
    vocab = conversation.config.vocab_size
    conversation.prefill(random.integers(0, vocab, _CONTEXT).tolist())

    def run() -> object:
        for i, token in enumerate(random.integers(0, vocab, (_BLOCK, 1))):
            stack.logits(stack.run(conversation.full_plan, stack.embed(token), _CONTEXT + i)).argmax()
        return None

    return run


def grid(config: ModelConfig, exit_layers: Sequence[int]) -> dict[str, dict[str, int | None]]:
    """Name of a draft, as ``selfspec bench`` has it → where it leaves (None: nowhere, with the whole head; the number
    of layers: nowhere either, with the short one), and the experts that it runs for a token."""
    most = _experts_per_token(config)
    counts = (*tried_experts(config), most)
    found: dict[str, dict[str, int | None]] = {f"fewer-experts:{k}": {"exit": None, "experts": k} for k in counts}
    for layer in (*exit_layers, config.num_layers):
        for k in counts:
            name = f"early-exit:{layer}" + ("" if k == most else f":{k}")
            found[name] = {"exit": layer, "experts": k}
    return found


def drafts(model: Model, prompts: int) -> dict[str, Any]:
    """The grid, and auto over more prompts, each beside plain as ``selfspec bench`` does it."""
    manifest = model.artifact.manifest
    names = grid(manifest.model, manifest.exit_layers)
    found, turns = _benched(model, tuple(names), prompts, _GRID_REPEATS)
    auto, auto_turns = _benched(model, ("none", "auto"), _AUTO_PROMPTS * prompts, _AUTO_REPEATS)
    return {
        "drafts": [names[row["draft"]] | row for row in found if row["draft"] != PLAIN],
        "turns": turns,
        "auto": {"rows": auto, "turns": auto_turns} | auto_choice(model, _AUTO_PROMPTS * prompts),
    }


def _benched(model: Model, names: tuple[str, ...], prompts: int, repeats: int) -> tuple[list[Any], dict[str, int]]:
    """(rows over all prompts, turns)."""
    report = bench(model, BenchSettings(0, NEW_TOKENS, repeats, names, spread(built_in_prompts(), prompts)))
    whole = [row for row in report.rows if row.category is not None and row.category == report.rows[-1].category]
    return [{key: getattr(row, key) for key in _ROW_KEYS} for row in whole], asdict(report.turns)


def auto_choice(model: Model, prompts: int) -> dict[str, Any]:
    """What auto's exit arms promise by the profile, in tokens a one-row pass, and how often it took which of its arms,
    in a run of its own."""
    profile, rounds = model.profile(), Counter[str]()
    for prompt in spread(built_in_prompts(), prompts):
        conversation = model.conversation()
        auto = model.drafter("auto", conversation)
        if not isinstance(auto, AutoDrafter):
            raise TypeError(f"auto is a {type(auto).__name__}")
        witness = Witness(auto, rounds)
        ids = prompt_ids(model.codec, prompt)
        for _ in model.stream_ids(ids, max_new_tokens=NEW_TOKENS, draft=witness, conversation=conversation):
            pass
    kinds = {"exit": early_exit.KIND, "fewer": fewer_experts.KIND}
    return {
        "promised": {name: _promised(kind, profile, model.artifact.manifest) for name, kind in kinds.items()},
        "rounds": dict(rounds),
    }


def _promised(kind: DrafterKind, profile: Profile, manifest: Manifest) -> dict[str, Any] | None:
    """What the profile expects of a drafter's best path."""
    best = best_path(profile, [path.name for path in kind.candidates(manifest)])
    if best is None:
        return None
    options = parse(best.path).options
    layer = getattr(options, "layer", None) or manifest.model.num_layers
    return {"exit_layer": layer, "experts": options.experts, "num_tokens": best.num_tokens, "rate": best.rate}


class Witness:
    """``auto``, with the arm of every round counted."""

    def __init__(self, auto: AutoDrafter, rounds: Counter[str]) -> None:
        self._auto, self._rounds = auto, rounds

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        draft = self._auto.propose(conversation, max_tokens)
        self._rounds[self._auto.arm] += 1
        return draft

    def observe(self, result: Round) -> None:
        self._auto.observe(result)


def memory(artifact: Path, config: ModelConfig, exit_layers: Sequence[int], threads: int) -> list[dict[str, Any]]:
    """A row a draft, the fewest experts of each kind."""
    fewest, middle = tried_experts(config)[:1], exit_layers[len(exit_layers) // 2 :][:1]
    arms = {"plain": "none", "prompt-lookup": "prompt-lookup"}
    arms |= {f"fewer-experts, {k} a token": f"fewer-experts:{k}" for k in fewest}
    arms |= {f"early-exit {layer}, {k} a token": f"early-exit:{layer}:{k}" for layer in middle for k in fewest}
    profiled_exit(artifact, threads)
    return measure_arms(artifact, arms | {"auto": "auto"}, _MEMORY_TOKENS, threads)
