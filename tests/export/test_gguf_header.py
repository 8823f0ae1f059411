"""GGUF headers by hand: every count, length and offset is held against the file before anything is allocated."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import CheckpointError
from selfspec.export.gguf_header import check_gguf_header

U32, F32, STRING, ARRAY, U64 = 4, 6, 8, 9, 10  # the format's codes of value types


def text(value: bytes) -> bytes:
    return struct.pack("<Q", len(value)) + value


def field(key: bytes, kind: int, value: bytes) -> bytes:
    return text(key) + struct.pack("<I", kind) + value


def array(kind: int, count: int, data: bytes) -> bytes:
    return struct.pack("<IQ", kind, count) + data


def tensor(name: bytes = b"w", shape: tuple[int, ...] = (32, 2), kind: int = 0, offset: int = 0) -> bytes:
    dims = struct.pack(f"<{len(shape)}Q", *shape)
    return text(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", kind, offset)


def header(fields: list[bytes], tensors: list[bytes], *, magic: bytes = b"GGUF", version: int = 3) -> bytes:
    counts = struct.pack("<IQQ", version, len(tensors), len(fields))
    return magic + counts + b"".join(fields) + b"".join(tensors)


def with_data(head: bytes, count: int, alignment: int = 32) -> bytes:
    return head + bytes(-len(head) % alignment) + bytes(count)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "x.gguf"


def checked(path: Path, data: bytes) -> None:
    path.write_bytes(data)
    check_gguf_header(path)


GOOD = header(
    [
        field(b"a", U32, struct.pack("<I", 7)),
        field(b"b", STRING, text("grün".encode())),
        field(b"c", ARRAY, array(STRING, 2, text(b"x") + text(b""))),
        field(b"d", ARRAY, array(F32, 3, bytes(12))),
        field(b"general.alignment", U32, struct.pack("<I", 64)),
    ],
    [tensor(), tensor(b"q", (64,), 8, 256), tensor(b"h", (2, 2, 2, 2), 1, 384)],  # F32, Q8_0, F16
)


def test_a_header_that_holds_together_passes_to_the_last_byte(path: Path) -> None:
    """By hand: tensors of 256, 68 and 32 bytes at 0, 256 and 384 end 416 bytes after the header's padding to 64."""
    checked(path, with_data(GOOD, 416, 64))
    with pytest.raises(CheckpointError, match="a tensor ends at byte"):
        checked(path, with_data(GOOD, 415, 64))


def test_every_shorter_header_is_refused(path: Path) -> None:
    """A download that broke off, at whatever byte."""
    for cut in range(len(GOOD)):
        with pytest.raises(CheckpointError, match="not a complete GGUF file"):
            checked(path, GOOD[:cut])


HUGE = 2**63
BROKEN = {
    "magic": (header([], [], magic=b"GGML"), "begin with GGUF"),
    "version 1": (header([], [], version=1), "version 1"),
    "big-endian": (header([], [], version=3 << 24), "big-endian"),
    "fields": (b"GGUF" + struct.pack("<IQQ", 3, 0, HUGE), "metadata fields"),
    "tensors": (b"GGUF" + struct.pack("<IQQ", 3, HUGE, 0), "tensors"),
    "key": (header([struct.pack("<Q", HUGE)], []) + bytes(20), "a metadata key has"),
    "text": (header([field(b"a", STRING, struct.pack("<Q", HUGE))], []), "bytes of text"),
    "array": (header([field(b"a", ARRAY, struct.pack("<IQ", U64, HUGE))], []), "array elements"),
    "array of texts": (header([field(b"a", ARRAY, struct.pack("<IQ", STRING, 100))], []), "array elements"),
    "array of arrays": (header([field(b"a", ARRAY, array(ARRAY, 1, array(U32, 0, b"")))], []), "array of arrays"),
    "value type": (header([field(b"a", 99, bytes(8))], []), "unknown type 99"),
    "array type": (header([field(b"a", ARRAY, struct.pack("<IQ", 99, 1))], []), "unknown type 99"),
    "alignment 0": (header([field(b"general.alignment", U32, bytes(4))], []), "alignment is 0"),
    "alignment 48": (header([field(b"general.alignment", U32, struct.pack("<I", 48))], []), "alignment is 48"),
    "alignment of 2 GB": (header([field(b"general.alignment", U32, struct.pack("<I", 2**31))], []), "alignment is"),
    "dimensions": (header([], [text(b"w") + struct.pack("<I", 2**32 - 1) + bytes(40)]), "dimensions"),
    "no dimensions": (header([], [tensor(shape=())]) + bytes(99), "0 dimensions"),
    "product that overflows": (header([], [tensor(shape=(2**32, 2**32))]) + bytes(999), "ends at byte"),
    "product that overflows to nothing": (header([], [tensor(shape=(2**62, 4))]) + bytes(999), "ends at byte"),
    "empty": (header([], [tensor(shape=(32, 0))]) + bytes(999), "impossible shape"),
    "half a block": (header([], [tensor(shape=(33,), kind=8)]) + bytes(999), "impossible shape"),
    "tensor type": (header([], [tensor(kind=250)]) + bytes(999), "unknown type 250"),
    "offset": (header([], [tensor(offset=2**64 - 32)]) + bytes(999), "ends at byte"),
    "odd offset": (header([], [tensor(offset=31)]) + bytes(999), "odd offset"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_a_file_cannot_hold_is_refused(path: Path, name: str) -> None:
    """Each made GGUFReader allocate, loop, wrap around or raise something of its own."""
    data, named = BROKEN[name]
    with pytest.raises(CheckpointError, match=named):
        checked(path, data)


def test_arrays_of_objects_are_bounded(path: Path) -> None:
    """One byte an element in the file, some hundred in memory: a file of 100 MB would ask for tens of gigabytes."""
    half = field(b"a", ARRAY, array(0, 2**21 + 1, bytes(2**21 + 1)))
    checked(path, header([half], []))
    with pytest.raises(CheckpointError, match="more than 4194304 elements"):
        checked(path, header([half, half], []))


@given(st.lists(st.tuples(st.integers(0, len(GOOD) - 1), st.binary(min_size=1, max_size=9)), min_size=1, max_size=4))
def test_no_bytes_raise_anything_else(tmp_path_factory: pytest.TempPathFactory, edits: list[tuple[int, bytes]]) -> None:
    """A traceback for a file that came from elsewhere."""
    data = bytearray(with_data(GOOD, 416, 64))
    for position, junk in edits:
        data[position : position + len(junk)] = junk
    path = tmp_path_factory.getbasetemp() / "fuzzed.gguf"
    try:
        checked(path, bytes(data))
    except CheckpointError:
        return
