"""Rotary tables, as GroupQueryAttention wants them: cosines and sines of every position, half a head wide."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedModelError
from .config import Llama3Scaling, RopeConfig


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> NDArray[np.float64]:
    """Radians per position of each of the ``head_dim // 2`` rotated pairs.

    Raises:
        UnsupportedModelError: ``rope.divisors`` has another length.
    """
    freqs = rope.theta ** -(np.arange(0, head_dim, 2, dtype=np.float64) / head_dim)
    if rope.divisors is not None:
        if len(rope.divisors) != len(freqs):
            raise UnsupportedModelError(
                f"rope_freqs has {len(rope.divisors)} entries, but head_dim {head_dim} needs {len(freqs)}."
            )
        return np.asarray(freqs / np.asarray(rope.divisors, dtype=np.float64))
    return freqs if rope.scaling is None else _llama3(freqs, rope.scaling)


def _llama3(freqs: NDArray[np.float64], scaling: Llama3Scaling) -> NDArray[np.float64]:
    wavelength = 2 * math.pi / freqs
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / span
    smooth = np.clip(smooth, 0.0, 1.0)  # 0 below the low-frequency bound, 1 above the high one
    return np.asarray(freqs / scaling.factor * (1 - smooth) + freqs * smooth)


def rotary_tables(rope: RopeConfig, head_dim: int, rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cosines, sines), each [rows, head_dim // 2] float32.

    Angles are formed in float32, as Hugging Face does: at position 8,000 that differs from float64 by more than
    the parity tests allow.
    """
    freqs = inverse_frequencies(rope, head_dim).astype(np.float32)
    angles = np.outer(np.arange(rows, dtype=np.float32), freqs)
    return np.cos(angles), np.sin(angles)
