"""Drafters against plain decoding, per prompt category: one process, alternating, medians of time per token.

python benchmarks/drafters.py ARTIFACT [--prompts FILE] [--draft prompt-lookup,auto] [--repeats 3]
"""

from __future__ import annotations

import argparse
from pathlib import Path

from selfspec.comparison import PLAIN, Conditions, Contender
from selfspec.prompts import CATEGORIES, built_in_prompts, chosen, load_prompts
from selfspec.runtime.model import load
from selfspec.runtime.profile import machine_key
from selfspec.timing import Timing, alternate, total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's jsonl format (default: the built-in prompts)")
    parser.add_argument("--draft", default="prompt-lookup,auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    model = load(args.artifact, threads=args.threads)
    model.profile()
    contenders = [PLAIN, *(Contender(name, name) for name in args.draft.split(","))]
    prompts = chosen(load_prompts(args.prompts)) if args.prompts else built_in_prompts()
    conditions = Conditions(args.max_new_tokens)
    timings = {p: alternate(model, p, conditions, contenders, args.repeats) for p in prompts}
    print(f"{args.artifact.name}: {len(prompts)} prompts, {machine_key(model.sessions.threads)}")
    print(
        f"{'category':16} {'plain tok/s':>11}"
        + "".join(f"  {c.name + ' ×':>16} {'tokens/round':>12}" for c in contenders[1:])
    )
    for category in (*CATEGORIES, "all"):
        group = [t for p, t in timings.items() if category in (p.category, "all")]
        if group:
            print_row(category, [total(list(column)) for column in zip(*group, strict=True)])


def print_row(label: str, columns: list[Timing]) -> None:
    plain, *drafted = columns
    cells = (f"  {plain.seconds / t.seconds:16.3f} {t.tokens_per_round:12.2f}" for t in drafted)
    print(f"{label:16} {plain.tokens_per_second:11.1f}" + "".join(cells), flush=True)


if __name__ == "__main__":
    main()
