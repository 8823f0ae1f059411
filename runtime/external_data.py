"""Where a graph file says that its weights lie, read before ONNX Runtime sees it.

ONNX Runtime 1.32 refuses places outside the artifact's folder by itself, but takes any file inside it. Here every
reference must be to a file that the manifest lists as weights, with an offset and a length that lie in it. A
walk over the few protobuf messages of ONNX (onnx.proto3) that lead to a tensor; everything else is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

_MAX_DEPTH = 32
_MAX_FIELD = 2**31  # protobuf's own limit on a length
# message → field number → message: the ways from a model to its tensors.
_CHILDREN = {
    "Model": {7: "Graph", 20: "TrainingInfo", 25: "Function"},
    "TrainingInfo": {1: "Graph", 2: "Graph"},
    "Function": {7: "Node", 11: "Attribute"},
    "Graph": {1: "Node", 5: "Tensor", 15: "SparseTensor"},
    "Node": {5: "Attribute"},
    "Attribute": {5: "Tensor", 6: "Graph", 10: "Tensor", 11: "Graph", 22: "SparseTensor", 23: "SparseTensor"},
    "SparseTensor": {1: "Tensor", 2: "Tensor"},
}
_NAME, _EXTERNAL_DATA, _DATA_LOCATION = 8, 13, 14  # fields of a TensorProto
_VARINT, _EIGHT_BYTES, _BYTES, _FOUR_BYTES = 0, 1, 2, 5


def check_external_data(graph: bytes, weights: Mapping[str, int]) -> None:
    """Every tensor that lies outside ``graph`` lies in one of ``weights``, file → bytes.

    Raises:
        ValueError: one does not, or ``graph`` is no protobuf message; says what was found.
    """
    for _ in external_tensors(graph, weights):
        pass


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor's bytes lie, and in which file. ``name`` is what its graph calls it, and promises nothing."""

    name: str
    file: str
    offset: int
    length: int


def external_tensors(graph: bytes, weights: Mapping[str, int]) -> Iterator[Place]:
    """Every tensor that lies outside ``graph``, each checked.

    Raises:
        ValueError: as :func:`check_external_data`.
    """
    return _walk(memoryview(graph), "Model", weights, 0)


def _walk(message: memoryview, kind: str, weights: Mapping[str, int], depth: int) -> Iterator[Place]:
    if depth > _MAX_DEPTH:
        raise ValueError("graphs are nested too deeply")
    if kind == "Tensor":
        yield from _place(message, weights)
        return
    children = _CHILDREN[kind]
    for number, value in _fields(message):
        if number in children and isinstance(value, memoryview):
            yield from _walk(value, children[number], weights, depth + 1)


def _place(tensor: memoryview, weights: Mapping[str, int]) -> Iterator[Place]:
    entries: list[tuple[str, str]] = []
    external, name = False, ""
    for number, value in _fields(tensor):
        if number == _EXTERNAL_DATA and isinstance(value, memoryview):
            pair = {part: text for part, text in _fields(value) if isinstance(text, memoryview)}
            key, text = (str(pair.get(part, b""), "utf-8") for part in (1, 2))
            entries.append((key, text))
        if number == _NAME and isinstance(value, memoryview):
            name = str(value, "utf-8", "replace")
        external |= number == _DATA_LOCATION and value != 0
    if not entries and not external:
        return
    place = dict(entries)
    if len(entries) != 3 or place.keys() != {"location", "offset", "length"}:
        raise ValueError("a tensor outside the graph must have a location, an offset and a length, and has not")
    file = place["location"]
    if file not in weights:
        raise ValueError(f"it takes weights from {file!r}, and only {', '.join(weights)} is allowed")
    if not all(
        place[key].isdecimal() and place[key].isascii() and len(place[key]) < 20 for key in ("offset", "length")
    ):
        raise ValueError("a tensor's place in the weights is no number")
    end = int(place["offset"]) + int(place["length"])
    if end > weights[file]:
        raise ValueError(f"a tensor ends at byte {end} of {file}, which has {weights[file]}")
    yield Place(name, file, int(place["offset"]), int(place["length"]))


def _fields(message: memoryview) -> Iterator[tuple[int, memoryview | int]]:
    """(field number, value) of every field; numbers as int, all that has a length as bytes."""
    at = 0
    while at < len(message):
        tag, at = _varint(message, at, 2**32)
        wire = tag & 7
        if wire == _VARINT:
            value, at = _varint(message, at, 2**64)
            yield tag >> 3, value
            continue
        if wire == _BYTES:
            size, at = _varint(message, at, _MAX_FIELD)
        elif wire in (_EIGHT_BYTES, _FOUR_BYTES):
            size = 8 if wire == _EIGHT_BYTES else 4
        else:
            raise ValueError("it is no ONNX graph")
        if size > len(message) - at:
            raise ValueError("it is cut short")
        yield tag >> 3, message[at : at + size]
        at += size


def _varint(message: memoryview, at: int, limit: int) -> tuple[int, int]:
    """(value, position after it); ``value`` is below ``limit``."""
    value = shift = 0
    while at < len(message) and shift < 70:
        byte = message[at]
        value |= (byte & 0x7F) << shift
        shift, at = shift + 7, at + 1
        if byte < 0x80:
            if value >= limit:
                break
            return value, at
    raise ValueError("it is no ONNX graph")
