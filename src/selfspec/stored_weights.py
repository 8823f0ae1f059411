"""Reads an artifact's matrices back as float32, the way its graphs describe them.

Written against the ONNX operators' own definitions and not with the exporter's code, so that one checks the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx_ir as ir
from numpy.typing import NDArray

from .models.manifest import Manifest

Floats = NDArray[np.float32]


def dequantized_linears(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Floats]]:
    """(tensor name, [out, in]) of every matrix that a graph multiplies by; a head comes in slices, name[start:stop]."""
    heads = [manifest.head.hot_graph] + ([manifest.head.rest_graph] if manifest.head.rest_graph else [])
    for graph in [*(unit.graph for unit in manifest.units), *heads]:
        model = ir.load(folder / graph)
        for node in model.graph:
            if node.op_type in ("MatMulNBits", "FusedMatMul"):
                yield _name(node), _matrix(node, folder)


def _name(node: ir.Node) -> str:
    return str(_value(node, 1).name).removesuffix(".codes")


def _value(node: ir.Node, index: int) -> ir.Value:
    value = node.inputs[index]
    if value is None:
        raise ValueError(f"{node.op_type} lacks input {index}")
    return value


def _matrix(node: ir.Node, folder: Path) -> Floats:
    if node.op_type == "FusedMatMul":
        return _read(_value(node, 1), folder).astype(np.float32)
    bits, size = node.attributes["bits"].as_int(), node.attributes["block_size"].as_int()
    rows, cols = node.attributes["N"].as_int(), node.attributes["K"].as_int()
    codes = _unpack(_read(_value(node, 1), folder).reshape(rows, -1), bits).reshape(rows, -1, size)
    scales = _read(_value(node, 2), folder).astype(np.float32)[..., None]
    zeros: NDArray[np.float32] | float = float(2 ** (bits - 1))
    if len(node.inputs) > 3:
        packed = _unpack(_read(_value(node, 3), folder).reshape(rows, -1), bits)
        zeros = packed[:, : codes.shape[1], None].astype(np.float32)
    weights = (codes.astype(np.float32) - zeros) * scales
    return np.asarray(weights, dtype=np.float32).reshape(rows, -1)[:, :cols]


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
