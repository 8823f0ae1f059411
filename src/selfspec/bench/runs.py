"""What ``selfspec bench`` times: a prompt, plain steps, and prompts answered with a drafter."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from ..runtime.conversation import Conversation
from ..runtime.drafters.base import Draft, Drafter, NoDrafter, Round
from ..runtime.engine import decode
from ..runtime.model import Model
from ..runtime.paths import exit_name
from ..runtime.sampling import Sampling
from ..runtime.stats import memory_bytes, peak_rss_bytes, reset_peak_rss
from .prompts import Prompt, prompt_ids

_SEED = 0
_WIDE_PROMPT, _PROMPT_REPEATS = 128, 5
_PROBE_STEPS = 3


@dataclass(frozen=True, slots=True)
class Run:
    """``tokens`` took ``seconds``. Bytes: ``peak_rss`` while it ran, where the system lets that begin anew, else since
    the process began; ``pss`` after it, None where the system does not say."""

    tokens: int
    seconds: float
    peak_rss: int
    pss: int | None


@dataclass(frozen=True, slots=True)
class Proposal:
    """What a draft was made of: ``steps`` passes along the draft path ``path``, or None of the model's; and how many
    ``tokens`` there were to verify, which may be one less."""

    path: str | None
    steps: int
    tokens: int


@dataclass(frozen=True, slots=True)
class PromptRun(Run):
    """A prompt's answer; ``tokens`` and ``seconds`` are those after the first token, ``rounds`` those after it too, and
    ``proposals`` what each of them began with. ``draft_seconds``: spent in ``propose``. ``prompt_tokens``: how many the
    prompt has."""

    token_ids: tuple[int, ...]
    ttft_seconds: float
    rounds: tuple[Round, ...]
    proposals: tuple[Proposal, ...]
    draft_seconds: float
    prompt_tokens: int

    @property
    def seconds_per_token(self) -> float:
        return self.seconds / self.tokens


@dataclass(frozen=True, slots=True)
class Conditions:
    """What all answers of a comparison have in common."""

    max_new_tokens: int
    exact: bool = False
    temperature: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Contender:
    """A way to draft. ``draft`` is a drafter as ``--draft`` names it, or what makes a drafter when it is given plain's
    answer."""

    name: str
    draft: str | Callable[[PromptRun], Drafter]


PLAIN_DECODING = Contender("plain", "none")


class TimedDrafter:
    """Another drafter, with what it proposed and how long that took."""

    def __init__(self, drafter: Drafter) -> None:
        self._drafter = drafter
        self.seconds = 0.0
        self.proposals: list[Proposal] = []

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        started = time.perf_counter()
        draft = self._drafter.propose(conversation, max_tokens)
        self.seconds += time.perf_counter() - started
        path, steps = None, 0
        if draft.prefix is not None:
            path, steps = exit_name(draft.prefix.sublayer // 2), len(draft.prefix.hidden)
        self.proposals.append(Proposal(path, steps, len(draft.tokens)))
        return draft

    def observe(self, result: Round) -> None:
        self._drafter.observe(result)


def random_ids(model: Model, count: int) -> list[int]:
    """The same ``count`` ids each time, drawn evenly from the vocabulary."""
    vocab = model.artifact.manifest.model.vocab_size
    found: list[int] = np.random.default_rng(_SEED).integers(0, vocab, count).tolist()
    return found


def run_prefill(conversation: Conversation, ids: Sequence[int]) -> Run:
    """A prompt of ``ids``, from nothing to the logits of its last token."""
    conversation.truncate(0)
    reset_peak_rss()
    started = time.perf_counter()
    conversation.prefill(ids)
    return Run(len(ids), time.perf_counter() - started, peak_rss_bytes(), memory_bytes("Pss"))


def step_probe(model: Model, *, exact: bool = False) -> Callable[[], float]:
    """Seconds of a plain step, the same one each time; the quickest of some."""
    conversation = model.conversation(exact=exact)
    (token,) = random_ids(model, 1)
    conversation.prefill([token])

    def step() -> float:
        conversation.truncate(0)
        started = time.perf_counter()
        conversation.prefill([token])
        return time.perf_counter() - started

    return lambda: min(step() for _ in range(_PROBE_STEPS))


def time_prompt(model: Model) -> tuple[int, float]:
    """(tokens, seconds) of a prompt that is wide enough for arithmetic to be what it takes; the median of some, after
    one that does not count."""
    count = min(_WIDE_PROMPT, model.artifact.manifest.model.context_length)
    conversation, ids = model.conversation(), random_ids(model, count)
    runs = [run_prefill(conversation, ids) for _ in range(1 + _PROMPT_REPEATS)]
    return count, statistics.median(run.seconds for run in runs[1:])


def run_generation(conversation: Conversation, first: int, count: int) -> Run:
    """``count`` plain steps behind a prompt of one token, whatever they say: an end of sequence does not stop them."""
    conversation.truncate(0)
    reset_peak_rss()
    decoding = decode(conversation, conversation.prefill([first]), NoDrafter(), Sampling(), count + 1, frozenset())
    started = time.perf_counter()
    for _ in decoding.rounds:
        pass
    return Run(count, time.perf_counter() - started, peak_rss_bytes(), memory_bytes("Pss"))


def run_prompt(
    model: Model,
    prompt: Prompt,
    conditions: Conditions,
    contender: Contender = PLAIN_DECODING,
    plain: PromptRun | None = None,
) -> PromptRun:
    """The model's answer to ``prompt`` in a conversation of its own, drafted by ``contender``.

    Args:
        plain: the plain answer under the same conditions, for contenders that need it.
    """
    used = model.conversation(exact=conditions.exact)
    drafter = TimedDrafter(_drafter(model, contender, used, plain))
    reset_peak_rss()
    ids = prompt_ids(model.codec, prompt)
    stream = model.stream_ids(
        ids,
        max_new_tokens=conditions.max_new_tokens,
        draft=drafter,
        temperature=conditions.temperature,
        seed=conditions.seed,
        conversation=used,
    )
    token_ids = tuple(token.id for token in stream)
    stats = stream.result.stats
    return PromptRun(
        tokens=len(token_ids) - 1,
        seconds=stats.decode_seconds,
        peak_rss=peak_rss_bytes(),
        pss=memory_bytes("Pss"),
        token_ids=token_ids,
        ttft_seconds=stats.ttft_seconds,
        rounds=tuple(stream.rounds),
        proposals=tuple(drafter.proposals),
        draft_seconds=drafter.seconds,
        prompt_tokens=len(ids),
    )


def _drafter(model: Model, contender: Contender, conversation: Conversation, plain: PromptRun | None) -> Drafter:
    if isinstance(contender.draft, str):
        return model.drafter(contender.draft, conversation)
    if plain is None:
        raise ValueError(f"{contender.name} drafts from plain's answer, and none was given")
    return contender.draft(plain)
