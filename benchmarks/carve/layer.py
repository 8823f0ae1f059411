"""A dense gated MLP cut into one shared expert and a number of routed ones. Pure NumPy; knows no model and no file.

What a neuron adds to a token is |activation(gate) · up| × the norm of its column of down, here called its contribution.
The neurons that contribute most are shared; the rest go to experts by balanced k-means, those together that contribute
to the same tokens. The router is a ridge regression from the MLP's input onto each expert's energy.

Rows of inputs and contributions are tokens; neurons are numbered as in the dense MLP.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from selfspec.runtime.arrays import Floats

Indices = NDArray[np.int64]

ROUNDS = 20
"""Of k-means, at most."""
RIDGE = 1e-3
"""Of the mean square of an input."""
SPREAD = 1 / 256
"""Standard deviation of the router's logits. Experts count by their softmax, and should count alike: with all 16 of
them SmolLM2's best token is the dense model's at 94.9 % of positions with 1/16, 98.7 % with 1/64, 99.7 % with 1/256.
The smaller it is, the more often float32 cannot tell two experts' probabilities apart."""


@dataclass(frozen=True, slots=True)
class DenseMLP:
    """``down(silu(gate(x)) * up(x))``. ``gate`` and ``up`` [neurons, d], ``down`` [d, neurons]."""

    gate: Floats
    up: Floats
    down: Floats

    def inner(self, x: Floats) -> Floats:
        """[tokens, d] → what down is multiplied with, [tokens, neurons]."""
        gate = x @ self.gate.T
        with np.errstate(over="ignore"):  # exp of a very negative gate is infinite, and its silu 0
            return np.asarray(gate / (1 + np.exp(-gate)) * (x @ self.up.T))

    def output(self, x: Floats) -> Floats:
        """[tokens, d] → [tokens, d]."""
        return np.asarray(self.inner(x) @ self.down.T)

    def contributions(self, inner: Floats) -> Floats:
        """[tokens, neurons], not negative."""
        return np.asarray(np.abs(inner) * np.linalg.norm(self.down, axis=0))


@dataclass(frozen=True, slots=True)
class SparseLayer:
    """Which neurons are shared, [size], and which are each expert's, [experts, size]; ``router`` [experts, d]."""

    shared: Indices
    experts: Indices
    router: Floats

    def probabilities(self, x: Floats, kept: int) -> Floats:
        """[tokens, d] → the softmax over all experts, 0 for those beyond the best ``kept``; [tokens, experts]. Of
        equals the lower one is better."""
        logits = x @ self.router.T
        exponentials = np.exp(logits - logits.max(axis=1, keepdims=True))
        softmax = exponentials / exponentials.sum(axis=1, keepdims=True)
        best = np.argsort(-logits, axis=1, kind="stable")[:, :kept]
        result = np.zeros_like(softmax)
        np.put_along_axis(result, best, np.take_along_axis(softmax, best, axis=1), axis=1)
        return np.asarray(result)

    def output(self, mlp: DenseMLP, x: Floats, kept: int) -> Floats:
        """[tokens, d] → [tokens, d]: of ``mlp``, the shared neurons and the best ``kept`` experts', each expert by
        ``len(experts)`` times its probability."""
        count, size = self.experts.shape
        inner = mlp.inner(x)
        factors = count * self.probabilities(x, kept)
        inner[:, self.experts.reshape(-1)] *= np.repeat(factors, size, axis=1)
        return np.asarray(inner @ mlp.down.T)


def cut_layer(mlp: DenseMLP, x: Floats, shared: int, experts: int, random: np.random.Generator) -> SparseLayer:
    """Cut ``mlp`` by what its neurons do with the inputs ``x`` [tokens, d].

    Args:
        shared: neurons of the shared expert; the others divide by ``experts``.
    """
    contributions = mlp.contributions(mlp.inner(x))
    ranked = np.argsort(-contributions.mean(axis=0), kind="stable")
    common, rest = np.sort(ranked[:shared]), np.sort(ranked[shared:])
    groups = rest[balanced_groups(standardised(contributions[:, rest]), experts, random)]
    energies = np.stack([contributions[:, group].sum(axis=1) for group in groups], axis=1)
    return SparseLayer(common, groups, router(x, energies))


def standardised(contributions: Floats) -> Floats:
    """[tokens, neurons] → a point a neuron, [neurons, tokens]: mean 0 and length 1, or all 0 where it never varies."""
    centred = contributions.T - contributions.mean(axis=0)[:, None]
    lengths = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(centred / np.where(lengths > 0, lengths, 1))


def balanced_groups(points: Floats, count: int, random: np.random.Generator) -> Indices:
    """k-means whose clusters are equally large: [points, features] → [count, points / count], ascending in each.

    Of all rounds the one with the least sum of squared distances.
    """
    centres = _first_centres(points, count, random)
    best, least, seen = np.empty(0, dtype=np.int64), np.inf, set[bytes]()
    for _ in range(ROUNDS):
        distances = _squared_distances(points, centres)
        groups = fill_groups(distances)
        if groups.tobytes() in seen:
            break
        seen.add(groups.tobytes())
        centres = points[groups].mean(axis=1)
        error = float(((points[groups] - centres[:, None]) ** 2).sum())
        if error < least:
            best, least = groups, error
    return best


def _first_centres(points: Floats, count: int, random: np.random.Generator) -> Floats:
    """k-means++ (Arthur and Vassilvitskii 2007): each centre a point drawn by its squared distance to the nearest."""
    chosen = [int(random.integers(len(points)))]
    nearest = _squared_distances(points, points[chosen])[:, 0].astype(np.float64)
    while len(chosen) < count:
        nearest[chosen] = 0
        total = nearest.sum()
        free = np.setdiff1d(np.arange(len(points)), chosen)
        chosen.append(int(random.choice(len(points), p=nearest / total) if total > 0 else free[0]))
        nearest = np.minimum(nearest, _squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _squared_distances(points: Floats, centres: Floats) -> Floats:
    """[points, centres], never below 0."""
    squares = (points**2).sum(axis=1)[:, None] + (centres**2).sum(axis=1) - 2 * points @ centres.T
    return np.asarray(np.maximum(squares, 0))


def fill_groups(distances: Floats) -> Indices:
    """[points, groups] → [groups, points / groups]: nearest pairs first, while a group has room; ascending in each."""
    points, count = distances.shape
    room = points // count
    groups: list[list[int]] = [[] for _ in range(count)]
    placed = [False] * points
    for pair in np.argsort(distances, axis=None, kind="stable").tolist():
        point, group = divmod(pair, count)
        if not placed[point] and len(groups[group]) < room:
            placed[point] = True
            groups[group].append(point)
    return np.sort(np.asarray(groups, dtype=np.int64), axis=1)


def router(x: Floats, energies: Floats) -> Floats:
    """[experts, d]: the matrix that ranks experts by their energies, [tokens, experts], as well as a line can.

    There is no bias: inputs are normed, and what they have in common takes its place. What all logits have in common
    means nothing and is left out; their scale is ``SPREAD``.
    """
    weights = ridge(x, energies)
    weights -= weights.mean(axis=1, keepdims=True)
    deviation = (x @ weights).std()
    return np.asarray(weights.T * (SPREAD / deviation if deviation > 0 else 1), dtype=np.float32)


def ridge(x: Floats, y: Floats) -> NDArray[np.float64]:
    """[inputs, outputs]: the W of least |x W - y|² + λ|W|², in double precision."""
    inputs = x.astype(np.float64)
    gram = inputs.T @ inputs
    strength = RIDGE * np.trace(gram) / len(gram)
    return np.asarray(np.linalg.solve(gram + strength * np.eye(len(gram)), inputs.T @ y.astype(np.float64)))
