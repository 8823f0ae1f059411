"""From how many rows on, and cut where, this machine's kernels treat every row alike: what ``exact`` rests on.

Two probes. One layer of every kind, over some hundred positions in passes of many widths, finds what depends on where
a pass begins and ends, or on how many rows an expert is given; the whole model with its head, at a few places, finds
the rest.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from itertools import pairwise

import numpy as np

from ..models.config import ModelConfig
from ..models.sublayers import split_sublayer
from .conversation import Conversation
from .sessions import Sessions
from .stack import AS_THEY_COME, MOST_ROWS, Floats, Passes, Plan

_BOUNDARIES = (None, 64, 32)
_WIDE = (64, 32)
_ANY_WIDTH = (128, 64, 33, 32, 17)  # of those tried where every width is to be allowed
_NARROW = range(1, MOST_ROWS + 1)
_NEAR = 288  # positions from 0 on that are looked at one by one
_FAR, _FAR_ROWS = (1000, 4070), 48  # places behind keys of zeros: a kernel's blocks do not care what is in them
# Widths of passes and where the second one begins; every width up to MOST_ROWS is tried with the whole model.
_STEPS = ((5, 0), (16, 5), (3, 0), (7, 5), (2, 1))
_PADDINGS = (1, 2, 3, 4, 6, 8)
_MODEL_STARTS = (5, 64, 190)
_PROMPT_ROWS = 128


def exact_passes(sessions: Sessions) -> Passes | None:
    """The least restriction of passes under which a row has the same bits whatever stands beside it; None where no one
    of those tried does. A wrong answer would take a kernel that depends on values, and the losslessness tests would
    show it."""
    for passes in _candidates(sessions):
        if layers_alike(sessions, passes) and model_alike(sessions, passes):
            return passes
    return None


def _candidates(sessions: Sessions) -> Iterator[Passes]:
    """Ways to put rows into passes, the cheapest first. Passes as they come are promised by native kernels only."""
    if sessions.kernels is not None:
        yield AS_THEY_COME
    for boundary, widths, rows in itertools.product(_BOUNDARIES, (_WIDE, ()), _PADDINGS):
        yield Passes(rows, boundary, widths)


def layers_alike(sessions: Sessions, passes: Passes) -> bool:
    """Whether rows are alike in one block of each kind of attention, wherever passes begin and end."""
    conversation = Conversation(sessions, passes)
    limit = conversation.config.context_length
    stack, vocab = conversation.stack, conversation.config.vocab_size
    spans = [(0, min(_NEAR, limit)), *((start, _FAR_ROWS) for start in _FAR if start + _FAR_ROWS <= limit)]
    for plan in _kinds(sessions, conversation.config):
        for start, count in spans:
            hidden = stack.embed(np.random.default_rng(start).integers(0, vocab, count))

            def run(
                width: int, offset: int = 0, start: int = start, hidden: Floats = hidden, plan: Plan = plan
            ) -> Floats:
                cuts = sorted({0, *range(offset, len(hidden), width), len(hidden)})
                return np.concatenate([stack.run(plan, hidden[a:b], start + a) for a, b in pairwise(cuts)])

            alone = run(1)
            widths = _ANY_WIDTH if passes.widths is None else passes.widths
            wide = itertools.product(widths, (0, 5))
            for width, offset in (*_STEPS, *wide):
                if not np.array_equal(run(width, offset), alone):
                    return False
    return True


def _kinds(sessions: Sessions, config: ModelConfig) -> list[Plan]:
    """For each kind of attention, sliding or not, turning or not, and for experts, the smallest block that has it;
    often the same."""
    found: dict[tuple[bool, ...], Plan] = {}
    sparse = () if config.moe is None else config.moe.layers
    for unit in sorted(sessions.artifact.manifest.units, key=lambda unit: unit.stop - unit.start):
        for layer, is_mlp in map(split_sublayer, unit.sublayers):
            if is_mlp and layer not in sparse:
                continue
            kind = (True,) if is_mlp else (layer in config.sliding_layers, layer in config.nope_layers)
            found.setdefault(kind, Plan(tuple(unit.sublayers)))
    return list(dict.fromkeys(found.values()))


def model_alike(sessions: Sessions, passes: Passes) -> bool:
    """Whether logits of the whole model are alike in passes as verification and prompts make them."""
    conversation = Conversation(sessions, passes)
    limit = sessions.artifact.manifest.model.context_length
    longest = min(MOST_ROWS, limit // 2)
    starts = [s for s in _MODEL_STARTS if s + longest <= limit]
    if not starts:
        return False
    ids = np.random.default_rng(0).integers(0, conversation.config.vocab_size, max(starts) + longest)
    stack, plan = conversation.stack, conversation.full_plan

    def logits(start: int, count: int) -> Floats:
        return stack.logits(stack.run(plan, stack.embed(ids[start : start + count]), start))

    for previous, start in pairwise([0, *starts]):
        stack.run(plan, stack.embed(ids[previous:start]), previous)
        alone = np.concatenate([logits(start + i, 1) for i in range(longest)])
        for count in (m for m in _NARROW if m <= longest):
            if not np.array_equal(logits(start, count), alone[:count]):
                return False
        # Rows whose KV was written by a longer pass must look to later rows like rows written alone.
        if not np.array_equal(logits(start + longest - 1, 1), alone[-1:]):
            return False
    # A prompt's rows come many at a time, and a later turn may have run some of them one by one.
    end = max(starts) + longest
    begin = max(0, end - _PROMPT_ROWS)
    wide = stack.logits(stack.run(plan, stack.embed(ids[begin:end]), begin)[-longest:])
    return np.array_equal(wide, alone) and np.array_equal(logits(end - 1, 1), alone[-1:])
