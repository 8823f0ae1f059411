"""The partition: how the stack is cut into graphs, and the files that result."""

from __future__ import annotations

import itertools
from pathlib import Path

import onnx_ir as ir

from ..errors import UsageError
from ..models.components import Kernels
from ..models.config import ModelConfig
from ..models.family import Family, Weights
from ..models.graph import GraphBuilder
from ..models.interface import HIDDEN, HIDDEN_OUT, INPUT_IDS, logits_name
from ..models.manifest import Head, Unit
from ..models.sublayers import layer_sublayers, split_sublayer
from .vocabulary import Ranges

_FOLDER = "graphs/cpu"


def default_exit_layers(num_layers: int) -> tuple[int, ...]:
    """L·{1/2, 2/3, 3/4, 5/6} rounded down, without duplicates, 0 and L."""
    layers = {num_layers * top // bottom for top, bottom in ((1, 2), (2, 3), (3, 4), (5, 6))}
    return tuple(sorted(k for k in layers if 0 < k < num_layers))


def cut(num_layers: int, exit_layers: tuple[int, ...] | None, kind: str) -> tuple[tuple[Unit, ...], tuple[int, ...]]:
    """(block graphs, exit layers) of the partition ``kind``: 'exits' cuts at the exit layers, 'sublayer' everywhere,
    and 'both' has the graphs of either, over the same weights, with the exits of the first.

    Raises:
        UsageError: an exit layer is not between 1 and ``num_layers - 1``.
    """
    if kind == "sublayer":
        if exit_layers is not None:
            raise UsageError("`partition` sublayer makes every layer an exit; leave `exit_layers` out.", "exit_layers")
        return _sublayer_units(num_layers), tuple(range(1, num_layers))
    exits = default_exit_layers(num_layers) if exit_layers is None else tuple(sorted(set(exit_layers)))
    for layer in exits:
        if not 0 < layer < num_layers:
            raise UsageError(
                f"`exit_layers` {layer}: it must be between 1 and {num_layers - 1} for this model.", "exit_layers"
            )
    edges = [0, *exits, num_layers]
    spans = itertools.pairwise(edges)
    blocks = tuple(Unit.of_layers(f"{_FOLDER}/block_{a:03d}_{b:03d}.onnx", a, b) for a, b in spans)
    return (blocks + _sublayer_units(num_layers) if kind == "both" else blocks), exits


def _sublayer_units(num_layers: int) -> tuple[Unit, ...]:
    return tuple(map(_sublayer_unit, layer_sublayers(0, num_layers)))


def _sublayer_unit(index: int) -> Unit:
    layer, is_mlp = split_sublayer(index)
    return Unit(f"{_FOLDER}/layer_{layer:03d}_{'mlp' if is_mlp else 'attention'}.onnx", index, index + 1)


def write_graphs(
    root: Path,
    family: Family,
    kernels: Kernels,
    config: ModelConfig,
    weights: Weights,
    units: tuple[Unit, ...],
    hot: Ranges,
    rest: Ranges,
) -> tuple[str, Head]:
    """Write every graph below ``root``; returns the embed graph's path and the head's description."""
    embed = GraphBuilder("embed")
    ids = embed.input(INPUT_IDS, ir.DataType.INT64, [1, "rows"])
    embed.output(HIDDEN_OUT, family.embed(embed, kernels, config, weights, ids), _hidden(config))
    embed.save(root / _FOLDER / "embed.onnx")
    for unit in units:
        g = GraphBuilder(Path(unit.graph).stem)
        hidden = g.input(HIDDEN, ir.DataType.FLOAT, _hidden(config))
        out = family.sublayers(g, kernels, config, weights, hidden, unit.start, unit.stop)
        g.output(HIDDEN_OUT, out, _hidden(config))
        g.save(root / unit.graph)
    head = Head(f"{_FOLDER}/head_hot.onnx", f"{_FOLDER}/head_rest.onnx" if rest else None, hot, rest)
    for graph, ranges in ((head.hot_graph, hot), (head.rest_graph, rest)):
        if graph is not None:
            _write_head(root / graph, family, kernels, config, weights, ranges)
    return f"{_FOLDER}/embed.onnx", head


def _write_head(
    path: Path, family: Family, kernels: Kernels, config: ModelConfig, weights: Weights, ranges: Ranges
) -> None:
    g = GraphBuilder(path.stem)
    hidden = g.input(HIDDEN, ir.DataType.FLOAT, _hidden(config))
    logits = family.head(g, kernels, config, weights, hidden, ranges)
    for index, (value, (start, stop)) in enumerate(zip(logits, ranges, strict=True)):
        g.output(logits_name(index), value, [1, "rows", stop - start])
    g.save(path)


def _hidden(config: ModelConfig) -> list[int | str]:
    return [1, "rows", config.hidden_size]
