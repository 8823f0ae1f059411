"""The bytes of a step, and the fraction of the bandwidth that it reaches."""

from __future__ import annotations

from typing import Any

import pytest

from selfspec.errors import ArtifactError
from selfspec.models.manifest import WEIGHTS_NAME
from selfspec.roofline import covered_bytes, roofline_fraction, step_bytes
from selfspec.runtime.external_data import Place


def test_a_step_that_reads_at_half_the_bandwidth() -> None:
    """100 MB in 10 ms are 10 GB/s."""
    assert roofline_fraction(100_000_000, 0.010, 20e9) == pytest.approx(0.5)


def test_what_several_graphs_share_counts_once() -> None:
    places = [Place("a", 0, 10), Place("b", 20, 5), Place("a", 0, 10), Place("c", 8, 4), Place("d", 21, 2)]
    assert covered_bytes(places) == 12 + 5
    assert covered_bytes([]) == 0


def test_a_step_reads_blocks_and_head_and_neither_embedding_nor_rotary_tables(fp32: Any) -> None:
    """By the tensors' shapes: the toy is untied, so that its embedding is not its head."""
    spec = fp32.spec
    attention = 2 * spec.hidden * spec.heads * spec.head_dim + 2 * spec.hidden * spec.kv_heads * spec.head_dim
    layer = attention + 3 * spec.hidden * spec.ff + 2 * spec.hidden
    assert step_bytes(fp32.model.artifact) == 4 * (spec.layers * layer + spec.hidden + spec.vocab * spec.hidden)


def test_a_tied_head_is_read_whole(make_toy: Any, tools: Any) -> None:
    """Its bytes are the embedding's, of which a step looks up rows only."""
    tied, untied = (make_toy(tools.spec(tied=tied, layers=2), precision="fp32") for tied in (True, False))
    assert step_bytes(tied.model.artifact) == step_bytes(untied.model.artifact)


def test_quantised_weights_count_as_stored(toy: Any) -> None:
    """Never more than the file, and less than it by the embedding and the rotary tables at least."""
    artifact = toy.model.artifact
    rotary = 4 * toy.spec.head_dim * toy.spec.context
    assert 0 < step_bytes(artifact) < artifact.manifest.files[WEIGHTS_NAME].size - rotary


def test_a_graph_that_is_none_is_refused(fp32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(fp32.model.artifact), "read", lambda self, name: b"\xff" * 9)
    with pytest.raises(ArtifactError, match="export the model again"):
        step_bytes(fp32.model.artifact)
