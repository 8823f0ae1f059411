"""Accept or reject a draft: pure functions of draft, target logits and position-keyed randomness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from .logits import LogitRows
from .penalties import NO_PENALTIES, Penalties
from .sampling import Probabilities, Sampling, Stream, choose, distribution, draw, uniform


class Verdict(NamedTuple):
    """``tokens``: the accepted drafts and one token of the target's own."""

    tokens: tuple[int, ...]
    num_accepted: int


def verify_matching(
    draft: Sequence[int],
    logits: LogitRows,
    sampling: Sampling,
    position: int,
    penalties: Penalties = NO_PENALTIES,
) -> Verdict:
    """Sample-and-match: exact for any deterministic draft.

    1. Draw the target's own token for each position, with that position's uniform (greedy: argmax).
    2. Keep drafted tokens while they equal it.
    3. The first drawn token that differs, or the one after a fully accepted draft, ends the round.

    Args:
        draft: γ token ids.
        logits: [γ + 1, V]; row i is the target's prediction for ``position + i``.
        position: sequence position of the first drafted token.
        penalties: of the tokens before ``position``; row i also hears of the i drafted ones before it.
    """
    tokens: list[int] = []
    for i, drafted in enumerate(draft):
        tokens.append(choose(penalties.apply(logits[i]), sampling, position + i))
        if tokens[-1] != drafted:
            return Verdict(tuple(tokens), i)
        penalties = penalties.after((drafted,))
    tokens.append(choose(penalties.apply(logits[len(draft)]), sampling, position + len(draft)))
    return Verdict(tuple(tokens), len(draft))


def verify_sampled(
    draft: Sequence[int],
    q: Sequence[Probabilities],
    logits: LogitRows,
    sampling: Sampling,
    position: int,
    penalties: Penalties = NO_PENALTIES,
) -> Verdict:
    """Rejection sampling for drafts drawn from ``q`` (Leviathan et al. 2211.17192, Chen et al. 2302.01318).

    1. Accept a drafted x with probability min(1, p(x) / q(x)).
    2. On the first rejection, draw from max(0, p - q), normalised, and end the round.
    3. After a fully accepted draft, draw one token from p.

    Args:
        q: [V] probabilities a drafted token: the very distribution that it was drawn from.
    """
    tokens: list[int] = []
    for i, (drafted, proposal) in enumerate(zip(draft, q, strict=True)):
        p = distribution(penalties.apply(logits[i]), sampling)
        u = uniform(sampling.seed, position + i, Stream.ACCEPT)
        if u * proposal[drafted] < p[drafted]:
            tokens.append(int(drafted))
            penalties = penalties.after((drafted,))
            continue
        residual = np.maximum(p - proposal, 0.0)
        if residual.sum() <= 0.0:  # p equals q up to rounding
            residual = p
        tokens.append(draw(residual, uniform(sampling.seed, position + i, Stream.RESIDUAL)))
        return Verdict(tuple(tokens), i)
    tokens.append(choose(penalties.apply(logits[len(draft)]), sampling, position + len(draft)))
    return Verdict(tuple(tokens), len(draft))
