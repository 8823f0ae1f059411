"""Reads the header of a GGUF file value by value and compares every count, length and offset with the file's size.

GGUFReader believes what a header says and allocates accordingly; it sees a file only after this.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path
from typing import BinaryIO

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, GGUFValueType

from ..errors import CheckpointError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_MAX_KEY_BYTES, _MAX_TEXT_BYTES = 2**16, 2**26
_MAX_DIMENSIONS = 4
_MAX_ELEMENTS = 2**22  # of all arrays together: GGUFReader makes an object of each
_LEAST_FIELD, _LEAST_TENSOR = 8 + 4 + 1, 8 + 4 + 8 + 4 + 8  # bytes that one takes in the file at least
_SCALARS = {
    GGUFValueType.UINT8: 1, GGUFValueType.INT8: 1, GGUFValueType.BOOL: 1, GGUFValueType.UINT16: 2,
    GGUFValueType.INT16: 2, GGUFValueType.UINT32: 4, GGUFValueType.INT32: 4, GGUFValueType.FLOAT32: 4,
    GGUFValueType.UINT64: 8, GGUFValueType.INT64: 8, GGUFValueType.FLOAT64: 8,
}  # fmt: skip
_ALIGNMENT = b"general.alignment"


_OTHERS = {  # how a file begins → what it is, and what to do
    b"version https://git-lfs": "a Git LFS pointer, which only names the model; fetch the model (git lfs pull)",
    b"<!doctype": "a web page saved under this name; download the model itself",
    b"<html": "a web page saved under this name; download the model itself",
    b"tjgg": "a file of llama.cpp's format before GGUF; download the model as GGUF",
    b"fmgg": "a file of llama.cpp's format before GGUF; download the model as GGUF",
    b"lmgg": "a file of llama.cpp's format before GGUF; download the model as GGUF",
    b"PK": "a zip file, which may hold pickled weights and is never opened; download the model as safetensors or GGUF",
}


def check_is_gguf(path: Path) -> None:
    """``path`` begins as a GGUF file does, whatever its name.

    Raises:
        CheckpointError: it does not; says what it is instead, where that can be seen.
    """
    try:
        with path.open("rb") as file:
            start = file.read(256)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read ({error}).") from error
    if start.startswith(_MAGIC):
        return
    words = start.lstrip().lower()
    what = next((what for begin, what in _OTHERS.items() if words.startswith(begin.lower())), None)
    if not start:
        what = "empty and no GGUF file; download it again"
    elif path.suffix == ".safetensors":
        what = "a .safetensors file; pass the folder that holds it, with its config.json"
    elif what is None:
        what = "no GGUF file, which begins with the letters GGUF; give a model folder, a GGUF file or a hub id"
    raise CheckpointError(f"{path} is {what}.")


def check_gguf_header(path: Path) -> None:
    """Everything that a reader will take from the header of ``path`` lies inside the file.

    Raises:
        CheckpointError: something does not, or is of a kind that no model file holds; says what.
    """
    try:
        with path.open("rb") as file:
            _Header(file, path.stat().st_size).check()
    except (ValueError, OSError) as error:
        raise CheckpointError(f"{path} is not a complete GGUF file ({error}); download it again.") from error


class _Header:
    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size
        self._elements = 0
        self._alignment = 32

    def check(self) -> None:
        """Raises: ValueError says what is wrong."""
        if self._take(4, "the magic number") != _MAGIC:
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I", "the version")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise ValueError("it is big-endian, made for another kind of processor: take a little-endian one")
        if version not in _VERSIONS:
            raise ValueError(f"it is of version {version}, and {' and '.join(map(str, _VERSIONS))} can be read")
        tensors, fields = self._number("<Q", "the tensor count"), self._number("<Q", "the field count")
        self._room(fields, _LEAST_FIELD, "metadata fields")
        for _ in range(fields):
            self._field()
        self._room(tensors, _LEAST_TENSOR, "tensors")
        ends = [self._tensor() for _ in range(tensors)]
        start = -(-self._file.tell() // self._alignment) * self._alignment
        if ends and start + max(ends) > self._size:
            raise ValueError(f"a tensor ends at byte {start + max(ends)}, the file at {self._size}")

    def _field(self) -> None:
        key = self._text(_MAX_KEY_BYTES, "a metadata key")
        kind = self._kind()
        if key == _ALIGNMENT:
            self._alignment = self._number("<I", "the alignment")
            if kind is not GGUFValueType.UINT32 or not 0 < self._alignment <= 2**20 or self._alignment.bit_count() != 1:
                raise ValueError(f"its alignment is {self._alignment}, where a power of two was expected")
        elif kind is GGUFValueType.ARRAY:
            self._array()
        else:
            self._value(kind)

    def _array(self) -> None:
        kind, count = self._kind(), self._number("<Q", "an array's length")
        if kind is GGUFValueType.ARRAY:
            raise ValueError("it holds an array of arrays")
        self._room(count, 8 if kind is GGUFValueType.STRING else _SCALARS[kind], "array elements")
        self._elements += count
        if self._elements > _MAX_ELEMENTS:
            raise ValueError(f"its arrays hold more than {_MAX_ELEMENTS} elements")
        if kind is GGUFValueType.STRING:
            for _ in range(count):
                self._skip_text()
        else:
            self._file.seek(count * _SCALARS[kind], 1)

    def _value(self, kind: GGUFValueType) -> None:
        if kind is GGUFValueType.STRING:
            self._skip_text()
        else:
            self._take(_SCALARS[kind], "a metadata value")

    def _tensor(self) -> int:
        """Read one entry of the tensor table; returns where its data ends, counted from the start of all data."""
        name = self._text(_MAX_KEY_BYTES, "a tensor's name").decode("utf-8", "replace")
        count = self._number("<I", "a tensor's dimensions")
        if not 0 < count <= _MAX_DIMENSIONS:
            raise ValueError(f"tensor {name!r} has {count} dimensions")
        shape = struct.unpack(f"<{count}Q", self._take(8 * count, "a tensor's shape"))
        code, offset = self._number("<I", "a tensor's type"), self._number("<Q", "a tensor's offset")
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(code)]
        except (ValueError, KeyError):
            raise ValueError(f"tensor {name!r} is of the unknown type {code}") from None
        if shape[0] % block or 0 in shape:
            raise ValueError(f"tensor {name!r} has the impossible shape {list(shape)}")
        if offset % self._alignment:
            raise ValueError(f"tensor {name!r} begins at the odd offset {offset}")
        return offset + int(math.prod(shape)) // block * block_bytes

    def _kind(self) -> GGUFValueType:
        code = self._number("<I", "a value's type")
        try:
            return GGUFValueType(code)
        except ValueError:
            raise ValueError(f"it holds a value of the unknown type {code}") from None

    def _text(self, limit: int, what: str) -> bytes:
        length = self._number("<Q", what)
        if length > limit:
            raise ValueError(f"{what} has {length} bytes")
        return self._take(length, what)

    def _skip_text(self) -> None:
        length = self._number("<Q", "a text's length")
        self._room(length, 1, "bytes of text")
        if length > _MAX_TEXT_BYTES:
            raise ValueError(f"a text has {length} bytes")
        self._file.seek(length, 1)

    def _number(self, form: str, what: str) -> int:
        return int(struct.unpack(form, self._take(struct.calcsize(form), what))[0])

    def _take(self, count: int, what: str) -> bytes:
        data = self._file.read(count)
        if len(data) != count:
            raise ValueError(f"it ends within {what}")
        return data

    def _room(self, count: int, least: int, what: str) -> None:
        left = self._size - self._file.tell()
        if count * least > left:
            raise ValueError(f"it names {count} {what}, and {left} bytes are left")
