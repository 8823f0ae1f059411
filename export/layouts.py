"""How quantised matrices lie in weights.bin: for ONNX Runtime's operators, or in the tiles of selfspec-kernels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..errors import CheckpointError, UsageError
from ..models.tensors import StoredTensor, TensorSpec
from .blocks import Blocks, Codes, Floats, pack, quantize, quantize_affine
from .experts import padded
from .tiles import TILE_BLOCK, TILE_ROWS, Halves, pack_tiles, tiled_shape
from .weights_file import WeightsFile

EXACT_BLOCK_SIZE = 32
FAINT = 100 * 2.0**-24  # weights below it are not told apart to a hundredth by half-precision numbers
BLOCK_SIZES = (16, 32, 64, 128, 256)
_SYMMETRIC = {"Q8_0": 8, "Q4_0": 4}  # types of GGUF files and their bits
_WITH_MINIMA = {"Q4_1": 4}


@dataclass(frozen=True, slots=True)
class Misfit:
    """Why a layout cannot store a matrix, and what to do instead."""

    why: str
    instead: str
    parameter: str


@dataclass(frozen=True, slots=True)
class Stored:
    """A matrix in the file, and how many of its ``blocks`` are ``faint``: too small for the numbers that scale them."""

    tensor: StoredTensor
    blocks: int
    faint: int = 0


class Layout(Protocol):
    """One way to store quantised matrices."""

    @property
    def block_size(self) -> int:
        """Columns that share a scale."""

    @property
    def tile_rows(self) -> int:
        """Rows that lie together: matrices are written, and cut, in multiples of it."""

    @property
    def paired_experts(self) -> bool:
        """Whether rows of an expert's gate and up alternate; else those of gate come first."""

    def misfit(self, spec: TensorSpec) -> Misfit | None:
        """What keeps a matrix from being stored so; None where it can."""

    def keeps(self, kind: str, bits: int) -> bool:
        """Whether blocks that a checkpoint stores as ``kind`` come over exactly at ``bits`` bits."""

    def store(
        self, file: WeightsFile, spec: TensorSpec, bits: int, kinds: Sequence[str], chunks: Iterable[Floats | Blocks]
    ) -> Stored:
        """Append the matrix whose runs of rows are ``chunks``; ``kinds`` are the types of its parts."""


@dataclass(frozen=True, slots=True)
class BlockLayout:
    """Of MatMulNBits: codes, scales and whole zero points apart. Blocks of 32 keep what GGUF stores symmetrically."""

    block_size: int = EXACT_BLOCK_SIZE
    tile_rows: int = 1
    paired_experts: bool = True  # what MoE and QMoE call interleaved

    def misfit(self, spec: TensorSpec) -> Misfit | None:
        cols = spec.shape[1]
        if cols % self.block_size == 0:
            return None
        size = max(b for b in BLOCK_SIZES if cols % b == 0 or b == BLOCK_SIZES[0])
        why = f"`block_size` {self.block_size} does not divide the {cols} columns of {spec.name}"
        return Misfit(why, f"use {size}", "block_size")

    def keeps(self, kind: str, bits: int) -> bool:
        return self.block_size == EXACT_BLOCK_SIZE and _SYMMETRIC.get(kind, 99) <= bits

    def store(
        self, file: WeightsFile, spec: TensorSpec, bits: int, kinds: Sequence[str], chunks: Iterable[Floats | Blocks]
    ) -> Stored:
        symmetric = all(self.keeps(kind, bits) for kind in kinds)
        rows, cols = spec.shape
        codes = file.begin("uint8", (rows, cols * bits // 8))
        scales: list[Floats] = []
        zeros: list[Codes] = []
        for chunk in chunks:
            blocks = self._blocks(chunk, bits, symmetric=symmetric)
            file.append(pack(blocks.codes, bits))
            scales.append(blocks.scales)
            if blocks.zero_points is not None:
                zeros.append(pack(blocks.zero_points, bits))
        tensor = StoredTensor(
            spec.name, (rows, cols), bits, codes,
            scales=file.segment(np.concatenate(scales)),
            zero_points=file.segment(np.concatenate(zeros)) if zeros else None,
            block_size=self.block_size,
        )  # fmt: skip
        return Stored(tensor, rows * cols // self.block_size)

    def _blocks(self, chunk: Floats | Blocks, bits: int, *, symmetric: bool) -> Blocks:
        if not isinstance(chunk, Blocks):
            return quantize(chunk, bits, self.block_size)
        if chunk.minima is None and chunk.bits <= bits and chunk.block_size == self.block_size:
            return chunk.widened(bits, explicit_zero_points=not symmetric)
        return quantize(chunk.dequantize(), bits, self.block_size)


@dataclass(frozen=True, slots=True)
class TileLayout:
    """Of selfspec-kernels: codes with their half-precision scales and, unless every part of a matrix comes over
    symmetrically, minima. GGUF's blocks of 32 with a scale, or with a scale and a minimum, come over exactly."""

    block_size: int = TILE_BLOCK
    tile_rows: int = TILE_ROWS
    paired_experts: bool = False

    def misfit(self, spec: TensorSpec) -> Misfit | None:
        for name, (rows, cols) in zip(spec.parts, spec.part_shapes, strict=True):
            if rows % TILE_ROWS or cols % TILE_BLOCK:
                needed = f"native kernels need multiples of [{TILE_ROWS}, {TILE_BLOCK}]"
                why = f"{name} is a matrix [{rows}, {cols}], and {needed}"
                return Misfit(why, "export with `kernels` ort", "kernels")
        return None

    def keeps(self, kind: str, bits: int) -> bool:
        return (_SYMMETRIC | _WITH_MINIMA).get(kind, 99) <= bits

    def store(
        self, file: WeightsFile, spec: TensorSpec, bits: int, kinds: Sequence[str], chunks: Iterable[Floats | Blocks]
    ) -> Stored:
        minima = any(_SYMMETRIC.get(kind, 99) > bits for kind in kinds)
        rows, cols = spec.shape
        tiles, faint = file.begin("uint8", tiled_shape(rows, cols, bits, minima=minima)), 0
        for chunk in chunks:
            kept = _kept(chunk, bits)
            if kept is None:
                values = chunk.dequantize() if isinstance(chunk, Blocks) else chunk
                faint += _faint_blocks(values)
                kept = quantize_affine(values, bits, TILE_BLOCK)
            file.append(_tiles(kept.affine() if minima else kept, spec, minima=minima))
        tensor = StoredTensor(spec.name, (rows, cols), bits, tiles, block_size=TILE_BLOCK, tile_rows=TILE_ROWS)
        return Stored(tensor, rows * cols // TILE_BLOCK, faint)


def _kept(chunk: Floats | Blocks, bits: int) -> Blocks | None:
    """The same weights in codes of ``bits`` bits, where the checkpoint's own blocks allow it."""
    if not isinstance(chunk, Blocks) or chunk.bits > bits or chunk.block_size != TILE_BLOCK:
        return None
    return chunk.widened(bits)


def _tiles(blocks: Blocks, spec: TensorSpec, *, minima: bool) -> Codes:
    if blocks.zero_points is not None or (blocks.minima is not None) != minima:
        raise CheckpointError(
            f"{spec.name} is of a symmetric type, and blocks of it have zero points or minima; use `kernels` ort."
        )
    lowest = None if blocks.minima is None else _halves(blocks.minima, spec)
    return pack_tiles(blocks.codes, blocks.bits, _halves(blocks.scales, spec), lowest)


def _faint_blocks(values: Floats) -> int:
    """How many blocks that are not zero have weights only among which half-precision numbers are more than a hundredth
    of the largest apart."""
    largest = np.abs(values).reshape(len(values), -1, TILE_BLOCK).max(-1)
    return int(((largest > 0) & (largest < FAINT)).sum())


def check_fit(layout: Layout, specs: Iterable[TensorSpec]) -> None:
    """Raises: UsageError for the first matrix that ``layout`` cannot store."""
    for spec in specs:
        if (found := layout.misfit(padded(spec, layout.block_size))) is not None:
            raise UsageError(f"{found.why}; {found.instead}.", found.parameter)


def _halves(values: Floats, spec: TensorSpec) -> Halves:
    with np.errstate(all="ignore"):
        halves = values.astype(np.float16)
        off = ~np.isfinite(halves) | (np.abs(halves.astype(np.float32) - values) > 0.01 * np.abs(values))
    if off.any():
        raise CheckpointError(
            f"{spec.name} holds values around {np.abs(values[off]).max():.3g}, out of the reach of half precision, in "
            "which native kernels keep scales; export with `kernels` ort."
        )
    return halves
