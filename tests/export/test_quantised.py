"""int8 and int4 blocks against the same blocks with the artifact's own dequantised weights in fp32.

What is left between the two is the kernels' rounding of activations; a zero point off by one is far outside.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from selfspec import Model, load
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.stack import Floats, Plan

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

TOLERANCE = 0.02
EXITS = (1, 2, 3, 4, 5)
ROWS = 24


def dequantised_checkpoint(toy: Toy, tools: Tools, folder: Path, bits: int, shift: int = 0) -> Path:
    """The artifact's own weights as an fp32 model folder; ``shift`` misreads every zero point by that much."""
    spec = toy.spec
    weights = dict(tools.weights(spec))
    q, kv, ff = spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim, spec.ff

    def matrix(name: str, bits: int) -> Floats:
        found: Floats = tools.dequantized(toy.folder, name, bits)
        if shift:
            stored = {n: s for (_, n), s in tools.stored(toy.folder).items()}
            found = found - shift * np.repeat(stored[f"{name}.scales"].read(toy.folder), 32, axis=1)
        return found

    for i in range(spec.layers):
        layer = f"model.layers.{i}"
        qkv = matrix(f"{layer}.self_attn.qkv_proj.weight", bits)
        gate_up = matrix(f"{layer}.mlp.gate_up_proj.weight", bits)
        weights |= {
            f"{layer}.self_attn.q_proj.weight": qkv[:q].copy(),
            f"{layer}.self_attn.k_proj.weight": qkv[q : q + kv].copy(),
            f"{layer}.self_attn.v_proj.weight": qkv[q + kv :].copy(),
            f"{layer}.self_attn.o_proj.weight": matrix(f"{layer}.self_attn.o_proj.weight", bits),
            f"{layer}.mlp.gate_proj.weight": gate_up[:ff].copy(),
            f"{layer}.mlp.up_proj.weight": gate_up[ff:].copy(),
            f"{layer}.mlp.down_proj.weight": matrix(f"{layer}.mlp.down_proj.weight", bits),
        }
    weights["model.embed_tokens.weight"] = tools.dequantized(toy.folder, "model.embed_tokens.weight", 8)
    tools.write(folder, spec)
    save_file(weights, folder / "model.safetensors")
    return folder


def block_errors(quantised: Model, reference: Model, ids: Any) -> list[float]:
    """max|Δ| ÷ max|h| of every block, each fed the reference's input, as prefill and then one row at a time."""
    ours, theirs = (Conversation(model.sessions).stack for model in (quantised, reference))
    hidden = theirs.embed(ids)
    errors = []
    for start, stop in itertools.pairwise((0, *EXITS, 6)):
        plan = Plan.layers(start, stop)
        expected = theirs.run(plan, hidden, 0)
        found = ours.run(plan, hidden[:ROWS], 0)
        rows = [found, *(ours.run(plan, hidden[t : t + 1], t) for t in range(ROWS, len(ids)))]
        errors.append(float(np.abs(np.concatenate(rows) - expected).max() / np.abs(expected).max()))
        hidden = expected
    return errors


@pytest.fixture(scope="module", params=["int8-ort", "int4-ort", "int8-native", "int4-native"])
def quantised(request: pytest.FixtureRequest, make_toy: Callable[..., Toy]) -> tuple[Toy, int]:
    precision, kernels = request.param.split("-")
    if kernels == "native":
        request.getfixturevalue("native_kernels")
    bits = {"int8": 8, "int4": 4}[precision]
    return make_toy(precision=precision, kernels=kernels, exit_layers=EXITS, hot_vocab=256), bits


def reference_model(toy: Toy, tools: Tools, folder: Path, bits: int, shift: int = 0) -> Model:
    source = dequantised_checkpoint(toy, tools, folder / "source", bits, shift)
    return load(tools.export(source, folder / "fp32", precision="fp32", exit_layers=EXITS), threads=1)


def test_every_block_computes_with_the_weights_it_stores(
    quantised: tuple[Toy, int], tools: Tools, tmp_path: Path
) -> None:
    """Scales of another block, swapped halves, rows of q taken for k: the codes are right and the product is not."""
    toy, bits = quantised
    ids = np.random.default_rng(1).integers(0, 320, ROWS + 6)
    errors = block_errors(toy.model, reference_model(toy, tools, tmp_path, bits), ids)
    assert max(errors) <= TOLERANCE, errors


def test_embedding_and_head_compute_with_what_they_store(
    quantised: tuple[Toy, int], tools: Tools, tmp_path: Path
) -> None:
    """Eight bits in both: rows gathered from the wrong block, or a head slice with another slice's scales."""
    toy, bits = quantised
    reference = reference_model(toy, tools, tmp_path, bits)
    ours, theirs = Conversation(toy.model.sessions).stack, Conversation(reference.sessions).stack
    ids = np.arange(320)
    np.testing.assert_allclose(ours.embed(ids), theirs.embed(ids), rtol=0, atol=1e-6)
    hidden = theirs.embed(ids[:16])
    exact = tools.weights(toy.spec)["lm_head.weight"]
    logits = theirs.logits(hidden)
    assert exact.shape == (320, 64)
    assert np.abs(ours.logits(hidden) - logits).max() <= TOLERANCE * np.abs(logits).max()


def test_a_zero_point_off_by_one_fails_the_same_test(
    make_toy: Callable[..., Toy], tools: Tools, tmp_path: Path
) -> None:
    """A tolerance so wide that it hides the commonest mistake of quantised kernels."""
    toy = make_toy(precision="int4", exit_layers=EXITS, hot_vocab=256)
    ids = np.random.default_rng(1).integers(0, 320, ROWS + 6)
    errors = block_errors(toy.model, reference_model(toy, tools, tmp_path, 4, shift=1), ids)
    assert min(errors) > 2 * TOLERANCE, errors


def test_asymmetric_blocks_carry_their_zero_points(make_toy: Callable[..., Toy], tools: Tools) -> None:
    """Without them the tests above would only see symmetric blocks."""
    toy = make_toy(precision="int4", exit_layers=EXITS, hot_vocab=256)
    stored = {name: s for (_, name), s in tools.stored(toy.folder).items()}
    zeros = stored["model.layers.0.mlp.down_proj.weight.zero_points"].read(toy.folder)
    values = np.unique(np.stack([zeros & 15, zeros >> 4]))
    assert len(values) > 3
