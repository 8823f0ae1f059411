"""Cutting one MLP: the pure parts against hand-written numbers, and all experts together against the whole."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.carve import layer as carved_layer
from benchmarks.carve.checkpoint import cut_tensors
from benchmarks.carve.layer import (
    SPREAD,
    DenseMLP,
    SparseLayer,
    balanced_groups,
    cut_layer,
    fill_groups,
    ridge,
    router,
    standardised,
)
from selfspec.runtime.arrays import Floats

D, NEURONS, SHARED, EXPERTS, TOKENS = 8, 24, 8, 4, 50


def _floats(values: object) -> Floats:
    return np.asarray(values, dtype=np.float32)


@pytest.fixture
def mlp() -> DenseMLP:
    random = np.random.default_rng(0)
    gate, up, down = (_floats(random.standard_normal(shape)) for shape in ((NEURONS, D), (NEURONS, D), (D, NEURONS)))
    return DenseMLP(gate, up, down)


@pytest.fixture
def x() -> Floats:
    return _floats(np.random.default_rng(1).standard_normal((TOKENS, D)) + 0.5)


def test_a_neuron_of_hand_written_numbers() -> None:
    """silu(1) · 3 = 2.19318; through a column of down of norm 5 that is 10.9659."""
    mlp = DenseMLP(_floats([[1, 0]]), _floats([[0, 3]]), _floats([[3], [-4]]))
    x = _floats([[1, 1], [-200, 1]])
    inner = mlp.inner(x)
    np.testing.assert_allclose(inner, [[2.193176], [0.0]], rtol=1e-6)
    np.testing.assert_allclose(mlp.contributions(-inner), [[10.96588], [0.0]], rtol=1e-6)
    np.testing.assert_allclose(mlp.output(x), [[6.579527, -8.772703], [0.0, 0.0]], rtol=1e-6)


def test_groups_are_filled_nearest_pairs_first() -> None:
    """Three points are nearest to group 0, which has room for two: the one that is least near goes elsewhere."""
    distances = _floats([[0.3, 0.9], [0.1, 0.9], [0.2, 0.9], [0.9, 0.8]])
    assert fill_groups(distances).tolist() == [[1, 2], [0, 3]]


def test_of_equally_near_points_the_first_comes_first() -> None:
    assert fill_groups(np.ones((4, 2), dtype=np.float32)).tolist() == [[0, 1], [2, 3]]


def test_balanced_groups_find_clusters_of_equal_size() -> None:
    random = np.random.default_rng(3)
    centres = 10 * np.eye(4, 6)
    order = random.permutation(20)
    points = _floats(np.repeat(centres, 5, axis=0) + 0.1 * random.standard_normal((20, 6)))[np.argsort(order)]
    groups = balanced_groups(points, 4, np.random.default_rng(0))
    assert sorted(groups.tolist()) == sorted(sorted(order[i : i + 5].tolist()) for i in range(0, 20, 5))


def test_balanced_groups_cut_a_cluster_that_is_too_large() -> None:
    """Would catch k-means without the balance: six points lie here and two there."""
    points = _floats([[0, i / 100] for i in range(6)] + [[9, 0], [9, 0.01]])
    groups = balanced_groups(points, 2, np.random.default_rng(0))
    assert groups.shape == (2, 4)
    assert sorted(groups.reshape(-1).tolist()) == list(range(8))
    assert {6, 7} in [set(group) & {6, 7} for group in groups.tolist()]


def test_points_that_are_all_the_same_are_grouped_too() -> None:
    """k-means++ has no distances to draw by, as with neurons that never fire."""
    groups = balanced_groups(np.zeros((6, 3), dtype=np.float32), 3, np.random.default_rng(0))
    assert sorted(groups.reshape(-1).tolist()) == list(range(6))


def test_standardised_contributions() -> None:
    """Mean 0 and length 1 whatever the neuron's scale; one that never varies stays at 0."""
    points = standardised(_floats([[1, 10, 5], [3, 30, 5]]))
    half = 0.5**0.5
    np.testing.assert_allclose(points, [[-half, half], [-half, half], [0, 0]], rtol=1e-6)


def test_ridge_by_hand() -> None:
    """One input of 1 and 2, outputs of 3 and 6: 15 / (5 + λ)."""
    found = ridge(_floats([[1], [2]]), _floats([[3], [6]]))
    np.testing.assert_allclose(found, [[15 / (5 * (1 + carved_layer.RIDGE))]], rtol=1e-12)


def test_ridge_finds_the_matrix_that_made_the_outputs(x: Floats) -> None:
    made = _floats(np.random.default_rng(2).standard_normal((D, EXPERTS)))
    np.testing.assert_allclose(ridge(x, x @ made), made, atol=0.02)


def test_a_router_ranks_by_energy_with_logits_of_the_given_spread(x: Floats) -> None:
    energies = 100 + 5 * x[:, :EXPERTS]
    found = router(x, energies)
    logits = x @ found.T
    assert (logits.argmax(axis=1) == energies.argmax(axis=1)).mean() > 0.9
    assert logits.std() == pytest.approx(SPREAD, rel=1e-3)
    np.testing.assert_allclose(found.sum(axis=0), 0, atol=1e-6)


def test_a_router_of_equal_energies_is_finite(x: Floats) -> None:
    assert np.isfinite(router(x, np.zeros((TOKENS, EXPERTS), dtype=np.float32))).all()


def test_probabilities_are_of_all_experts_and_ties_go_to_the_lower() -> None:
    """Would catch a softmax over the kept ones: 1/(1+1+1+e) each, not 1/2."""
    layer = SparseLayer(np.arange(1), np.arange(4)[:, None], _floats([[0], [0], [1], [0]]))
    found = layer.probabilities(_floats([[1]]), 2)
    total = 3 + np.e
    np.testing.assert_allclose(found, [[1 / total, 0, np.e / total, 0]], rtol=1e-6)


def test_all_neurons_are_somewhere_and_the_shared_ones_contribute_most(mlp: DenseMLP, x: Floats) -> None:
    layer = cut_layer(mlp, x, SHARED, EXPERTS, np.random.default_rng(0))
    assert layer.experts.shape == (EXPERTS, (NEURONS - SHARED) // EXPERTS)
    assert sorted([*layer.shared.tolist(), *layer.experts.reshape(-1).tolist()]) == list(range(NEURONS))
    means = mlp.contributions(mlp.inner(x)).mean(axis=0)
    assert means[layer.shared].min() >= means[layer.experts].max()


def test_neurons_that_fire_together_are_in_one_expert(x: Floats) -> None:
    """Four kinds of neurons, each a multiple of its kind's first, in mixed order."""
    random = np.random.default_rng(5)
    kinds = np.arange(20) % EXPERTS
    gate, up = (_floats(random.standard_normal((EXPERTS, D)))[kinds] for _ in range(2))
    down = _floats(random.standard_normal((D, 20)))
    loud = DenseMLP(np.concatenate([gate, gate[:4]]), np.concatenate([up, 50 * up[:4]]), np.hstack([down, down[:, :4]]))
    layer = cut_layer(loud, x, 4, EXPERTS, np.random.default_rng(0))
    assert layer.shared.tolist() == [20, 21, 22, 23]
    assert sorted(layer.experts.tolist()) == [list(range(i, 20, EXPERTS)) for i in range(EXPERTS)]


def test_all_experts_of_an_even_router_are_the_dense_mlp(mlp: DenseMLP, x: Floats) -> None:
    layer = cut_layer(mlp, x, SHARED, EXPERTS, np.random.default_rng(0))
    even = SparseLayer(layer.shared, layer.experts, np.zeros_like(layer.router))
    np.testing.assert_array_equal(even.output(mlp, x, EXPERTS), mlp.output(x))
    near, whole = layer.output(mlp, x, EXPERTS), mlp.output(x)
    assert 0 < np.abs(near - whole).max() < 5 * SPREAD * np.abs(whole).max()


def test_fewer_experts_leave_out_their_neurons(mlp: DenseMLP, x: Floats) -> None:
    layer = SparseLayer(np.arange(8), np.arange(8, 24).reshape(4, 4), np.zeros((4, D), dtype=np.float32))
    first = mlp.inner(x)[:, :16] @ mlp.down[:, :16].T  # of equals, the first two
    np.testing.assert_allclose(layer.output(mlp, x, 2), first, rtol=1e-4, atol=1e-5)


def test_the_written_tensors_compute_what_the_layer_does(mlp: DenseMLP, x: Floats) -> None:
    """Qwen2-MoE's arithmetic, spelt out: would catch a factor left out, or neurons of gate, up and down mixed up."""
    layer = cut_layer(mlp, x, SHARED, EXPERTS, np.random.default_rng(0))
    tensors = cut_tensors(mlp, layer)

    def expert(name: str, row: Floats) -> Floats:
        gate = tensors[f"{name}.gate_proj"] @ row
        inner = gate / (1 + np.exp(-gate)) * (tensors[f"{name}.up_proj"] @ row)
        return np.asarray(tensors[f"{name}.down_proj"] @ inner)

    for kept in (1, 2, EXPERTS):
        expected = layer.output(mlp, x, kept)
        for row, wanted in zip(x, expected, strict=True):
            logits = tensors["gate"] @ row
            probabilities = np.exp(logits) / np.exp(logits).sum()
            shared = expert("shared_expert", row) / (1 + np.exp(-(tensors["shared_expert_gate"] @ row)))
            best = sorted(range(EXPERTS), key=lambda e: -logits[e])[:kept]
            found = shared + sum(probabilities[e] * expert(f"experts.{e}", row) for e in best)
            np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)
