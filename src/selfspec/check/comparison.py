"""One prompt answered with different drafts, and where two answers part. For the demo and the losslessness check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..bench.prompts import Prompt
from ..runtime.chat_template import Message
from ..runtime.conversation import Conversation
from ..runtime.drafters.base import Drafter, Round
from ..runtime.model import Model
from ..runtime.profile import fewer_experts
from ..runtime.stats import Stats


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all answers of a comparison have in common."""

    max_new_tokens: int
    exact: bool = False
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Answer:
    """A prompt's answer, with the rounds that made it."""

    prompt: Prompt
    token_ids: tuple[int, ...]
    rounds: tuple[Round, ...]
    stats: Stats

    @property
    def seconds_per_token(self) -> float:
        """After the first token, which is the prompt's own."""
        return self.stats.decode_seconds / max(1, len(self.token_ids) - 1)

    @property
    def judged_tokens(self) -> int:
        """Drafted tokens, without those behind an accepted end of sequence, which nobody looked at."""
        return sum(_judged(r) for r in self.rounds)

    @property
    def accepted_tokens(self) -> int:
        return self.stats.accepted_tokens


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to draft: a name that the model knows, or what makes a drafter when it is given plain's answer."""

    name: str
    draft: str | Callable[[Answer], Drafter]
    exit_layer: int | None = None
    experts: int | None = None


PLAIN = Contender("none", "none")


def exits(model: Model) -> list[Contender]:
    """Early exit at every exit of the artifact, and after all layers, where only the head is short."""
    manifest = model.artifact.manifest
    layers = (*manifest.exit_layers, manifest.model.num_layers)
    return [Contender(f"early-exit {k}", "early-exit", k) for k in layers]


def with_fewer_experts(model: Model) -> list[Contender]:
    """All layers with fewer experts, and the middle exit with one; none where the model has no experts."""
    manifest = model.artifact.manifest
    found = [Contender(f"{k} expert(s)", "fewer-experts", None, k) for k in fewer_experts(manifest.model)]
    if found and manifest.exit_layers:
        middle = manifest.exit_layers[len(manifest.exit_layers) // 2]
        found.append(Contender(f"exit {middle}, 1", "early-exit", middle, 1))
    return found


def messages(prompt: Prompt) -> list[Message]:
    return [{"role": "user", "content": prompt.text}]


def prompt_ids(model: Model, prompt: Prompt) -> list[int]:
    """Through the chat template where the model has one, else as raw text, as a base model wants it."""
    if model.codec.has_chat_template:
        return model.codec.encode_chat(messages(prompt))
    return model.codec.encode(prompt.text)


def answer(
    model: Model, prompt: Prompt, conditions: Conditions, contender: Contender = PLAIN, plain: Answer | None = None
) -> Answer:
    """The model's answer to ``prompt``, drafted by ``contender``.

    Args:
        plain: the plain answer under the same conditions, for contenders that need it.
    """
    stream = model.stream_ids(
        prompt_ids(model, prompt),
        max_new_tokens=conditions.max_new_tokens,
        draft=_drafter(contender, plain),
        exit_layer=contender.exit_layer,
        draft_experts=contender.experts,
        temperature=conditions.temperature,
        seed=conditions.seed,
        exact=conditions.exact,
    )
    token_ids = tuple(token.id for token in stream)
    return Answer(prompt, token_ids, tuple(stream.rounds), stream.result.stats)


def _drafter(contender: Contender, plain: Answer | None) -> str | Drafter:
    if isinstance(contender.draft, str):
        return contender.draft
    if plain is None:
        raise ValueError(f"{contender.name} drafts from plain's answer, and none was given")
    return contender.draft(plain)


def parting(plain: Answer, other: Answer) -> int | None:
    """The first position where two answers differ; None where they are equal."""
    if plain.token_ids == other.token_ids:
        return None
    pairs = zip(plain.token_ids, other.token_ids, strict=False)
    shorter = min(len(plain.token_ids), len(other.token_ids))
    return next((i for i, (a, b) in enumerate(pairs) if a != b), shorter)


def best_gap(model: Model, plain: Answer, position: int) -> float:
    """How far apart the two best logits are that plain decoding saw when it chose token ``position`` of its answer."""
    conversation = Conversation(model.sessions)
    stack = conversation.stack
    logits = conversation.prefill(prompt_ids(model, plain.prompt))
    for token in plain.token_ids[:position]:
        hidden = stack.run(conversation.full_plan, stack.embed(np.asarray([token])), conversation.kv.length)
        conversation.kv.commit(1)
        logits = stack.logits(hidden)[0]
    second, best = np.partition(logits, -2)[-2:]
    return float(best - second)


def _judged(result: Round) -> int:
    stopped_inside = len(result.tokens) == result.num_accepted
    return result.num_accepted if stopped_inside else result.num_drafted
