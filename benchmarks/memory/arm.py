"""The arms of benchmarks.memory, each for a process of its own. The last line of stdout is a JSON object.

python -m benchmarks.memory.arm profile ARTIFACT THREADS
python -m benchmarks.memory.arm DRAFT ARTIFACT THREADS TOKENS         named as for ``selfspec bench``
python -m benchmarks.memory.arm second ARTIFACT THREADS TOKENS SECOND
"""

from __future__ import annotations

import json
import sys
from typing import Any

from selfspec.bench.prompts import built_in_prompts, prompt_ids
from selfspec.cli.command import run_command
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Drafter
from selfspec.runtime.drafters.early_exit import exits
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.engine import decode
from selfspec.runtime.model import Model, load
from selfspec.runtime.path_policy import best_path
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stats import memory_bytes, peak_rss_bytes

from .second_model import SecondModel

SECOND = "second"


def profile(artifact: str, threads: str) -> dict[str, Any]:
    """Measures and stores the profile, for the arms to find. ``exit_layer``: what early-exit drafts through."""
    model = load(artifact, threads=int(threads))
    best = best_path(model.profile(), [path.name for path in exits(model.artifact.manifest)])
    return {"exit_layer": None if best is None else parse(best.path).options.layer}


def generate(arm: str, artifact: str, threads: str, tokens: str, second: str | None = None) -> dict[str, Any]:
    """Greedily ``tokens`` tokens, whatever they say, and what the process weighs then."""
    model = load(artifact, threads=int(threads))
    conversation, ids = model.conversation(), prompt_ids(model.codec, built_in_prompts()[0])
    drafter = _drafter(arm, model, conversation, second)
    decoding = decode(conversation, conversation.prefill(ids), drafter, Sampling(), int(tokens), frozenset())
    rounds = list(decoding.rounds)
    return {
        "prompt_tokens": len(ids),
        "new_tokens": len(conversation.tokens) - len(ids),
        "drafted_tokens": sum(found.num_drafted for found in rounds),
        "pss_bytes": memory_bytes("Pss"),
        "rss_anon_bytes": memory_bytes("RssAnon"),
        "peak_rss_bytes": peak_rss_bytes(),
    }


def _drafter(arm: str, model: Model, conversation: Conversation, second: str | None) -> Drafter:
    if second is not None:
        return SecondModel(load(second, threads=model.sessions.threads))
    # With its layer named, early-exit drafts in every round; by the profile alone it would where that pays, or never.
    return model.drafter(arm, conversation)


def main() -> None:
    arm, *arguments = sys.argv[1:]
    found = profile(*arguments) if arm == "profile" else generate(arm, *arguments)
    print(json.dumps(found))


if __name__ == "__main__":
    sys.exit(run_command(main, "python -m benchmarks.memory.arm"))
