"""Drafters against plain decoding, per prompt category: one process, alternating, medians, time per token.

    python benchmarks/drafters.py ARTIFACT [--prompts FILE] [--draft prompt-lookup,auto] [--rounds 3] [--json OUT]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections import defaultdict
from pathlib import Path

from selfspec.prompts import CATEGORIES, Prompt, built_in_prompts, chosen, load_prompts
from selfspec.runtime.model import Generation, Model, load
from selfspec.runtime.profile import machine_key


def measure(model: Model, prompt: Prompt, drafts: list[str], rounds: int, tokens: int) -> dict[str, Generation]:
    """For each draft the generation of median time per token, of ``rounds`` alternating ones after a warm-up."""
    runs: dict[str, list[Generation]] = {draft: [] for draft in drafts}
    for index in range(rounds + 1):
        for draft in drafts if index % 2 else reversed(drafts):
            message = {"role": "user", "content": prompt.text}
            result = model.generate(messages=[message], draft=draft, max_new_tokens=tokens)
            if index:
                runs[draft].append(result)
    return {draft: sorted(results, key=per_token)[len(results) // 2] for draft, results in runs.items()}


def per_token(result: Generation) -> float:
    """Seconds per token after the first."""
    return result.stats.decode_seconds / max(1, result.stats.generated_tokens - 1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--draft", default="prompt-lookup,auto")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--max-new-tokens", type=int, default=96)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    model = load(args.artifact, threads=args.threads)
    drafts = ["none", *args.draft.split(",")]
    prompts = chosen(load_prompts(args.prompts)) if args.prompts else built_in_prompts()
    model.profile()
    results: dict[str, list[dict[str, Generation]]] = defaultdict(list)
    for prompt in prompts:
        results[prompt.category].append(measure(model, prompt, drafts, args.rounds, args.max_new_tokens))
    rows = [row(name, results[name], drafts) for name in CATEGORIES if results[name]]
    rows.append(row("all", [r for group in results.values() for r in group], drafts))
    print(f"{args.artifact.name}, {machine_key(model.sessions.threads)}")
    for line in rows:
        print("  ".join(f"{key}: {value:.3f}" if isinstance(value, float) else f"{value:14}" for key, value in line.items()))
    if args.json:
        args.json.write_text(json.dumps({"machine": machine_key(model.sessions.threads), "rows": rows}, indent=1))


def row(category: str, group: list[dict[str, Generation]], drafts: list[str]) -> dict[str, str | float]:
    """Speed-up = plain's time per token ÷ the draft's, each summed over the group's prompts."""
    plain = sum(per_token(result["none"]) for result in group)
    line: dict[str, str | float] = {"category": category, "plain tok/s": len(group) / plain}
    for draft in drafts[1:]:
        line[f"{draft} ×"] = plain / sum(per_token(result[draft]) for result in group)
        line[f"{draft} tokens/round"] = statistics.fmean(result[draft].stats.tokens_per_round for result in group)
    return line


if __name__ == "__main__":
    main()
