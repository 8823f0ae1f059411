"""The layout of selfspec-kernels: a matrix [N, K] in tiles of 8 rows and blocks of 32 columns. Pure NumPy.

The kernels' package draws the bytes (kernels/src/tiles.h) and has the same layout in NumPy for its own tests; neither
package depends on the other, so this is written apart, and a test holds the two against each other.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .blocks import Codes

TILE_ROWS = 8
TILE_BLOCK = 32
_TOGETHER = 4  # columns that a processor multiplies at once

Halves = NDArray[np.float16]


def tiled_shape(rows: int, cols: int, bits: int, *, minima: bool) -> tuple[int, int, int]:
    """(tiles, blocks, bytes of a tile's block): codes, eight scales and, where stored, eight minima."""
    return rows // TILE_ROWS, cols // TILE_BLOCK, TILE_ROWS * (TILE_BLOCK * bits // 8 + (4 if minima else 2))


def pack_tiles(codes: Codes, bits: int, scales: Halves, minima: Halves | None) -> Codes:
    """Codes [N, K] below 2**bits, scales and minima [N, K / 32] → [N / 8, K / 32, bytes].

    weight = scale * code + minimum; without minima, scale * (code - 2**(bits - 1)).
    """
    rows, cols = codes.shape
    tiles, blocks, _ = tiled_shape(rows, cols, bits, minima=minima is not None)
    # [tile, row, block, group, column] → [tile, block, group, row, column]
    grouped = codes.reshape(tiles, TILE_ROWS, blocks, -1, _TOGETHER).transpose(0, 2, 3, 1, 4)
    if bits == 4:
        half = grouped.shape[2] // 2
        grouped = grouped[:, :, :half] | (grouped[:, :, half:] << 4).astype(np.uint8)
    parts = [grouped.reshape(tiles, blocks, -1), _bytes_of(scales)]
    if minima is not None:
        parts.append(_bytes_of(minima))
    return np.concatenate(parts, axis=-1)


def _bytes_of(values: Halves) -> Codes:
    """[N, blocks] → [N / 8, blocks, 16]: the eight values of a tile's block side by side."""
    rows, blocks = values.shape
    ordered = values.astype("<f2").reshape(rows // TILE_ROWS, TILE_ROWS, blocks).transpose(0, 2, 1)
    return np.ascontiguousarray(ordered).view(np.uint8)
