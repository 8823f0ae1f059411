"""SparseMLPTiles computes the experts that a row chooses, and reads no others."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import selfspec_kernels as kernels
from hypothesis import given, settings
from hypothesis import strategies as st
from sparse_node import Experts, Matrices, bits, gated, matrices, reference, rows, run, session, shapes

SMALL = Experts(8, 3, 64, 32)


def close(got: np.ndarray, want: np.ndarray) -> None:
    np.testing.assert_allclose(got, want, rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize(("softmax", "normalize"), list(product(["all", "selected"], [0, 1])))
@pytest.mark.parametrize("chosen", [1, 2, 3])
def test_it_is_the_sum_of_what_the_chosen_experts_give(softmax: str, normalize: int, chosen: int) -> None:
    """Against NumPy; sixty rows choose every expert, so one that is read at another's place shows."""
    for activation, scale in (("silu", 1.0), ("gelu_tanh", 2.5)):
        experts = replace(SMALL, softmax=softmax, normalize=normalize, activation=activation, scale=scale)
        x = rows(experts, 60)
        y, selected = run(session(experts), x, chosen)
        want, selected_by_numpy = reference(experts, matrices(experts), x, chosen)
        np.testing.assert_array_equal(selected, selected_by_numpy)
        assert set(selected.ravel()) - {-1} == set(range(8))
        close(y, want)


@pytest.mark.parametrize("widths", [(4, 4), (8, 8), (8, 4)])
@pytest.mark.parametrize("shape", [(1, 1, 32, 32), (5, 5, 96, 64), (64, 8, 128, 64), (16, 2, 576, 96)])
def test_any_shape_is_numpys(shape: tuple[int, ...], widths: tuple[int, int]) -> None:
    """One expert, all experts, many small ones; the last of the output columns less than a block of them."""
    experts = Experts(*shape, *widths, N=shape[2] + 8)
    x = rows(experts, 11)
    for chosen in {1, experts.k}:
        y, selected = run(session(experts), x, chosen)
        want, selected_by_numpy = reference(experts, matrices(experts), x, chosen)
        np.testing.assert_array_equal(selected, selected_by_numpy)
        close(y, want)


def test_one_expert_by_itself_is_its_gated_mlp_to_the_bit() -> None:
    """Chosen alone, an expert weighs exactly 1: nothing but the arithmetic of GatedMLPTiles may remain."""
    experts = replace(SMALL, softmax="selected")
    x, w = rows(experts, 40), matrices(experts)
    y, selected = run(session(experts), x, 1)
    for e in range(8):
        mine = selected[0, :, 0] == e
        [want] = gated(experts, *w.expert(experts, e)).run(None, {"x": x[:, mine]})
        np.testing.assert_array_equal(bits(y[:, mine]), bits(want))


def test_experts_are_added_by_ascending_index() -> None:
    """The order of three numbers is bits: a row must not get another one from those beside it, nor another release."""
    experts = replace(SMALL, k=4, softmax="selected")
    x, w = rows(experts, 9), matrices(experts)
    alike = replace(w, router=np.zeros_like(w.router))  # experts 0 to 3, a quarter each
    want = np.zeros_like(x)
    for e in range(4):
        want += np.float32(0.25) * gated(experts, *w.expert(experts, e)).run(None, {"x": x})[0]
    np.testing.assert_array_equal(bits(run(session(experts, alike), x, 4)[0]), bits(want))


def by_hand(logits: list[list[float]], k: int, **change: object) -> tuple[Experts, Matrices, np.ndarray]:
    """Experts whose logits for row i are logits[i]."""
    experts = Experts(len(logits[0]), k, 32, 32, **change)
    router = np.zeros((experts.num_experts, 32), np.float32)
    router[:, : len(logits)] = np.array(logits, np.float32).T
    x = np.eye(32, dtype=np.float32)[None, : len(logits)]
    return experts, replace(matrices(experts), router=router), x


def test_equals_go_to_the_lower_index() -> None:
    """Otherwise the choice would be up to a sort, and drafts and their verification could differ; -0 equals 0."""
    experts, w, x = by_hand([[1, 1, 1, 1, 1], [0, 2, 0, 2, 5], [-0.0, 0, -1, 0, -0.0], [-3, -1, -1, -2, -1]], 4)
    _, selected = run(session(experts, w), x, 4)
    np.testing.assert_array_equal(selected[0], [[0, 1, 2, 3], [4, 1, 3, 0], [0, 1, 3, 4], [1, 2, 4, 3]])
    router = np.full((5, 32), 1e-30, np.float32) * np.float32([[-1], [0], [-1], [1], [0]])
    _, selected = run(session(experts, replace(w, router=router)), np.full_like(x, 1e-30), 4)  # all underflow
    np.testing.assert_array_equal(selected[0], [[0, 1, 2, 3]] * 4)


@pytest.mark.parametrize(
    ("change", "want"),
    [
        ({"softmax": "all"}, [0.4, 0.3]),
        ({"softmax": "all", "scale": 2.0}, [0.8, 0.6]),
        ({"softmax": "all", "normalize": 1}, [4 / 7, 3 / 7]),
        ({"softmax": "selected"}, [4 / 7, 3 / 7]),
        ({"softmax": "selected", "normalize": 1, "scale": 0.5}, [2 / 7, 1.5 / 7]),
    ],
)
def test_weights_by_hand(change: dict, want: list[float]) -> None:
    """Logits that are logarithms of tenths: weights are known, and so is the sum of two experts' outputs."""
    experts, w, x = by_hand([np.log([0.2, 0.4, 0.1, 0.3]).tolist()], 2, **change)
    first, second = (gated(experts, *w.expert(experts, e)).run(None, {"x": x})[0] for e in (1, 3))
    y, selected = run(session(experts, w), x, 2)
    assert selected.tolist() == [[[1, 3]]]
    np.testing.assert_allclose(y, want[0] * first + want[1] * second, rtol=0, atol=1e-6 * np.abs(first).max())


@settings(max_examples=60, deadline=None)
@given(experts=shapes(), data=st.data(), seed=st.integers(0, 2**32 - 1))
def test_fewer_experts_are_those_of_a_model_that_has_fewer(experts: Experts, data: st.DataObject, seed: int) -> None:
    """experts_per_token k' is k = k': the same choice, weights and bits, and -1 in the places that are left."""
    x, w = rows(experts, 5, seed), matrices(experts, seed)
    chosen = data.draw(st.integers(1, experts.k))
    y, selected = run(session(experts, w), x, chosen)
    want, selected_there = run(session(replace(experts, k=chosen), w), x, chosen)
    np.testing.assert_array_equal(bits(y), bits(want))
    np.testing.assert_array_equal(selected[..., :chosen], selected_there)
    np.testing.assert_array_equal(selected[..., chosen:], -1)
    everything = run(session(experts, w), x, experts.k)[1]
    np.testing.assert_array_equal(selected[..., :chosen], everything[..., :chosen])


@pytest.mark.parametrize("count", [1, 3, 9])
@pytest.mark.parametrize("chosen", [1, 3])
def test_no_expert_is_read_that_no_row_chose(count: int, chosen: int) -> None:
    """With NaN for all their scales the result keeps its bits: their weights cost no memory traffic either."""
    experts = Experts(32, 3, 64, 64)
    x, w = rows(experts, count), matrices(experts)
    for path in kernels.paths():
        kernels.use_path(path)
        y, selected = run(session(experts), x, chosen)
        spared = set(selected.ravel()) - {-1}
        assert len(spared) < 32
        got, _ = run(session(experts, w.poisoned(experts, spared)), x, chosen)
        np.testing.assert_array_equal(bits(got), bits(y))
        poisoned, _ = run(session(experts, w.poisoned(experts, spared - {int(selected[0, 0, 0])})), x, chosen)
        assert np.isnan(poisoned[0, 0]).all()


@pytest.mark.parametrize("softmax", ["all", "selected"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_a_number_stays_visible_and_in_its_row(softmax: str, bad: float) -> None:
    """Logits are then NaN or infinite: experts are chosen all the same, in range and once each."""
    experts = replace(SMALL, softmax=softmax)
    x = rows(experts, 9)
    for path in kernels.paths():
        kernels.use_path(path)
        good = run(session(experts), x, 3)
        spoilt = x.copy()
        spoilt[0, 4, 7] = bad
        y, selected = run(session(experts), spoilt, 3)
        assert np.isnan(y[0, 4]).all()
        assert len(set(selected[0, 4])) == 3
        assert set(selected[0, 4]) <= set(range(8))
        for got, want in zip((y, selected), good, strict=True):
            np.testing.assert_array_equal(bits(np.delete(got, 4, axis=1)), bits(np.delete(want, 4, axis=1)))


def test_a_router_that_is_not_a_number_shows() -> None:
    """NaN stands above every number, so its expert is chosen; infinities have their places, and nothing crashes."""
    nan, inf = np.nan, np.inf
    experts, w, x = by_hand([[0, 0, 0, 0, 0]], 3)
    for logits, want in (
        ([1, nan, 3, nan, 5], [1, 3, 4]),
        ([1, 2, float(np.copysign(nan, -1)), nan, inf], [2, 3, 4]),
        ([nan] * 5, [0, 1, 2]),
        ([1, inf, -inf, 7, inf], [1, 4, 3]),
        ([-inf] * 5, [0, 1, 2]),
        ([3e38, -3e38, 0, 1, -inf], [0, 3, 2]),
    ):
        router = np.array(logits, np.float32)[:, None] * np.ones((1, 32), np.float32)
        y, selected = run(session(experts, replace(w, router=router)), np.full_like(x, 1 / 32), 3)
        assert selected[0, 0].tolist() == want
        assert np.isfinite(y).all() == bool(np.isfinite(logits[want[0]]))


def test_no_rows_give_no_rows() -> None:
    y, selected = run(session(SMALL), rows(SMALL, 0), 2)
    assert (y.shape, selected.shape) == ((1, 0, 64), (1, 0, 3))
