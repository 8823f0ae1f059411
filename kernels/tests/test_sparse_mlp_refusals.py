"""SparseMLPTiles refuses, with a sentence, what would read past a buffer or choose experts that are not there."""

from dataclasses import asdict

import numpy as np
import onnxruntime as ort
import pytest
from sparse_node import Experts, gated, matrices, rows, sparse

NODE = Experts(4, 2, 64, 32)
REFUSED = ort.capi.onnxruntime_pybind11_state.InvalidArgument


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"num_experts": 0}, "num_experts is 0; it must be positive"),
        ({"num_experts": 5}, "input 3 has .* bytes; N=320, K=64 at 4 bits take"),
        ({"num_experts": 2**31 - 1}, "2147483647 experts of 64 rows each are no model's"),
        ({"k": 0}, "k is 0; it must be positive"),
        ({"k": 5}, "k is 5 of 4 experts"),
        ({"k": None}, "lacks the integer attribute k"),
        ({"I": 48}, "I is 48; it must be a positive multiple of 32"),
        ({"I": 64}, "bytes"),
        ({"N": 72}, "input 4 has .* bytes"),
        ({"K": 32}, "bytes"),
        ({"bits": 8}, "bytes"),
        ({"down_bits": 5}, "down_bits is 5; 4 and 8 are known"),
        ({"activation": "relu"}, "SparseMLPTiles: unknown activation 'relu'; silu and gelu_tanh are known"),
        ({"softmax": "none"}, "unknown softmax 'none'; all and selected are known"),
        ({"softmax": None}, "lacks the attribute softmax"),
        ({"normalize": 2}, "normalize is 2; 0 and 1 are known"),
        ({"scale": float("inf")}, "scale is not a finite number"),
        ({"scale": 1}, "lacks the float attribute scale"),
    ],
)
def test_a_node_that_does_not_fit_its_weights_is_refused_at_load(change: dict, sentence: str) -> None:
    attributes = {k: v for k, v in (NODE.attributes() | change).items() if v is not None}
    with pytest.raises(Exception, match=sentence):
        sparse(attributes, asdict(matrices(NODE)))


def shaped(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def numbers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"experts_per_token": numbers(0)}, "experts_per_token is 0; it must be from 1 to 2"),
        ({"experts_per_token": numbers(3)}, "experts_per_token is 3; it must be from 1 to 2"),
        ({"experts_per_token": numbers(-1)}, "experts_per_token is -1"),
        ({"experts_per_token": numbers(2**62)}, "experts_per_token is 4611686018427387904"),
        ({"experts_per_token": numbers(1, 1)}, r"experts_per_token is \[2\]; \[1\] is needed"),
        ({"experts_per_token": np.array(1)}, r"experts_per_token is \[\]; \[1\] is needed"),
        ({"router": shaped(4, 32)}, r"router is \[4, 32\]; \[4, 64\] is needed"),
        ({"router": shaped(3, 64)}, r"router is \[3, 64\]"),
        ({"router": shaped(256)}, r"router is \[256\]"),
        ({"x": shaped(1, 3, 32)}, "x ends in 32; the weights need 64"),
        ({"gate_up": np.zeros(9999, np.uint8)}, "input 3 has 9999 bytes"),
        ({"down": np.zeros(9999, np.uint8)}, "input 4 has 9999 bytes"),
    ],
)
def test_a_pass_that_does_not_fit_is_refused(change: dict, sentence: str) -> None:
    """And the session runs on."""
    op = sparse(NODE.attributes(), {})
    good = {"x": rows(NODE, 3), "experts_per_token": numbers(2), **asdict(matrices(NODE))}
    [want, _] = op.run(None, good)
    with pytest.raises(REFUSED, match=sentence):
        op.run(None, good | change)
    np.testing.assert_array_equal(op.run(None, good)[0], want)


def test_a_gate_of_another_size_is_refused() -> None:
    x = rows(NODE, 2)
    op = gated(NODE, *matrices(NODE).expert(NODE, 1), shaped(1, 32))
    with pytest.raises(REFUSED, match=r"GatedMLPTiles: gate is \[1, 32\]; \[1, 64\] is needed"):
        op.run(None, {"x": x})


@pytest.mark.parametrize("seed", range(5))
def test_damaged_weights_only_give_other_numbers(seed: int) -> None:
    """Any byte is a legal one, in the router too: experts are chosen in range whatever the logits are."""
    rng = np.random.default_rng(seed)
    noise = {
        name: rng.integers(0, 256, array.nbytes, dtype=np.uint8).view(array.dtype).reshape(array.shape)
        for name, array in asdict(matrices(NODE)).items()
    }
    y, selected = sparse(NODE.attributes(), noise).run(None, {"x": rows(NODE, 9), "experts_per_token": numbers(2)})
    assert y.shape == (1, 9, 64)
    assert ((selected >= 0) & (selected < 4)).all()
    assert (selected[..., 0] != selected[..., 1]).all()
