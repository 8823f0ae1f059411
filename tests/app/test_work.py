"""The bytes and the operations of passes."""

from __future__ import annotations

from typing import Any

import pytest

from selfspec.bench.work import covered_bytes, works
from selfspec.errors import ArtifactError
from selfspec.models.manifest import WEIGHTS_NAME
from selfspec.runtime.external_data import Place


def _step_bytes(toy: Any) -> int:
    return works(toy.model.artifact).step.weight_bytes


def test_what_several_graphs_share_counts_once() -> None:
    places = [Place("x", "w.bin", start, size) for start, size in ((0, 10), (20, 5), (0, 10), (8, 4), (21, 2))]
    assert covered_bytes(places) == 12 + 5
    assert covered_bytes([*places, Place("x", "head.bin", 0, 10), Place("y", "head.bin", 5, 6)]) == 12 + 5 + 11
    assert covered_bytes([]) == 0


def test_a_step_reads_blocks_and_head_and_neither_embedding_nor_rotary_tables(fp32: Any) -> None:
    """By the tensors' shapes: the toy is untied, so that its embedding is not its head."""
    spec = fp32.spec
    attention = 2 * spec.hidden * spec.heads * spec.head_dim + 2 * spec.hidden * spec.kv_heads * spec.head_dim
    layer = attention + 3 * spec.hidden * spec.ff + 2 * spec.hidden
    assert works(fp32.model.artifact).step.weight_bytes == 4 * (
        spec.layers * layer + spec.hidden + spec.vocab * spec.hidden
    )


def test_a_tied_head_is_read_whole(make_toy: Any, tools: Any) -> None:
    """Its bytes are the embedding's, of which a step looks up rows only."""
    tied, untied = (make_toy(tools.spec(tied=tied, layers=2), precision="fp32") for tied in (True, False))
    assert _step_bytes(tied) == _step_bytes(untied)


def test_quantised_weights_count_as_stored(toy: Any) -> None:
    """Never more than the file, and less than it by the embedding and the rotary tables at least."""
    artifact = toy.model.artifact
    rotary = 4 * toy.spec.head_dim * toy.spec.context
    assert 0 < works(artifact).step.weight_bytes < artifact.manifest.files[WEIGHTS_NAME].size - rotary


def test_a_graph_that_is_none_is_refused(fp32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fp32.model.artifact), "read", lambda self, name: b"\xff" * 9)
    with pytest.raises(ArtifactError, match="export the model again"):
        works(fp32.model.artifact)


def test_operations_are_two_a_weight_of_each_matrix(fp32: Any) -> None:
    """By the toy's shapes; norms and attention are none. Twice the elements that a float32 step reads, less norms."""
    spec, found = fp32.spec, works(fp32.model.artifact)
    layer = 2 * spec.hidden * spec.head_dim * (spec.heads + spec.kv_heads) + 3 * spec.hidden * spec.ff
    assert found.step.operations == 2 * (spec.layers * layer + spec.vocab * spec.hidden)
    norms = spec.layers * 2 * spec.hidden + spec.hidden
    assert found.step.operations == 2 * (found.step.weight_bytes // 4 - norms)
    assert found.head.operations == 2 * spec.vocab * spec.hidden


def test_an_exit_is_its_layers_and_the_hot_head(fp32: Any) -> None:
    spec, found = fp32.spec, works(fp32.model.artifact)
    assert sorted(found.exits) == [*fp32.model.artifact.manifest.exit_layers, spec.layers]
    layer = (found.step.operations - found.head.operations) // spec.layers
    bytes_of_layer = (found.step.weight_bytes - found.head.weight_bytes) // spec.layers
    for k, work in found.exits.items():
        assert work.operations == k * layer + found.hot_head.operations
        assert work.weight_bytes == k * bytes_of_layer + found.hot_head.weight_bytes
    assert 0 < found.hot_head.operations <= found.head.operations


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_of_experts_a_step_reads_those_that_run(make_toy: Any, tools: Any, precision: str) -> None:
    """8 experts, 4 a token in two layers: one expert fewer is an eighth of their bytes and operations fewer."""
    toy = make_toy(tools.spec(family="olmoe", layers=2), precision=precision)
    spec, stored = toy.spec, tools.stored(toy.folder)
    all_experts = sum({s.offset: s.length for (_, name), s in stored.items() if ".mlp.experts." in name}.values())
    one, four = works(toy.model.artifact, 1).step, works(toy.model.artifact).step
    assert four.weight_bytes - one.weight_bytes == 3 * all_experts // 8
    assert four.operations - one.operations == 2 * 2 * 3 * 3 * spec.ff * spec.hidden
    router = 8 * spec.hidden
    attention = 2 * spec.hidden * spec.head_dim * (spec.heads + spec.kv_heads)
    assert one.operations == 2 * (2 * (attention + router + 3 * spec.ff * spec.hidden) + spec.vocab * spec.hidden)
