"""Experts of a checkpoint, in runs of rows as a layout wants them: widths padded, gate and up apart or in pairs.

An expert's rows of gate come before those of up in every checkpoint, whether each is a tensor or all are one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np

from ..models.config import ModelConfig
from ..models.tensors import Role, TensorSpec, rows_of
from .blocks import Floats

Reader = Callable[[str, int, int], Floats]
"""A tensor's name, and where a run of its rows begins and ends → these rows."""


def settled_forms(specs: Iterable[TensorSpec], shapes: dict[str, tuple[int, ...]]) -> list[TensorSpec]:
    """``specs``, each in the form that a checkpoint of ``shapes`` has; in its usual one where it has none."""
    return [
        next((form for form in (spec, *spec.alternatives) if any(part in shapes for part in form.parts)), spec)
        for spec in specs
    ]


def count_parameters(specs: Iterable[TensorSpec], config: ModelConfig) -> tuple[int, int]:
    """(all of a model's, those that one token uses: of experts, as many as run for it)."""
    sizes = [(math.prod(spec.shape), spec.experts) for spec in specs]
    running = 1 if config.moe is None else config.moe.experts_per_token
    return sum(size for size, _ in sizes), sum(
        size * running // experts if experts else size for size, experts in sizes
    )


def padded(spec: TensorSpec, multiple: int) -> TensorSpec:
    """``spec`` with the width of its experts rounded up; the parts are no longer the checkpoint's."""
    if not spec.experts:
        return spec
    rows, cols = spec.shape
    if spec.role is Role.EXPERTS_IN:
        rows = 2 * spec.experts * _rounded(rows // (2 * spec.experts), multiple)
    else:
        cols = _rounded(cols, multiple)
    return replace(spec, parts=(spec.name,), part_shapes=((rows, cols),), alternatives=())


def _rounded(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def expert_chunks(spec: TensorSpec, read: Reader, multiple: int, *, paired: bool, most_rows: int) -> Iterator[Floats]:
    """Runs of the rows of :func:`padded`, at most ``most_rows`` of the checkpoint's a run, or one block of them.

    Zeros are added behind the rows of gate and of up, and behind the columns of down: such a neuron's output is
    activation(0) · 0 = 0.

    Args:
        multiple: widths are rounded up to it; runs end at multiples of it.
        paired: row 0 of gate, row 0 of up, row 1 of gate, ...
    """
    step = max(1, most_rows // multiple) * multiple
    rows, cols = spec.shape
    if spec.role is Role.EXPERTS_OUT:
        for down in _matrices(spec, read, rows // spec.experts, step):
            for run in down:
                yield _wider(run, _rounded(cols, multiple))
        return
    matrices = _matrices(spec, read, rows // (2 * spec.experts), step)
    for gate, up in zip(matrices, matrices, strict=True):
        if paired:
            for both in zip(gate, up, strict=True):
                yield np.stack([_taller(run, multiple) for run in both], axis=1).reshape(-1, cols)
        else:
            for run in (*gate, *up):
                yield _taller(run, multiple)


def _matrices(spec: TensorSpec, read: Reader, rows: int, step: int) -> Iterator[Iterator[Floats]]:
    """Every ``rows`` rows of the parts, in their order: a matrix, in runs of ``step`` rows."""
    for part, shape in zip(spec.parts, spec.part_shapes, strict=True):
        for start in range(0, rows_of(shape), rows):
            yield _runs(read, part, start, start + rows, step)


def _runs(read: Reader, part: str, start: int, stop: int, step: int) -> Iterator[Floats]:
    for first in range(start, stop, step):
        yield read(part, first, min(stop, first + step))


def _taller(values: Floats, multiple: int) -> Floats:
    return np.pad(values, ((0, -len(values) % multiple), (0, 0)))


def _wider(values: Floats, cols: int) -> Floats:
    return np.pad(values, ((0, 0), (0, cols - values.shape[1])))
