"""How near plain decoding comes to what memory allows: a step reads every weight once, so it takes at least as long as
reading them does (Williams et al. 2009, with bandwidth as the only roof)."""

from __future__ import annotations

from collections.abc import Iterable

from .errors import ArtifactError
from .models.manifest import WEIGHTS_NAME
from .runtime.artifact import Artifact
from .runtime.external_data import Place, external_tensors

COUNTED = "weights of blocks and head, each once; not rotary tables, embedding and KV, of which rows are read"
_ROTARY = "rotary."  # how the exporter's tables are called


def step_bytes(artifact: Artifact) -> int:
    """Bytes of weights.bin that one plain step reads whole: what block and head graphs refer to, less rotary tables.

    Raises:
        ArtifactError: a graph is not what was exported.
    """
    manifest = artifact.manifest
    graphs = [*(unit.graph for unit in manifest.units), manifest.head.hot_graph]
    graphs += [] if manifest.head.rest_graph is None else [manifest.head.rest_graph]
    places: list[Place] = []
    for graph in graphs:
        try:
            places += external_tensors(artifact.read(graph), manifest.files[WEIGHTS_NAME].size)
        except ValueError as error:
            raise ArtifactError(f"{artifact.path / graph}: {error}; export the model again.") from error
    return covered_bytes(place for place in places if not place.name.startswith(_ROTARY))


def covered_bytes(places: Iterable[Place]) -> int:
    """How many bytes lie in at least one of them: a tensor of several graphs counts once."""
    covered = end = 0
    for start, stop in sorted((place.offset, place.offset + place.length) for place in places):
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    return covered


def roofline_fraction(read_bytes: int, step_seconds: float, bandwidth: float) -> float:
    """Bandwidth that a step reaches ÷ ``bandwidth`` (bytes a second). More than 1 where weights stay in a cache."""
    return read_bytes / (step_seconds * bandwidth)
