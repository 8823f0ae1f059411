"""What a pass has to do, whatever does it: the bytes of weights that it reads, and the operations on each row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .errors import ArtifactError
from .models.config import ModelConfig
from .models.manifest import WEIGHTS_NAME
from .runtime.artifact import Artifact
from .runtime.external_data import Place, external_tensors

_ROTARY = "rotary."  # how the exporter's tables are called


@dataclass(frozen=True, slots=True)
class Work:
    """``weight_bytes`` are read once a pass. ``operations`` of one row: two for each multiply-add of a matrix; not
    those of attention, which grow with the text."""

    weight_bytes: int
    operations: int


@dataclass(frozen=True, slots=True)
class Works:
    """``step``: a pass of the full model, of which ``head`` is the whole head's part. ``hot_head``: the hot head alone.
    ``exits``: exit layer → a draft step through it."""

    step: Work
    head: Work
    hot_head: Work
    exits: dict[int, Work]


def works(artifact: Artifact) -> Works:
    """Of every pass that is made of an artifact.

    Raises:
        ArtifactError: a graph is not what was exported.
    """
    manifest, model = artifact.manifest, artifact.manifest.model
    hot, layer = manifest.head.hot_graph, layer_operations(model)
    whole = [hot] if manifest.head.rest_graph is None else [hot, manifest.head.rest_graph]
    row = 2 * model.hidden_size
    head, hot_head = row * model.vocab_size, row * sum(stop - start for start, stop in manifest.head.hot_ranges)

    def below(exit_layer: int) -> list[str]:
        return [unit.graph for unit in manifest.units if unit.stop <= 2 * exit_layer]

    return Works(
        step=Work(weight_bytes(artifact, [*below(model.num_layers), *whole]), model.num_layers * layer + head),
        head=Work(weight_bytes(artifact, whole), head),
        hot_head=Work(weight_bytes(artifact, [hot]), hot_head),
        exits={
            k: Work(weight_bytes(artifact, [*below(k), hot]), k * layer + hot_head)
            for k in (*manifest.exit_layers, model.num_layers)
        },
    )


def layer_operations(model: ModelConfig) -> int:
    """Of a decoder layer's matrices on one row: q and o, k and v, and the three of the MLP."""
    queries, keys = model.num_attention_heads * model.head_dim, model.num_kv_heads * model.head_dim
    return 2 * model.hidden_size * (2 * queries + 2 * keys + 3 * model.intermediate_size)


def weight_bytes(artifact: Artifact, graphs: Sequence[str]) -> int:
    """Bytes of weights.bin that ``graphs`` refer to, each once, less rotary tables, of which rows are read.

    Raises:
        ArtifactError: a graph is not what was exported.
    """
    size = artifact.manifest.files[WEIGHTS_NAME].size
    places: list[Place] = []
    for graph in graphs:
        try:
            places += external_tensors(artifact.read(graph), size)
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
