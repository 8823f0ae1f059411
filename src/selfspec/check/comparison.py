"""Where two answers to a prompt part, and how sure plain decoding was there. For demo and losslessness check."""

from __future__ import annotations

import numpy as np

from ..bench.prompts import Prompt, prompt_ids
from ..bench.runs import Contender, PromptRun
from ..runtime.conversation import Conversation
from ..runtime.drafters import early_exit
from ..runtime.drafters.base import Round
from ..runtime.drafters.fewer_experts import tried_experts
from ..runtime.model import Model


def exits(model: Model) -> list[Contender]:
    """Early exit at every exit of the artifact, and after all layers, where only the head is short."""
    names = [path.name for path in early_exit.exits(model.artifact.manifest)]
    return [Contender(name, name) for name in names]


def with_fewer_experts(model: Model) -> list[Contender]:
    """All layers with fewer experts, and the middle exit with one; none where the model has no experts."""
    manifest = model.artifact.manifest
    names = [f"fewer-experts:experts={k}" for k in tried_experts(manifest.model)]
    if names and manifest.exit_layers:
        middle = manifest.exit_layers[len(manifest.exit_layers) // 2]
        names.append(f"early-exit:layer={middle},experts=1")
    return [Contender(name, name) for name in names]


def parting(plain: PromptRun, other: PromptRun) -> int | None:
    """The first position where two answers differ; None where they are equal."""
    if plain.token_ids == other.token_ids:
        return None
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    shorter = min(len(plain.token_ids), len(other.token_ids))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def best_gap(model: Model, prompt: Prompt, plain: PromptRun, position: int) -> float:
    """How far apart the two best logits are that plain decoding saw when it chose token ``position`` of ``plain``."""
    conversation = Conversation(model.sessions)
    stack = conversation.stack
    logits = conversation.prefill(prompt_ids(model.codec, prompt))
    for token in plain.token_ids[:position]:
        hidden = stack.run(conversation.full_plan, stack.embed(np.asarray([token])), conversation.kv.length)
        conversation.kv.commit(1)
        logits = stack.logits(hidden)[0]
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)


def judged_tokens(run: PromptRun) -> int:
    """Drafted tokens, without those behind an accepted end of sequence, which nobody looked at."""
    return sum(_judged(found) for found in run.rounds)


def _judged(result: Round) -> int:
    stopped_inside = len(result.tokens) == result.num_accepted
    return result.num_accepted if stopped_inside else result.num_drafted
