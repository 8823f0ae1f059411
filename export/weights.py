"""Writes weights.bin: every tensor once, 64-byte aligned, streamed in runs of rows."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from ..errors import CheckpointError, UsageError
from ..models.config import ModelConfig
from ..models.decoder import EMBEDDING, LM_HEAD
from ..models.tensors import ALIGNMENT, FLOAT_BITS, Role, Segment, StoredTensor, TensorSpec
from .blocks import Blocks, Codes, Floats, pack, quantize
from .checkpoint import Checkpoint

_CHUNK_ELEMENTS = 2**21  # 8 MB of float32: peak memory stays flat however large a matrix is
_EXACT_SOURCES = {"Q8_0": 8, "Q4_0": 4}
EXACT_BLOCK_SIZE = 32
BLOCK_SIZES = (16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class Precision:
    """How each role is stored. 32 bits means float32."""

    name: str
    linear_bits: int
    head_bits: int

    def bits(self, role: Role) -> int:
        if role is Role.VECTOR:
            return FLOAT_BITS
        return self.linear_bits if role is Role.LINEAR else self.head_bits


PRECISIONS = {p.name: p for p in (Precision("fp32", 32, 32), Precision("int8", 8, 8), Precision("int4", 4, 8))}


def settled_tie(config: ModelConfig, source: Checkpoint) -> ModelConfig:
    """``config``, untied where the checkpoint brings a head that is not its embedding, as Hugging Face does."""
    shapes = source.shapes()
    if not config.tie_word_embeddings or LM_HEAD not in shapes or EMBEDDING not in shapes:
        return config
    if shapes[LM_HEAD] == shapes[EMBEDDING] and _same_rows(source, shapes[EMBEDDING]):
        return config
    return replace(config, tie_word_embeddings=False)


def _same_rows(source: Checkpoint, shape: tuple[int, ...]) -> bool:
    step = max(1, _CHUNK_ELEMENTS // max(1, shape[-1]))
    for start in range(0, shape[0], step):
        head, embedding = (source.read(name, start, min(shape[0], start + step)) for name in (LM_HEAD, EMBEDDING))
        if not np.array_equal(_values(head), _values(embedding)):
            return False
    return True


def _values(chunk: Floats | Blocks) -> Floats:
    return chunk.dequantize() if isinstance(chunk, Blocks) else chunk


def check_tensors(specs: list[TensorSpec], shapes: dict[str, tuple[int, ...]]) -> None:
    """Every expected tensor is there with its shape, and nothing else is.

    Raises:
        CheckpointError: names what is missing, unexpected or of another shape.
    """
    expected = {part: shape for s in specs for part, shape in zip(s.parts, s.part_shapes, strict=True)}
    shapes = {name: shape for name, shape in shapes.items() if name in expected or not _redundant(name)}
    missing = sorted(expected.keys() - shapes.keys())
    unexpected = sorted(shapes.keys() - expected.keys())
    if missing:
        raise CheckpointError(f"the checkpoint lacks {_some(missing)}; it is incomplete or of another architecture.")
    if unexpected:
        raise CheckpointError(f"the checkpoint holds {_some(unexpected)}, which this architecture does not use.")
    for name, shape in expected.items():
        if shapes[name] != shape:
            raise CheckpointError(
                f"the checkpoint's {name} has shape {list(shapes[name])}; its config says {list(shape)}."
            )


def _redundant(name: str) -> bool:
    """Rotary frequencies that old checkpoints carry follow from the config; a tied head repeats the embedding."""
    return name.endswith("rotary_emb.inv_freq") or name == LM_HEAD


def _some(names: list[str]) -> str:
    more = f" and {len(names) - 5} more tensors" if len(names) > 5 else ""
    return ("the tensors " if len(names) > 1 else "the tensor ") + ", ".join(names[:5]) + more


class WeightsWriter:
    """Appends tensors to one file, hashing as it goes. A context manager."""

    def __init__(self, path: Path, precision: Precision, block_size: int) -> None:
        self._file: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._offset = 0
        self._precision = precision
        self._block_size = block_size
        self.exact: Counter[str] = Counter()
        self.requantised: Counter[str] = Counter()

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        return self._offset

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def vector(self, name: str, values: Floats) -> StoredTensor:
        """Store float32 values of any shape.

        Raises:
            CheckpointError: they are not finite.
        """
        if not np.isfinite(values).all():
            raise CheckpointError(f"{name}, computed from the model's config, is not finite; the config is damaged.")
        self._align()
        segment = Segment("float32", values.shape, self._offset)
        self._write(values)
        return StoredTensor(name, values.shape, FLOAT_BITS, segment)

    def tensor(self, spec: TensorSpec, source: Checkpoint) -> StoredTensor:
        """Store one tensor from the checkpoint, quantised as the precision says."""
        bits = self._precision.bits(spec.role)
        if bits == FLOAT_BITS or len(spec.part_shapes[0]) == 1:
            return self._floats(spec, source)
        return self._quantised(spec, source, bits)

    def _floats(self, spec: TensorSpec, source: Checkpoint) -> StoredTensor:
        shape = (sum(s[0] for s in spec.part_shapes), *spec.part_shapes[0][1:])
        self._align()
        segment = Segment("float32", shape, self._offset)
        for chunk in _chunks(spec, source):
            values = _values(chunk)
            self._write(values + np.float32(spec.offset) if spec.offset else values)
        return StoredTensor(spec.name, shape, FLOAT_BITS, segment)

    def _quantised(self, spec: TensorSpec, source: Checkpoint, bits: int) -> StoredTensor:
        rows, cols = sum(s[0] for s in spec.part_shapes), spec.part_shapes[0][1]
        size = self._block_size
        if cols % size:
            raise UsageError(
                f"--quant-block-size {size} does not divide the {cols} columns of {spec.name}; "
                f"use {max(b for b in BLOCK_SIZES if cols % b == 0 or b == BLOCK_SIZES[0])}."
            )
        kinds = [source.stored_type(part) for part in spec.parts]
        kept = [_EXACT_SOURCES.get(kind, 99) <= bits and size == EXACT_BLOCK_SIZE for kind in kinds]
        for kind, same in zip(kinds, kept, strict=True):
            (self.exact if same else self.requantised)[kind] += 1
        self._align()
        codes = Segment("uint8", (rows, cols * bits // 8), self._offset)
        scales: list[Floats] = []
        zeros: list[Codes] = []
        for chunk in _chunks(spec, source):
            blocks = self._blocks(chunk, bits, symmetric=all(kept))
            self._write(pack(blocks.codes, bits))
            scales.append(blocks.scales)
            if blocks.zero_points is not None:
                zeros.append(pack(blocks.zero_points, bits))
        return StoredTensor(
            spec.name, (rows, cols), bits, codes,
            scales=self._segment(np.concatenate(scales)),
            zero_points=self._segment(np.concatenate(zeros)) if zeros else None,
            block_size=size,
        )  # fmt: skip

    def _blocks(self, chunk: Floats | Blocks, bits: int, *, symmetric: bool) -> Blocks:
        if isinstance(chunk, Blocks) and chunk.bits <= bits and chunk.block_size == self._block_size:
            return chunk.widened(bits, explicit_zero_points=not symmetric)
        return quantize(_values(chunk), bits, self._block_size)

    def _segment(self, values: Floats | Codes) -> Segment:
        self._align()
        segment = Segment(values.dtype.name, values.shape, self._offset)
        self._write(values)
        return segment

    def _align(self) -> None:
        self._append(bytes(-self._offset % ALIGNMENT))

    def _write(self, values: NDArray[np.float32] | NDArray[np.uint8]) -> None:
        self._append(np.ascontiguousarray(values).data.cast("B"))

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)


def _chunks(spec: TensorSpec, source: Checkpoint) -> Iterator[Floats | Blocks]:
    for part, shape in zip(spec.parts, spec.part_shapes, strict=True):
        step = max(1, _CHUNK_ELEMENTS // (shape[1] if len(shape) > 1 else 1))
        for start in range(0, shape[0], step):
            chunk = source.read(part, start, min(shape[0], start + step))
            if not np.isfinite(chunk.scales if isinstance(chunk, Blocks) else chunk).all():
                raise CheckpointError(f"the checkpoint's {part} holds values that are not finite; no model can use it.")
            yield chunk
