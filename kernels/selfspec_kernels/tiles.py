"""The tile layout in NumPy: what an exporter writes and a test reads back. It knows nothing of the compiled library.

A weight matrix [N, K] is kept as unsigned codes with a scale and a minimum per row of the matrix (a column of the
product) and block of 32 along K: weight = scale * code + minimum. Symmetric weights store no minima; they are -8 or
-128 times the scales. src/tiles.h draws the bytes.
"""

import numpy as np
from numpy.typing import NDArray

COLUMNS = 8
BLOCK = 32
LAYOUT = 1
"""The number under which a model's manifest names this layout: another one for every change."""


def block_bytes(bits: int, minima: bool = True) -> int:
    """Bytes of one block of one tile: its codes, eight fp16 scales and, unless symmetric, eight fp16 minima."""
    if bits not in (4, 8):
        raise ValueError(f"Weights of {bits} bits; 4 and 8 are known.")
    return COLUMNS * BLOCK * bits // 8 + COLUMNS * (4 if minima else 2)


def shape(n: int, k: int, bits: int, minima: bool = True) -> tuple[int, int, int]:
    """Shape of the uint8 tensor that holds a matrix [n, k]. Raises ValueError when a dimension does not fit."""
    if n <= 0 or n % COLUMNS or k <= 0 or k % BLOCK:
        raise ValueError(
            f"A matrix of [{n}, {k}]: N must be a multiple of {COLUMNS} and K of {BLOCK}. Pad it with zeros."
        )
    return n // COLUMNS, k // BLOCK, block_bytes(bits, minima)


def pack(
    codes: NDArray[np.uint8], scales: NDArray[np.floating], minima: NDArray[np.floating] | None, bits: int
) -> NDArray[np.uint8]:
    """codes [N, K] below 2^bits, scales and minima [N, K / 32] to tiles [N / 8, K / 32, bytes of a block].

    Scales and minima are stored as fp16; without minima the weights are symmetric: scale * (code - 2^(bits - 1)).
    Raises ValueError for shapes, codes, or magnitudes beyond fp16's 65504 that do not fit.
    """
    tiles, blocks, size = shape(codes.shape[0], codes.shape[1], bits, minima is not None)
    stored = {"scales": scales} if minima is None else {"scales": scales, "minima": minima}
    for name, array in stored.items():
        if array.shape != (tiles * COLUMNS, blocks):
            raise ValueError(
                f"The {name} have shape {array.shape}; codes of {codes.shape} need {(tiles * COLUMNS, blocks)}."
            )
    if codes.dtype != np.uint8 or (bits == 4 and codes.max() > 15):
        raise ValueError(f"Codes of {bits} bits are uint8 below {1 << bits}.")
    # [tile, column, block, group, k in group] -> [tile, block, group, column, k in group]
    grouped = codes.reshape(tiles, COLUMNS, blocks, BLOCK // 4, 4).transpose(0, 2, 3, 1, 4)
    if bits == 4:
        grouped = np.bitwise_or(grouped[:, :, :4], np.left_shift(grouped[:, :, 4:], 4, dtype=np.uint8), dtype=np.uint8)
    out = np.empty((tiles, blocks, size), np.uint8)
    end = size - COLUMNS * 2 * len(stored)
    out[:, :, :end] = grouped.reshape(tiles, blocks, end)
    for at, array in zip((end, end + COLUMNS * 2), stored.values(), strict=False):
        with np.errstate(over="ignore"):
            halves = np.ascontiguousarray(array.reshape(tiles, COLUMNS, blocks).transpose(0, 2, 1).astype("<f2"))
        if np.isinf(halves).sum() > np.isinf(array).sum():
            raise ValueError(f"A value of {np.abs(array).max():g} is beyond fp16's 65504.")
        out[:, :, at : at + COLUMNS * 2] = halves.view(np.uint8)
    return out


def unpack(
    tiles: NDArray[np.uint8], bits: int
) -> tuple[NDArray[np.uint8], NDArray[np.float16], NDArray[np.float16] | None]:
    """Tiles [N / 8, K / 32, bytes] back to codes [N, K] and scales, minima [N, K / 32] (None where none are stored)."""
    count, blocks, size = tiles.shape
    parts = {block_bytes(bits, minima): 2 if minima else 1 for minima in (False, True)}
    if size not in parts:
        raise ValueError(f"Blocks of {size} bytes; {bits}-bit ones have {' or '.join(map(str, parts))}.")
    end = size - COLUMNS * 2 * parts[size]
    grouped = tiles[:, :, :end].reshape(count, blocks, -1, COLUMNS, 4)
    if bits == 4:
        grouped = np.concatenate([grouped & 15, grouped >> 4], axis=2)
    codes = grouped.transpose(0, 3, 1, 2, 4).reshape(count * COLUMNS, blocks * BLOCK)
    halves = np.ascontiguousarray(tiles[:, :, end:]).view("<f2").reshape(count, blocks, parts[size], COLUMNS)
    scales, *minima = halves.transpose(2, 0, 3, 1).reshape(parts[size], count * COLUMNS, blocks)
    return codes, scales, minima[0] if minima else None


def dequantize(tiles: NDArray[np.uint8], bits: int) -> NDArray[np.float32]:
    """Tiles to the weights [N, K] they stand for."""
    codes, scales, minima = unpack(tiles, bits)
    wide = np.repeat(scales.astype(np.float32), BLOCK, axis=1)
    if minima is None:
        return wide * (codes.astype(np.float32) - (1 << bits - 1))
    return wide * codes + np.repeat(minima.astype(np.float32), BLOCK, axis=1)
