"""What a pass has to do, whatever does it: the bytes of weights that it reads, and the operations on each row.

Of experts, those of one row: what more rows read beside it depends on the text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import accumulate

from ..errors import ArtifactError
from ..models.config import ModelConfig
from ..models.sublayers import layer_sublayers
from ..runtime.artifact import Artifact
from ..runtime.external_data import Place, external_tensors
from ..runtime.route import fewest_units

_ROTARY = "rotary."  # how the exporter's tables are called
_EXPERTS = ".mlp.experts."  # and the matrices of all experts of a layer
_ALL = Fraction(1)


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


def works(artifact: Artifact, experts: int | None = None) -> Works:
    """Of every pass that is made of an artifact.

    Args:
        experts: how many run for a token, where the model has any; as many as it says by default.

    Raises:
        ArtifactError: a graph is not what was exported.
    """
    manifest, model = artifact.manifest, artifact.manifest.model
    hot, share = manifest.head.hot_graph, _share(model, experts)
    layers = list(accumulate((layer_operations(model, i, experts) for i in range(model.num_layers)), initial=0))
    whole = [hot] if manifest.head.rest_graph is None else [hot, manifest.head.rest_graph]
    row = 2 * model.hidden_size
    head, hot_head = row * model.vocab_size, row * sum(stop - start for start, stop in manifest.head.hot_ranges)

    def below(exit_layer: int) -> list[str]:
        return [unit.graph for unit in fewest_units(manifest.units, layer_sublayers(0, exit_layer))]

    return Works(
        step=Work(weight_bytes(artifact, [*below(model.num_layers), *whole], share), layers[-1] + head),
        head=Work(weight_bytes(artifact, whole), head),
        hot_head=Work(weight_bytes(artifact, [hot]), hot_head),
        exits={
            k: Work(weight_bytes(artifact, [*below(k), hot], share), layers[k] + hot_head)
            for k in (*manifest.exit_layers, model.num_layers)
        },
    )


def _share(model: ModelConfig, experts: int | None) -> Fraction:
    """Of a layer's experts, the share that a row runs."""
    if model.moe is None:
        return Fraction(1)
    return Fraction(experts or model.moe.experts_per_token, model.moe.num_experts)


def layer_operations(model: ModelConfig, layer: int, experts: int | None) -> int:
    """Of a decoder layer's matrices on one row: q and o, k and v, and the three of the MLP or of each expert."""
    queries, keys = model.num_attention_heads * model.head_dim, model.num_kv_heads * model.head_dim
    widths, moe = 3 * model.intermediate_size, model.moe
    if moe is not None and layer in moe.layers:
        widths = 3 * ((experts or moe.experts_per_token) * moe.expert_size + moe.shared_size) + moe.num_experts
    return 2 * model.hidden_size * (2 * queries + 2 * keys + widths)


def weight_bytes(artifact: Artifact, graphs: Sequence[str], share: Fraction = _ALL) -> int:
    """Bytes of weights that ``graphs`` refer to, each once, less rotary tables, of which rows are read; of experts,
    ``share``, with what their width is padded by.

    Raises:
        ArtifactError: a graph is not what was exported.
    """
    places: list[Place] = []
    for graph in graphs:
        try:
            places += external_tensors(artifact.read(graph), artifact.manifest.weight_sizes)
        except ValueError as error:
            raise ArtifactError(f"{artifact.path / graph}: {error}; export the model again.") from error
    read = [place for place in places if not place.name.startswith(_ROTARY)]
    experts = covered_bytes(place for place in read if _EXPERTS in place.name)
    return covered_bytes(place for place in read if _EXPERTS not in place.name) + int(experts * share)


def covered_bytes(places: Iterable[Place]) -> int:
    """How many bytes lie in at least one of them: a tensor of several graphs counts once."""
    covered, reached = 0, ("", 0)
    for start, stop in sorted(((p.file, p.offset), (p.file, p.offset + p.length)) for p in places):
        begin = max(start, reached) if reached[0] == start[0] else start
        covered += max(0, stop[1] - begin[1])
        reached = max(reached, stop)
    return covered
