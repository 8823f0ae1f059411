"""A GGUF as one file or several: which belong together, each checked before it is read, all against each other.

gguf-split writes name-00001-of-00003.gguf and so on; the first has the metadata, each says which it is of how many.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from ..errors import CheckpointError
from .gguf_header import check_gguf_header

DAMAGED = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, struct.error, OSError)
"""What GGUFReader raises of a damaged file."""

_PART = re.compile(r"(?P<stem>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf", re.IGNORECASE)
_ENDINGS = (".gguf", ".bin")
_MOST_PARTS = 1000


def damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is not a complete GGUF file ({type(error).__name__}: {error}); download it again.")


def model_name(path: Path) -> str:
    """What a file's model is called: the file's name without its ending, of a part what all have in common."""
    part = _PART.fullmatch(path.name)
    return part["stem"] if part else path.stem if path.suffix.lower() in _ENDINGS else path.name


def part_names(name: str) -> list[str]:
    """The names of all parts of the model that ``name`` is a part of; itself where it is none."""
    part = _PART.fullmatch(name.rsplit("/", 1)[-1])
    if part is None or not 0 < int(part["count"]) <= _MOST_PARTS:
        return [name]
    stem = name[: len(name) - len(part[0])] + part["stem"]
    return [f"{stem}-{i + 1:05}-of-{part['count']}{name[-5:]}" for i in range(int(part["count"]))]


def open_parts(path: Path) -> list[GGUFReader]:
    """Readers of all files of the model, that with the metadata first.

    Raises:
        CheckpointError: a part is missing, is none of this model, or is no complete GGUF file.
    """
    asked = _open(path)
    count = _number(asked, path, "split.count", 0)
    if count <= 1:
        return [asked]
    paths = [path.with_name(name) for name in part_names(path.name)]
    if len(paths) != count:
        raise CheckpointError(
            f"{path} is part {_number(asked, path, 'split.no', 0) + 1} of {count} of a model, which its name does not "
            f"say; give all parts the names that they were made with, such as name-00001-of-{count:05}.gguf."
        )
    missing = [part.name for part in paths if not part.is_file()]
    if missing:
        raise CheckpointError(f"{path} is one of {count} parts, and {missing[0]} is missing; download it too.")
    readers = [asked if part == path else _open(part) for part in paths]
    for i, (part, reader) in enumerate(zip(paths, readers, strict=True)):
        found = (_number(reader, part, "split.no", -1), _number(reader, part, "split.count", -1))
        if found != (i, count):
            raise CheckpointError(
                f"{part} says it is part {found[0] + 1} of {found[1]}, where part {i + 1} of {count} was expected; "
                "the parts are not of one model, or were renamed."
            )
    _check_tensors(paths, readers)
    return readers


def _check_tensors(paths: list[Path], readers: list[GGUFReader]) -> None:
    names = [tensor.name for reader in readers for tensor in reader.tensors]
    totals = {_number(reader, path, "split.tensors.count", -1) for path, reader in zip(paths, readers, strict=True)}
    if totals != {len(names)} or len(set(names)) != len(names):
        raise CheckpointError(
            f"{paths[0]} and its other parts hold {len(set(names))} tensors, where they say "
            f"{' and '.join(map(str, sorted(totals)))}; the parts are not of one model. Download them again."
        )


def _open(path: Path) -> GGUFReader:
    check_gguf_header(path)
    try:
        return GGUFReader(path)
    except DAMAGED as error:
        raise damaged(path, error) from error


def _number(reader: GGUFReader, path: Path, key: str, default: int) -> int:
    field = reader.fields.get(key)
    try:
        value: Any = default if field is None else field.contents()
    except DAMAGED as error:
        raise damaged(path, error) from error
    if not isinstance(value, int) or isinstance(value, bool):
        raise CheckpointError(f"{path}: {key} is {value!r}, where a whole number was expected; download it again.")
    return value
