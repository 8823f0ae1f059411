"""A thin builder over onnx-ir: typed inputs, weight references into weights.bin, and serialisation.

Values are connected by identity; names exist for the graph's interface and for people who open it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx_ir as ir
from onnx_ir import tape

from .manifest import WEIGHTS_NAME
from .tensors import Segment

MICROSOFT = "com.microsoft"
SELFSPEC = "selfspec"
_OPSETS = {"": 21, MICROSOFT: 1, SELFSPEC: 1}
_IR_VERSION = 10
_DTYPES = {"float32": ir.DataType.FLOAT, "uint8": ir.DataType.UINT8}

Dims = Sequence[int | str]


class GraphBuilder:
    """Collects the nodes of one graph. ``op`` appends a node and returns its output value."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._tape = tape.Tape()
        self._inputs: list[ir.Value] = []
        self._outputs: list[ir.Value] = []
        self._weights: dict[str, ir.Value] = {}

    def input(self, name: str, dtype: ir.DataType, dims: Dims) -> ir.Value:
        value = ir.Value(name=name, type=ir.TensorType(dtype), shape=ir.Shape(dims))
        self._inputs.append(value)
        return value

    def output(self, name: str, value: ir.Value, dims: Dims, dtype: ir.DataType = ir.DataType.FLOAT) -> None:
        value.name, value.type, value.shape = name, ir.TensorType(dtype), ir.Shape(dims)
        self._outputs.append(value)

    def op(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> ir.Value:
        return self._tape.op(kind, inputs, attributes, domain=domain)

    def op_multi(
        self,
        kind: str,
        inputs: Sequence[ir.Value | None],
        num_outputs: int,
        attributes: Mapping[str, Any] | None = None,
        domain: str = "",
    ) -> Sequence[ir.Value]:
        return self._tape.op_multi_out(kind, inputs, attributes, num_outputs=num_outputs, domain=domain)

    def constant(self, value: float | Sequence[int]) -> ir.Value:
        """A float32 scalar or a list of int64, inside the graph."""
        if isinstance(value, float):
            return self.op("Constant", [], {"value_float": value})
        return self.op("Constant", [], {"value_ints": list(value)})

    def weight(self, name: str, segment: Segment, file: str = WEIGHTS_NAME) -> ir.Value:
        """A reference to bytes of ``file``; the same name twice is the same value."""
        if name not in self._weights:
            tensor = ir.ExternalTensor(
                file, segment.offset, segment.num_bytes, _DTYPES[segment.dtype],
                shape=ir.Shape(segment.shape), name=name,
            )  # fmt: skip
            self._weights[name] = self._tape.initializer(tensor, name)
        return self._weights[name]

    def save(self, path: Path) -> None:
        """Write the graph; it holds no weights, only their places."""
        domains = {"", *(node.domain for node in self._tape.nodes)}  # ONNX Runtime refuses what it was not given
        graph = ir.Graph(
            self._inputs, self._outputs, nodes=self._tape.nodes, initializers=self._tape.initializers,
            opset_imports={domain: _OPSETS[domain] for domain in sorted(domains)}, name=self.name,
        )  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            ir.to_proto(ir.Model(graph, ir_version=_IR_VERSION, producer_name="selfspec")).SerializeToString()
        )
