"""What drafting would bring on a machine of another bandwidth and another rate of arithmetic. Pure arithmetic: nothing
is measured here, and no number of this module is a measurement.

A pass over m rows takes reading · bytes / bandwidth + computing · m · operations / rate + overhead. The three factors
are those with which this machine's passes are explained best; they are carried over as they are, overhead in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations

import numpy as np

from ..errors import UsageError
from ..runtime.costs import MeasuredPath, Profile, interpolate
from ..runtime.path_policy import draft_costs
from ..runtime.paths import exit_name
from .rows import PLAIN, Answers, speed_up
from .runs import Proposal
from .work import Work, Works

_LEAST, _MOST = 1e-3, 1e6  # GB/s and GOPS: from a microcontroller to a rack


@dataclass(frozen=True, slots=True)
class Speeds:
    """Of a machine. ``bandwidth``: bytes that it reads a second; ``rate``: operations a second, as a prompt's pass
    reaches them with the artifact's own kernels."""

    bandwidth: float
    rate: float


@dataclass(frozen=True, slots=True)
class Fit:
    """How much longer than at full speed reading and computing take, and ``overhead`` seconds a pass."""

    reading: float
    computing: float
    overhead: float

    def seconds(self, work: Work, rows: int, speeds: Speeds) -> float:
        """Of a pass over ``rows`` rows."""
        return self.part_seconds(work, rows, speeds) + self.overhead

    def part_seconds(self, work: Work, rows: int, speeds: Speeds) -> float:
        """Of a part of a pass: without the overhead, which the whole has once."""
        return sum(
            factor * x
            for factor, x in zip((self.reading, self.computing), _at_full_speed(work, rows, speeds), strict=True)
        )


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """``there`` and ``here`` are predictions, for the other machine and for this one; ``measured`` is this one's."""

    name: str
    there: float
    here: float
    measured: float

    @property
    def error(self) -> float:
        """Of the prediction for this machine: 0.1 is a tenth too much."""
        return self.here / self.measured - 1


@dataclass(frozen=True, slots=True)
class Prediction:
    """``there``: the machine asked about. ``here``: what this one was measured to have."""

    there: Speeds
    here: Speeds
    fit: Fit
    rows: tuple[PredictedRow, ...]


@dataclass(frozen=True, slots=True)
class Measured:
    """All that was measured here and is predicted. ``prompt`` and ``generation``: how many tokens, and tokens a second;
    None where that was not timed."""

    profile: Profile
    prompt: tuple[int, float] | None
    generation: tuple[int, float] | None
    answers: Sequence[Answers]


def parse_speeds(text: str) -> Speeds:
    """'20,100' is 20 GB/s and 100 GOPS, of 10^9 each.

    Raises:
        UsageError: it is something else.
    """
    try:
        bandwidth, rate = map(float, text.split(","))
    except ValueError:
        bandwidth = rate = math.nan
    if not (_LEAST <= bandwidth <= _MOST and _LEAST <= rate <= _MOST):
        raise UsageError(
            f"--predict {text}: it takes a machine's read bandwidth in GB/s and its arithmetic in GOPS, two numbers "
            f"between {_LEAST:g} and {_MOST:,.0f} with a comma between them, for instance 20,100."
        )
    return Speeds(1e9 * bandwidth, 1e9 * rate)


def predict(measured: Measured, works: Works, here: Speeds, there: Speeds) -> Prediction:
    """Everything that was measured, as it would be at ``there``, and as the same arithmetic has it for ``here``."""
    found = fit_profile(measured.profile, works, here)
    elsewhere, modelled = (predicted_profile(measured.profile, works, found, speeds) for speeds in (there, here))

    def row(name: str, of: Callable[[Profile], float], value: float | None = None) -> PredictedRow:
        return PredictedRow(name, of(elsewhere), of(modelled), of(measured.profile) if value is None else value)

    rows: list[PredictedRow] = []
    if measured.prompt is not None:
        tokens, speed = measured.prompt
        seconds = [prompt_operations(works, tokens) / speeds.rate for speeds in (there, here)]
        rows.append(PredictedRow(f"pp{tokens} tok/s", tokens / seconds[0], tokens / seconds[1], speed))
    if measured.generation is not None:
        rows.append(row(f"tg{measured.generation[0]} tok/s", _plain_speed, measured.generation[1]))
    rows.append(row("plain tok/s by the profile", _plain_speed))
    rows += [row(f"V({m})", partial(_verify_cost, m)) for m in measured.profile.step_seconds if m > 1]
    rows += [row(f"c of {exit_name(k)}", partial(_draft_cost, exit_name(k))) for k in works.exits]
    for draft in [name for name in (measured.answers[0].runs if measured.answers else ()) if name != PLAIN]:
        there_faster, here_faster = (speed_up(at_costs(measured.answers, p), draft) for p in (elsewhere, modelled))
        rows.append(PredictedRow(f"{draft} speed-up", there_faster, here_faster, speed_up(measured.answers, draft)))
    return Prediction(there, here, found, tuple(rows))


def _verify_cost(rows: int, profile: Profile) -> float:
    return profile.verify_cost(rows)


def _draft_cost(path: str, profile: Profile) -> float:
    return profile.draft_cost(path)


def _plain_speed(profile: Profile) -> float:
    return 1 / profile.step_seconds[1]


def fit(passes: Sequence[tuple[Work, int, float]], speeds: Speeds) -> Fit:
    """The factors, none negative, with which (work, rows, seconds) of ``passes`` are met best: least squares of
    relative errors. With three unknowns, every choice of those that are not zero can be tried."""
    terms = [(*_at_full_speed(work, rows, speeds), 1.0) for work, rows, _ in passes]
    matrix = np.asarray(terms) / np.asarray([[seconds] for _, _, seconds in passes])
    best, least = np.zeros(3), math.inf
    for kept in (list(columns) for count in (1, 2, 3) for columns in combinations(range(3), count)):
        found = np.zeros(3)
        scale = np.linalg.norm(matrix[:, kept], axis=0)
        found[kept] = np.linalg.lstsq(matrix[:, kept] / scale, np.ones(len(passes)), rcond=None)[0] / scale
        error = float(np.square(matrix @ found - 1).sum())
        if (found >= 0).all() and error < least:
            best, least = found, error
    return Fit(*best.tolist())


def fit_profile(profile: Profile, works: Works, speeds: Speeds) -> Fit:
    """To all passes of a profile: those of the full model over 1, 2, ... rows, and the draft steps."""
    steps = [(works.step, rows, seconds) for rows, seconds in profile.step_seconds.items()]
    exits = [(work, 1, profile.paths[exit_name(layer)].seconds) for layer, work in works.exits.items()]
    return fit(steps + exits, speeds)


def predicted_profile(profile: Profile, works: Works, found: Fit, speeds: Speeds) -> Profile:
    """``profile`` as it would be measured at ``speeds``, with its exits only: of other paths the work is not known.
    What exits draft depends on no machine."""
    head = found.part_seconds(works.hot_head, 1, speeds)
    paths = dict[str, MeasuredPath]()
    for layer, work in works.exits.items():
        name, seconds = exit_name(layer), found.seconds(work, 1, speeds)
        paths[name] = replace(profile.paths[name], seconds=seconds, shared_seconds=max(0.0, seconds - head))
    steps = {rows: found.seconds(works.step, rows, speeds) for rows in profile.step_seconds}
    return replace(profile, step_seconds=steps, paths=paths)


def round_seconds(profile: Profile, proposal: Proposal) -> float:
    """What a round that began with ``proposal`` takes where passes cost what ``profile`` says."""
    if proposal.path is None:
        return interpolate(profile.step_seconds, proposal.tokens + 1)
    costs = draft_costs(profile, proposal.path)
    return profile.step_seconds[1] * costs.round(proposal.steps, proposal.tokens)


def at_costs(answers: Iterable[Answers], profile: Profile) -> list[Answers]:
    """The same answers in the same rounds, which take what ``profile`` says: what was accepted stays as it was."""
    return [
        Answers(
            found.category,
            {
                draft: [replace(run, seconds=sum(round_seconds(profile, p) for p in run.proposals)) for run in runs]
                for draft, runs in found.runs.items()
            },
        )
        for found in answers
    ]


def prompt_operations(works: Works, rows: int) -> int:
    """Of a prompt's pass: the head sees its last row only."""
    return rows * (works.step.operations - works.head.operations) + works.head.operations


def _at_full_speed(work: Work, rows: int, speeds: Speeds) -> tuple[float, float]:
    """Seconds to read, and to compute."""
    return work.weight_bytes / speeds.bandwidth, rows * work.operations / speeds.rate
