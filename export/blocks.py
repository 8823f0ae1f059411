"""Quantised matrices in memory, and how float rows become them. Pure NumPy; knows no file."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Codes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Rows quantised in blocks of ``block_size`` columns: weight = (code - zero_point) * scale, or, where there are
    minima, code * scale + minimum.

    ``codes`` [rows, cols] uint8, one a weight; ``scales`` [rows, cols // block_size] float32; ``zero_points`` the
    same shape, uint8, or None where every zero point is 2**(bits - 1); ``minima`` the same shape, float32, or None.
    """

    bits: int
    block_size: int
    codes: Codes
    scales: Floats
    zero_points: Codes | None = None
    minima: Floats | None = None

    def widened(self, bits: int, *, explicit_zero_points: bool = False) -> Blocks:
        """The same weights with codes of ``bits`` bits; exact. Zero points are spelt out on request."""
        if self.minima is not None:
            return replace(self, bits=bits)
        shift = 2 ** (bits - 1) - 2 ** (self.bits - 1)
        codes = (self.codes + np.uint8(shift)).astype(np.uint8, copy=False)
        zeros = None if self.zero_points is None else (self.zero_points + np.uint8(shift)).astype(np.uint8)
        if zeros is None and explicit_zero_points:
            zeros = np.full(self.scales.shape, 2 ** (bits - 1), dtype=np.uint8)
        return Blocks(bits, self.block_size, codes, self.scales, zeros)

    def affine(self) -> Blocks:
        """The same weights with minima instead of zero points; exact where scales are half-precision numbers."""
        if self.minima is not None:
            return self
        zeros = np.float32(2 ** (self.bits - 1)) if self.zero_points is None else self.zero_points.astype(np.float32)
        return replace(self, zero_points=None, minima=-zeros * self.scales)

    def dequantize(self) -> Floats:
        """[rows, cols] float32."""
        rows, cols = self.codes.shape
        grouped = self.codes.reshape(rows, -1, self.block_size).astype(np.float32)
        scales = self.scales[..., None]
        if self.minima is not None:
            return (grouped * scales + self.minima[..., None]).reshape(rows, cols).astype(np.float32, copy=False)
        zeros = np.float32(2 ** (self.bits - 1)) if self.zero_points is None else self.zero_points[..., None]
        return ((grouped - zeros) * scales).reshape(rows, cols).astype(np.float32, copy=False)


def quantize(weights: Floats, bits: int, block_size: int) -> Blocks:
    """Round to the nearest code of an asymmetric grid, chosen per block by squared error.

    The grid spans [min(x, 0), max(x, 0)]. Its zero point must be a whole code, which costs up to half a step; at 4 bits
    that matters, so both neighbouring zero points and a slightly narrower grid are tried, each with its scale refitted
    by least squares, and the best of them kept.
    """
    rows, cols = weights.shape
    x = weights.reshape(rows, cols // block_size, block_size)
    top = 2**bits - 1
    low, high = np.minimum(x.min(-1), 0), np.maximum(x.max(-1), 0)
    step = np.where(high > low, (high - low) / top, 1).astype(np.float32)
    best_codes, best_scale, best_zero = _round_to(x, step, np.rint(-low / step), top)
    if bits < 8:
        best_error = _error(x, best_codes, best_scale, best_zero)
        for shrink in (1.0, 0.92):
            scale = step * np.float32(shrink)
            for zero in (np.floor(-low / scale), np.ceil(-low / scale)):
                codes, fitted, zeros = _refit(x, scale, zero, top)
                error = _error(x, codes, fitted, zeros)
                better = error < best_error
                best_error = np.where(better, error, best_error)
                best_scale = np.where(better, fitted, best_scale)
                best_zero = np.where(better, zeros, best_zero)
                best_codes = np.where(better[..., None], codes, best_codes)
    return Blocks(
        bits, block_size, best_codes.reshape(rows, cols).astype(np.uint8), best_scale, best_zero.astype(np.uint8)
    )


def _round_to(x: Floats, scale: Floats, zero: Floats, top: int) -> tuple[Floats, Floats, Floats]:
    zero = np.clip(zero, 0, top)
    return np.clip(np.rint(x / scale[..., None]) + zero[..., None], 0, top), scale, zero


def _refit(x: Floats, scale: Floats, zero: Floats, top: int) -> tuple[Floats, Floats, Floats]:
    codes, scale, zero = _round_to(x, scale, zero, top)
    centred = codes - zero[..., None]
    norm = np.einsum("rbk,rbk->rb", centred, centred)
    fitted = np.einsum("rbk,rbk->rb", x, centred) / np.where(norm > 0, norm, 1)
    return _round_to(x, np.where(fitted > 0, fitted, scale).astype(np.float32), zero, top)


def _error(x: Floats, codes: Floats, scale: Floats, zero: Floats) -> Floats:
    difference = x - (codes - zero[..., None]) * scale[..., None]
    return np.asarray(np.einsum("rbk,rbk->rb", difference, difference))


@np.errstate(over="ignore", invalid="ignore")  # what half precision cannot hold comes out as not finite
def quantize_affine(weights: Floats, bits: int, block_size: int) -> Blocks:
    """Round to codes of scale * code + minimum, where scale and minimum are half-precision numbers.

    The grid spans [min(x), max(x)], its ends rounded outwards, so that no weight is further off than half a step. At 4
    bits, two grids refitted to their codes by least squares, one of them started slightly narrower, are tried as well,
    and the best of the three kept.
    """
    rows, cols = weights.shape
    x = weights.reshape(rows, cols // block_size, block_size)
    top = 2**bits - 1
    low = _half_towards(x.min(-1), -np.inf)
    step = _half_towards((x.max(-1) - low) / np.float32(top), np.inf)
    best_codes, best_scale, best_low = _affine_codes(x, step, low, top), step, low
    if bits < 8:
        best_error = _affine_error(x, best_codes, step, low)
        for shrink in (1.0, 0.92):
            inset = step * np.float32(top * (1 - shrink) / 2)
            scale, lowest = _fitted(x, _affine_codes(x, step * np.float32(shrink), low + inset, top), step, low)
            codes = _affine_codes(x, scale, lowest, top)
            error = _affine_error(x, codes, scale, lowest)
            better = error < best_error
            best_error = np.where(better, error, best_error)
            best_scale = np.where(better, scale, best_scale)
            best_low = np.where(better, lowest, best_low)
            best_codes = np.where(better[..., None], codes, best_codes)
    return Blocks(bits, block_size, best_codes.reshape(rows, cols).astype(np.uint8), best_scale, minima=best_low)


def _half_towards(x: Floats, end: float) -> Floats:
    """The nearest half-precision number at or beyond ``x`` in the direction of ``end``, as float32."""
    halves = x.astype(np.float16)
    short = halves.astype(np.float32) < x if end > 0 else halves.astype(np.float32) > x
    return np.where(short, np.nextafter(halves, np.float16(end)), halves).astype(np.float32)


def _affine_codes(x: Floats, scale: Floats, minimum: Floats, top: int) -> Floats:
    step = np.where(scale > 0, scale, 1)[..., None]
    return np.asarray(np.clip(np.rint((x - minimum[..., None]) / step), 0, top))


def _fitted(x: Floats, codes: Floats, scale: Floats, minimum: Floats) -> tuple[Floats, Floats]:
    """Scale and minimum of the least squared error for ``codes``, in half precision; as they were where codes are all
    the same or the fit turns round."""
    centre, middle = codes.mean(-1, keepdims=True), x.mean(-1, keepdims=True)
    spread = codes - centre
    norm = np.einsum("rbk,rbk->rb", spread, spread)
    slope = np.einsum("rbk,rbk->rb", x - middle, spread) / np.where(norm > 0, norm, 1)
    lowest = (middle - slope[..., None] * centre)[..., 0]
    fits = ((slope, scale), (lowest, minimum))
    fitted, shifted = (np.where(slope > 0, new, old).astype(np.float16).astype(np.float32) for new, old in fits)
    return fitted, shifted


def _affine_error(x: Floats, codes: Floats, scale: Floats, minimum: Floats) -> Floats:
    difference = x - (codes * scale[..., None] + minimum[..., None])
    return np.asarray(np.einsum("rbk,rbk->rb", difference, difference))


def pack(codes: Codes, bits: int) -> Codes:
    """Codes to bytes along the last axis, lower half first at 4 bits; an odd tail is padded with zero."""
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), dtype=np.uint8)], axis=-1)
    return (codes[..., 0::2] | (codes[..., 1::2] << 4)).astype(np.uint8)
