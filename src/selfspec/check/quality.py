"""What quantisation does to the text: teacher-forced agreement and KL divergence against the float32 artifact."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..bench.prompts import Prompt, built_in_prompts, prompt_ids
from ..runtime.arrays import Floats
from ..runtime.conversation import Conversation
from ..runtime.logprobs import log_softmax
from ..runtime.model import Model

TOKENS = 2_400  # asked for; answers that end early leave some 2,000


@dataclass(frozen=True, slots=True)
class Recording:
    """A prompt and the float32 model's greedy answer."""

    prompt_ids: tuple[int, ...]
    answer_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Quality:
    """``agreement``: share of positions with the same best token. ``kl``: mean KL(float32 ‖ quantised) in nats."""

    tokens: int
    agreement: float
    kl: float


def record(model: Model, tokens: int = TOKENS, prompts: Sequence[Prompt] | None = None) -> list[Recording]:
    """Answers of the float32 model to ``prompts`` (None: the built-in ones), ``tokens`` answer tokens in all where they
    last so long."""
    recordings: list[Recording] = []
    prompts = built_in_prompts() if prompts is None else prompts
    while tokens > 0 and len(recordings) < len(prompts):
        each = -(-tokens // (len(prompts) - len(recordings)))
        ids = prompt_ids(model.codec, prompts[len(recordings)])
        answer = tuple(token.id for token in model.stream_ids(ids, max_new_tokens=each, draft="prompt-lookup"))
        recordings.append(Recording(tuple(ids), answer))
        tokens -= len(answer)
    return recordings


def compare(model: Model, recordings: Sequence[Recording], expected: Iterable[Floats]) -> Quality:
    """Teacher-force ``model`` over the recordings. ``expected``: what the float32 model predicts there
    (:func:`forced_logits`), in the same order; one that is computed as it is asked for need not be held."""
    same: list[NDArray[np.bool_]] = []
    divergence: list[Floats] = []
    for recording, p_logits in zip(recordings, expected, strict=True):
        q_logits = forced_logits(model, recording)
        same.append(q_logits.argmax(-1) == p_logits.argmax(-1))
        divergence.append(_kl(p_logits, q_logits))
    agreement, kl = np.concatenate(same), np.concatenate(divergence)
    return Quality(len(agreement), float(agreement.mean()), float(kl.mean()))


def forced_logits(model: Model, recording: Recording) -> Floats:
    """[answer tokens, V]: what ``model`` predicts at each position when fed the answer as it stands."""
    conversation = Conversation(model.sessions)
    stack = conversation.stack
    ids = np.asarray([*recording.prompt_ids, *recording.answer_ids[:-1]], dtype=np.int64)
    hidden = stack.run(conversation.full_plan, stack.embed(ids), 0)
    return stack.logits(hidden[len(recording.prompt_ids) - 1 :])


def _kl(p_logits: Floats, q_logits: Floats) -> Floats:
    p, q = log_softmax(p_logits), log_softmax(q_logits)
    return np.asarray((np.exp(p) * (p - q)).sum(-1))
