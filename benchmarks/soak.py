"""Half an hour of everything at once: random prompts, lengths, drafters, samplings, conversations and cancellations.

python -m benchmarks.soak ARTIFACT [--minutes 30] [--seed 0]

Every answer is compared with plain decoding under ``exact``; the process's resident memory must stay flat within 3 %
of what it was after the warm-up, the first sixth of the time. Prints a line a minute and, at the end, ``soak: ok``.
"""

from __future__ import annotations

import argparse
import math
import random
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from selfspec.bench.prompts import built_in_prompts
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.model import Model, load
from selfspec.runtime.stats import memory_bytes

GROWTH = 1.03
_WARM_UP = 1 / 6
_SAMPLES = 20  # of resident memory, whose median counts


class Soak:
    """Random generations on one model; counts what it did."""

    def __init__(self, model: Model, seed: int) -> None:
        self._model = model
        self._random = random.Random(seed)
        self._words = " ".join(prompt.text for prompt in built_in_prompts()).split()
        self._layers = (*model.artifact.manifest.exit_layers, model.artifact.manifest.model.num_layers)
        self._conversation: Conversation = model.conversation(exact=True)
        self.counts: Counter[str] = Counter()
        self.differing: list[str] = []

    def step(self) -> None:
        """One prompt: plain, then drafted, perhaps in a conversation that goes on, perhaps cancelled."""
        prompt, options = self._prompt(), self._options()
        drafting = self._drafting()
        plain = self._model.generate(prompt, draft="none", exact=True, **options)
        conversation = self._conversation if self._random.random() < 0.5 else self._model.conversation(exact=True)
        stream = self._model.stream(prompt, conversation=conversation, **drafting, **options)
        cancelled_after = self._random.randrange(1, 30) if self._random.random() < 0.25 else None
        for number, _ in enumerate(stream, start=1):
            if number == cancelled_after:
                stream.close()
                self.counts["cancelled"] += 1
                break
        found = stream.result.token_ids
        if found != (plain.token_ids if cancelled_after is None else plain.token_ids[: len(found)]):
            self.differing.append(f"{drafting} {options} {prompt[:60]!r}")
        self.counts["answers"] += 1
        self.counts["tokens"] += len(found)
        self.counts[f"{drafting['draft']}"] += 1
        if self._random.random() < 0.05:
            self._conversation = self._model.conversation(exact=True)

    def _prompt(self) -> str:
        length = int(2 ** self._random.uniform(1, 8.5))
        start = self._random.randrange(len(self._words))
        return " ".join(self._words[start : start + length]) or "Once"

    def _options(self) -> dict[str, Any]:
        choice = self._random.choice
        options: dict[str, Any] = {"max_new_tokens": int(2 ** self._random.uniform(0, 7))}
        if self._random.random() < 0.5:
            options |= {
                "temperature": choice((0.5, 0.8, 1.2)), "seed": self._random.randrange(2**32),
                "top_k": choice((0, 20)), "top_p": choice((1.0, 0.9)), "min_p": choice((0.0, 0.05)),
            }  # fmt: skip
        if self._random.random() < 0.3:
            options |= {"repetition_penalty": choice((1.1, 1.3)), "presence_penalty": choice((0.0, 0.5))}
        if self._random.random() < 0.2:
            options["stop"] = [choice(("\n\n", ". ", "the"))]
        return options

    def _drafting(self) -> dict[str, Any]:
        name = self._random.choice(("none", "prompt-lookup", "early-exit", "auto"))
        drafting: dict[str, Any] = {"draft": name}
        if name == "early-exit" and self._random.random() < 0.7:
            drafting |= {"exit_layer": self._random.choice(self._layers)}
        if name != "none" and self._random.random() < 0.5:
            drafting["num_draft_tokens"] = self._random.randrange(1, 16)
        return drafting


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    soak = Soak(load(args.artifact), args.seed)
    return report(soak, *run(soak, 60 * args.minutes))


def run(soak: Soak, seconds: float) -> tuple[list[int], list[int]]:
    """Resident bytes after each step: (right after the warm-up, at the end)."""
    started, printed, before, after = time.perf_counter(), 0.0, list[int](), list[int]()
    while (passed := time.perf_counter() - started) < seconds:
        soak.step()
        resident = memory_bytes("VmRSS") or 0
        if passed > _WARM_UP * seconds and len(before) < _SAMPLES:
            before.append(resident)
        after = [*after, resident][-_SAMPLES:]
        if passed - printed >= 60:
            printed = passed
            print(f"{passed / 60:5.1f} min  {resident / 1e6:7.1f} MB  {dict(soak.counts)}", flush=True)
    return before, after


def report(soak: Soak, before: list[int], after: list[int]) -> int:
    measured = bool(before) and all([*before, *after])
    growth = statistics.median(after) / statistics.median(before) if measured else math.inf
    print(f"{dict(soak.counts)}; resident memory at the end ÷ after the warm-up: {growth:.3f}")
    if not measured:
        print("resident memory was not measured: the run was too short, or this system does not tell it")
    for line in soak.differing[:20]:
        print(f"differs from plain: {line}")
    good = not soak.differing and growth <= GROWTH
    print(f"soak: {'ok' if good else 'FAILED'}")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
