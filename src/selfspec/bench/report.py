"""What a benchmark found, with everything that its numbers depend on."""

from __future__ import annotations

from dataclasses import dataclass

from .calm import Turns
from .machine import Machine
from .prediction import Prediction
from .rows import Row, Sample


@dataclass(frozen=True, slots=True)
class ArtifactFacts:
    """``kernels``: whose, as :attr:`Sessions.kernels_name` says. ``digest``: sha256 of the manifest, which names that
    of every file. ``step_bytes``: what a plain step reads of the ``weights_bytes`` of weights.bin, counted as
    ``step_bytes_counted`` says."""

    name: str
    precision: str
    kernels: str
    digest: str
    weights_bytes: int
    step_bytes: int
    step_bytes_counted: str


@dataclass(frozen=True, slots=True)
class Costs:
    """From the profile, in units of a one-row pass. ``verify`` is V(m), a pass over m rows, and ``draft`` is c, a draft
    step along a path. ``best_exit`` is the path that ``early-exit`` drafts along, None where no exit was measured."""

    verify: dict[int, float]
    draft: dict[str, float]
    best_exit: str | None


@dataclass(frozen=True, slots=True)
class Report:
    """``date``: ISO 8601, UTC. ``exact``: everything was run so, in padded passes; ``costs`` are those of unpadded
    ones, and None where no profile was measured or needed. ``turns``: those of
    all rows. ``prediction``: no measurement, and of another machine.
    ``samples``: what the speed-ups are made of; of all forms, JSON alone has them.
    """

    selfspec: str
    date: str
    exact: bool
    artifact: ArtifactFacts
    machine: Machine
    costs: Costs | None
    rows: tuple[Row, ...]
    turns: Turns
    prediction: Prediction | None = None
    samples: tuple[Sample, ...] = ()
