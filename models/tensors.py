"""How a tensor lies in weights.bin, and which tensors a family needs. Knows no file format and no graph."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import Enum

FLOAT_BITS = 32
ALIGNMENT = 64


class Role(Enum):
    """What a tensor is for, which decides how it may be stored."""

    EMBEDDING = "embedding"  # gathered by row; also the LM head where the two are tied
    HEAD = "head"
    LINEAR = "linear"
    EXPERTS_IN = "gate and up of all experts"
    EXPERTS_OUT = "down of all experts"
    ROUTER = "router"  # chooses experts, or gates one: always float32
    VECTOR = "vector"  # norms, biases and rotary tables: always float32


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """A tensor to store: ``parts`` are checkpoint names, stacked by rows. Matrices are [rows, cols] = [out, in].

    ``offset`` is added to every element of a vector: norms whose gain is 1 + weight are stored as their gain.
    ``experts``: how many experts the rows are of, so many each; a part of three dimensions holds them all.
    ``alternatives``: the same tensor from parts of other names and shapes, which a checkpoint may have instead.
    """

    name: str
    parts: tuple[str, ...]
    part_shapes: tuple[tuple[int, ...], ...]
    role: Role
    offset: float = 0.0
    experts: int = 0
    alternatives: tuple[TensorSpec, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        """Of all parts together, in one or two dimensions."""
        return (sum(rows_of(shape) for shape in self.part_shapes), *self.part_shapes[0][1:][-1:])


def rows_of(shape: tuple[int, ...]) -> int:
    """Of a tensor seen as a matrix; a vector's elements are rows."""
    return math.prod(shape[:-1]) if len(shape) > 1 else shape[0]


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of bytes in weights.bin. ``dtype`` is 'float32' or 'uint8'."""

    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def num_bytes(self) -> int:
        size = 4 if self.dtype == "float32" else 1
        for dim in self.shape:
            size *= dim
        return size

    def rows(self, start: int, stop: int) -> Segment:
        stride = self.num_bytes // self.shape[0]
        return replace(self, shape=(stop - start, *self.shape[1:]), offset=self.offset + start * stride)


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor as stored: float32, or unsigned codes in blocks along the input dimension.

    A weight is ``(code - zero_point) * scale``; without ``zero_points`` the zero point is ``2**(bits - 1)``.
    ``codes`` holds two 4-bit codes a byte, the lower half first. A matrix in tiles has all of it, scales and minima
    too, in ``codes``, so many rows together as ``tile_rows`` says.
    """

    name: str
    shape: tuple[int, ...]
    bits: int
    codes: Segment
    scales: Segment | None = None
    zero_points: Segment | None = None
    block_size: int = 0
    tile_rows: int = 1

    def rows(self, start: int, stop: int) -> StoredTensor:
        """The same matrix cut to rows ``start`` to ``stop - 1``; refers to the same bytes.

        Raises:
            ValueError: that would cut a tile.
        """
        if (start, stop) == (0, self.shape[0]):
            return self
        if start % self.tile_rows or stop % self.tile_rows:
            raise ValueError(f"{self.name}[{start}:{stop}] does not begin and end at multiples of {self.tile_rows}")
        return replace(
            self,
            name=f"{self.name}[{start}:{stop}]",
            shape=(stop - start, *self.shape[1:]),
            codes=self.codes.rows(start // self.tile_rows, stop // self.tile_rows),
            scales=None if self.scales is None else self.scales.rows(start, stop),
            zero_points=None if self.zero_points is None else self.zero_points.rows(start, stop),
        )
