"""Writes weights.bin: every tensor once, 64-byte aligned, streamed in runs of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType

import numpy as np

from ..errors import CheckpointError
from ..models.config import ModelConfig
from ..models.decoder import EMBEDDING, LM_HEAD
from ..models.tensors import FLOAT_BITS, Role, StoredTensor, TensorSpec
from .blocks import Blocks, Floats
from .checkpoint import Checkpoint
from .experts import expert_chunks, padded
from .layouts import FAINT, Layout
from .weights_file import WeightsFile

_CHUNK_ELEMENTS = 2**21  # 8 MB of float32: peak memory stays flat however large a matrix is


@dataclass(frozen=True, slots=True)
class Precision:
    """How each role is stored. 32 bits means float32."""

    name: str
    linear_bits: int
    head_bits: int

    def bits(self, role: Role) -> int:
        if role in (Role.VECTOR, Role.ROUTER):
            return FLOAT_BITS
        return self.head_bits if role in (Role.EMBEDDING, Role.HEAD) else self.linear_bits

    def quantises(self, spec: TensorSpec) -> bool:
        return self.bits(spec.role) != FLOAT_BITS and len(spec.shape) > 1


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
    """Stores tensors in one file, each as its role and the precision say. A context manager."""

    def __init__(self, path: Path, precision: Precision, layout: Layout) -> None:
        self._file = WeightsFile(path)
        self._precision = precision
        self._layout = layout
        self.exact: Counter[str] = Counter()
        self.requantised: Counter[str] = Counter()
        self.warnings: list[str] = []

    def __enter__(self) -> WeightsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.__exit__(kind, error, tb)

    @property
    def size(self) -> int:
        return self._file.size

    def sha256(self) -> str:
        return self._file.sha256()

    def vector(self, name: str, values: Floats) -> StoredTensor:
        """Store float32 values of any shape.

        Raises:
            CheckpointError: they are not finite.
        """
        if not np.isfinite(values).all():
            raise CheckpointError(f"{name}, computed from the model's config, is not finite; the config is damaged.")
        return StoredTensor(name, values.shape, FLOAT_BITS, self._file.segment(values))

    def tensor(self, spec: TensorSpec, source: Checkpoint) -> StoredTensor:
        """Store one tensor from the checkpoint, quantised as the precision says."""
        if not self._precision.quantises(spec):
            return self._floats(spec, source)
        bits = self._precision.bits(spec.role)
        kinds = [source.stored_type(part) for part in spec.parts]
        for kind in kinds:
            (self.exact if self._layout.keeps(kind, bits) else self.requantised)[kind] += 1
        shape = padded(spec, self._layout.block_size)
        stored = self._layout.store(self._file, shape, bits, kinds, self._chunks(spec, source, self._layout.block_size))
        if stored.faint:
            self.warnings.append(
                f"{spec.name}: {stored.faint} of {stored.blocks} blocks have weights below {FAINT:.0e} only, which "
                "half-precision scales keep coarsely; `kernels` ort keeps them better"
            )
        return stored.tensor

    def _floats(self, spec: TensorSpec, source: Checkpoint) -> StoredTensor:
        segment = self._file.begin("float32", spec.shape)
        for chunk in self._chunks(spec, source, 1):
            values = _values(chunk)
            self._file.append(values + np.float32(spec.offset) if spec.offset else values)
        return StoredTensor(spec.name, spec.shape, FLOAT_BITS, segment)

    def _chunks(self, spec: TensorSpec, source: Checkpoint, multiple: int) -> Iterable[Floats | Blocks]:
        """Runs of rows of a tensor as it will be stored; the width of experts is rounded up to ``multiple``."""
        if not spec.experts:
            return _chunks(spec, source, self._layout.tile_rows)

        def read(part: str, start: int, stop: int) -> Floats:
            return _values(_checked(source, part, start, stop))

        most_rows = _CHUNK_ELEMENTS // spec.shape[1]
        return expert_chunks(spec, read, multiple, paired=self._layout.paired_experts, most_rows=most_rows)


def _chunks(spec: TensorSpec, source: Checkpoint, tile_rows: int = 1) -> Iterator[Floats | Blocks]:
    """Runs of rows, each of a multiple of ``tile_rows`` where the parts are."""
    for part, shape in zip(spec.parts, spec.part_shapes, strict=True):
        fitting = _CHUNK_ELEMENTS // (shape[1] if len(shape) > 1 else 1)
        step = max(1, fitting // tile_rows) * tile_rows
        for start in range(0, shape[0], step):
            yield _checked(source, part, start, min(shape[0], start + step))


def _checked(source: Checkpoint, part: str, start: int, stop: int) -> Floats | Blocks:
    chunk = source.read(part, start, stop)
    if not _is_finite(chunk):
        raise CheckpointError(f"the checkpoint's {part} holds values that are not finite; no model can use it.")
    return chunk


def _is_finite(chunk: Floats | Blocks) -> bool:
    if not isinstance(chunk, Blocks):
        return bool(np.isfinite(chunk).all())
    return bool(np.isfinite(chunk.scales).all() and (chunk.minima is None or np.isfinite(chunk.minima).all()))
