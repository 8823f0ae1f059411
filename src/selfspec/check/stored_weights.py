"""Reads an artifact's matrices back as float32, the way its graphs describe them.

Written against the ONNX operators' own definitions and not with the exporter's code, so that one checks the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from ..models.manifest import Manifest
from ..models.sublayers import layer_sublayers
from ..runtime.arrays import Floats
from ..runtime.route import fewest_units


def dequantized_linears(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Floats]]:
    """(tensor name, [out, in]) of every matrix that a graph multiplies by; a head comes in slices, name[start:stop]."""
    units = fewest_units(manifest.units, layer_sublayers(0, manifest.model.num_layers))
    for graph in [*(unit.graph for unit in units), *(graph for graph, _ in manifest.whole_head)]:
        yield from matrices_of(folder, graph)


def matrices_of(folder: Path, graph: str) -> Iterator[tuple[str, Floats]]:
    """The same of one graph of ``folder``."""
    for node in ir.load(folder / graph).graph:
        yield from _matrices(node, folder)


def _matrices(node: ir.Node, folder: Path) -> Iterator[tuple[str, Floats]]:
    """The matrices that ``node`` multiplies by, most often none."""
    if node.op_type == "FusedMatMul":
        yield str(_value(node, 1).name), _read(_value(node, 1), folder).astype(np.float32)
    elif node.op_type == "MatMulNBits":
        yield _name(node, 1), _blocks(node, folder)
    elif node.op_type == "MatMulTiles":
        yield _tiles(node, 1, folder, _integer(node, "N"), _integer(node, "K"), "bits")
    elif node.op_type == "GatedMLPTiles":
        inner = _integer(node, "I")
        yield _tiles(node, 1, folder, 2 * inner, _integer(node, "K"), "bits")
        yield _tiles(node, 2, folder, _integer(node, "N"), inner, "down_bits")
    elif node.op_type == "SparseMLPTiles":
        inner, experts = _integer(node, "I"), _integer(node, "num_experts")
        yield _tiles(node, 3, folder, experts * 2 * inner, _integer(node, "K"), "bits")
        yield _tiles(node, 4, folder, experts * _integer(node, "N"), inner, "down_bits")
    elif node.op_type == "MoE":
        yield _name(node, 2), _apart(_read(_value(node, 2), folder).astype(np.float32))
        down = _read(_value(node, 4), folder).astype(np.float32)
        yield _name(node, 4), down.reshape(-1, down.shape[-1])
    elif node.op_type == "QMoE":
        bits, size = _integer(node, "expert_weight_bits"), _integer(node, "block_size")
        gate_up, down = (_experts(node, folder, inputs, bits, size) for inputs in ((2, 3, 11), (5, 6, 12)))
        yield _name(node, 2), _apart(gate_up)
        yield _name(node, 5), down.reshape(-1, down.shape[-1])


def _name(node: ir.Node, index: int) -> str:
    return str(_value(node, index).name).removesuffix(".codes")


def _apart(paired: Floats) -> Floats:
    """[E, 2 · width, d] of alternating rows of gate and up → [E · 2 · width, d], an expert's gate first."""
    experts, rows, cols = paired.shape
    return paired.reshape(experts, rows // 2, 2, cols).transpose(0, 2, 1, 3).reshape(-1, cols)


def _experts(node: ir.Node, folder: Path, inputs: tuple[int, int, int], bits: int, size: int) -> Floats:
    """[E, out, in] of an operand of QMoE: its codes, scales and, where there are some, zero points."""
    codes, scales = (_read(_value(node, index), folder) for index in inputs[:2])
    zeros = node.inputs[inputs[2]] if inputs[2] < len(node.inputs) else None
    rows = codes.shape[0] * codes.shape[1]
    flat = None if zeros is None else _read(zeros, folder).reshape(rows, -1)
    return _dequantized(codes.reshape(rows, -1), scales.reshape(rows, -1), flat, bits, size).reshape(
        *codes.shape[:2], -1
    )


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"{node.op_type} lacks input {index}")
    return value


def _integer(node: ir.Node, name: str) -> int:
    return node.attributes[name].as_int()


def _blocks(node: ir.Node, folder: Path) -> Floats:
    """A matrix in MatMulNBits' layout."""
    rows, cols = _integer(node, "N"), _integer(node, "K")
    codes, scales = (_read(_value(node, index), folder).reshape(rows, -1) for index in (1, 2))
    zeros = _read(_value(node, 3), folder).reshape(rows, -1) if len(node.inputs) > 3 else None
    return _dequantized(codes, scales, zeros, _integer(node, "bits"), _integer(node, "block_size"))[:, :cols]


def _dequantized(
    codes: NDArray[np.generic], scales: NDArray[np.generic], zeros: NDArray[np.generic] | None, bits: int, size: int
) -> Floats:
    """[rows, columns] of packed codes and zero points, and of scales, each [rows, ...]."""
    grouped = _unpack(codes, bits).reshape(*scales.shape, size).astype(np.float32)
    middle: NDArray[np.float32] | float = float(2 ** (bits - 1))
    if zeros is not None:
        middle = _unpack(zeros, bits)[:, : scales.shape[1], None].astype(np.float32)
    weights = (grouped - middle) * scales.astype(np.float32)[..., None]
    return np.asarray(weights, dtype=np.float32).reshape(len(codes), -1)


def _tiles(node: ir.Node, index: int, folder: Path, rows: int, cols: int, bits_name: str) -> tuple[str, Floats]:
    """(name, matrix) of an input in the layout of kernels/src/tiles.h, read element by element as that file says."""
    value, bits = _value(node, index), _integer(node, bits_name)
    raw = _read(value, folder).astype(np.uint8).reshape(rows // 8, cols // 32, -1)
    k, row = np.meshgrid(np.arange(32), np.arange(8))  # both [8 rows, 32 columns]
    shift = (4 * (k // 16)).astype(np.uint8)
    group = k % 16 // 4 if bits == 4 else k // 4
    found = raw[..., 32 * group + 4 * row + k % 4]
    codes = found >> shift & np.uint8(15) if bits == 4 else found
    halves = raw[..., 32 * bits :].copy().view("<f2").astype(np.float32)
    scales = halves[..., :8, None]
    minima = halves[..., 8:, None] if halves.shape[-1] == 16 else -(2.0 ** (bits - 1)) * scales
    weights = (codes * scales + minima).astype(np.float32)  # [tile, block, row, column]
    return str(value.name).removesuffix(".tiles"), weights.transpose(0, 2, 1, 3).reshape(rows, cols)


def _read(value: ir.Value, folder: Path) -> NDArray[np.generic]:
    tensor = value.const_value
    if not isinstance(tensor, ir.ExternalTensor) or tensor.offset is None:
        raise ValueError(f"{value.name} is not stored in the weights file")
    dtype = np.dtype(tensor.dtype.numpy())
    count = int(np.prod(tensor.shape.numpy()))
    data = np.fromfile(folder / tensor.location, dtype=dtype, count=count, offset=tensor.offset)
    return data.reshape(tensor.shape.numpy())


def _unpack(packed: NDArray[np.generic], bits: int) -> NDArray[np.uint8]:
    data = packed.astype(np.uint8)
    if bits == 8:
        return data
    return np.stack([data & 0xF, data >> 4], axis=-1).reshape(len(data), -1)
