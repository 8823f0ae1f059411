"""U(m): how many experts of a layer a pass over m consecutive tokens of a model's own text touches; and what it costs.

A pass that waits for memory takes the longer the more experts it reads, so V(m) follows U(m).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from selfspec.errors import SelfSpecError
from selfspec.runtime.costs import MeasuredPath, Profile
from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.drafters.registry import candidates
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.engine import decode
from selfspec.runtime.measure import time_passes
from selfspec.runtime.model import Model
from selfspec.runtime.path_policy import DraftCosts, draft_costs
from selfspec.runtime.sampling import Sampling

ROWS = tuple(range(1, 9))
_WINDOWS = 4  # of text, over which passes are timed
_LONGEST_DRAFT = ROWS[-1] - 1

Touched = Mapping[int, frozenset[int]]
"""Layer → the experts that one row ran."""


@dataclass(frozen=True, slots=True)
class OwnText:
    """``touched``: one a row, from the first token of ``answer`` on; the last token has not run."""

    prompt: tuple[int, ...]
    answer: tuple[int, ...]
    touched: tuple[Touched, ...]


def own_text(model: Model, prompt: Sequence[int], count: int, sampling: Sampling) -> OwnText:
    """A plain answer of at most ``count`` tokens."""
    conversation = model.conversation()
    logits = conversation.prefill(prompt)
    decoding = decode(conversation, logits, NoDrafter(), sampling, count, model.codec.eos_token_ids)
    answer, touched = [] if decoding.first is None else [decoding.first], list[Touched]()
    while True:
        with conversation.stack.watch_experts() as ran:
            found = next(decoding.rounds, None)
        if found is None:
            break
        answer += found.tokens
        touched.append({layer: frozenset(experts) for layer, experts in ran.items()})
    return OwnText(tuple(prompt), tuple(answer), tuple(touched))


def union(texts: Sequence[Sequence[Touched]], rows: int) -> float | None:
    """Distinct experts of ``rows`` consecutive rows: the mean over layers and over all places in all texts; None where
    no text is so long."""
    counts = [
        len(frozenset().union(*(row[layer] for row in window)))
        for text in texts
        for window in (text[i : i + rows] for i in range(len(text) - rows + 1))
        for layer in window[0]
    ]
    return statistics.fmean(counts) if counts else None


def random_union(experts: int, per_token: int, rows: int) -> float:
    """What routing would touch that draws ``per_token`` of ``experts`` anew for every row (MoESD, 2505.19645)."""
    return experts * (1 - (1 - per_token / experts) ** rows)


def timed_passes(model: Model, texts: Sequence[OwnText]) -> Profile:
    """The costs of passes over such text, as a profile without agreements: the mean over some windows, each from the
    middle of an answer. The model's stored profile knows one window only.

    Raises:
        SelfSpecError: no answer is long enough.
    """
    found = []
    for text in [text for text in texts if len(text.answer) >= 2 * ROWS[-1]][:_WINDOWS]:
        conversation, half = model.conversation(), len(text.answer) // 2
        context = [*text.prompt, *text.answer[: half - 1]]
        conversation.prefill(context)
        tokens = np.asarray(text.answer[half - 1 :][: ROWS[-1]], dtype=np.int64)
        found.append(time_passes(conversation, len(context), tokens, candidates(model.artifact.manifest)))
    if not found:
        raise SelfSpecError(f"no answer has {2 * ROWS[-1]} tokens, so there is nothing to time; give more prompts.")

    def mean(tables: Sequence[Mapping[int, float]]) -> dict[int, float]:
        return {key: statistics.fmean(table[key] for table in tables) for key in tables[0]}

    paths = dict[str, MeasuredPath]()
    for name in found[0].paths:
        step, shared = (statistics.fmean(timed.paths[name][part] for timed in found) for part in (0, 1))
        paths[name] = MeasuredPath(step, shared, (), ())
    return Profile(mean([timed.steps for timed in found]), paths, None)


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A way to draft whose every token were right: what a step of it costs (c, in one-row passes), and the most that
    it could gain, at its best length. Below 1 it cannot pay here, whatever it drafts."""

    layers: int
    experts: int
    step: float
    speed_up: float


def ceilings(profile: Profile, layers: int, per_token: int) -> list[Ceiling]:
    """Of every path that was measured: exits with all experts, and all layers with fewer of them."""
    found = []
    for name in profile.paths:
        options, costs = parse(name).options, draft_costs(profile, name)
        layer = getattr(options, "layer", None) or layers
        found.append(Ceiling(layer, options.experts or per_token, costs.step, ceiling(costs)))
    return found


def ceiling(costs: DraftCosts) -> float:
    return max((n + 1) / costs.round(n, n) for n in range(1, _LONGEST_DRAFT + 1))
