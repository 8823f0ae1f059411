"""Rotary tables, as GroupQueryAttention wants them: cosines and sines of every position, half a head wide."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from ..errors import UnsupportedModelError
from .config import LinearScaling, Llama3Scaling, RopeConfig, YarnScaling

Frequencies = NDArray[np.float64]


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> Frequencies:
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
    match rope.scaling:
        case LinearScaling(factor=factor):
            return np.asarray(freqs / factor)
        case Llama3Scaling() as scaling:
            return _llama3(freqs, scaling)
        case YarnScaling() as scaling:
            return _yarn(freqs, scaling, rope.theta)
    return freqs


def _llama3(freqs: Frequencies, scaling: Llama3Scaling) -> Frequencies:
    wavelength = 2 * math.pi / freqs
    span = scaling.high_freq_factor - scaling.low_freq_factor
    smooth = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / span
    smooth = np.clip(smooth, 0.0, 1.0)  # 0 below the low-frequency bound, 1 above the high one
    return np.asarray(freqs / scaling.factor * (1 - smooth) + freqs * smooth)


def _yarn(freqs: Frequencies, scaling: YarnScaling, theta: float) -> Frequencies:
    head_dim = 2 * len(freqs)

    def dimension(rotations: float) -> float:
        """The pair that turns this often within the original context; not a whole number."""
        per_turn = scaling.original_max_position_embeddings / (2 * math.pi * rotations)
        return head_dim * math.log(per_turn) / (2 * math.log(theta))

    low, high = dimension(scaling.beta_fast), dimension(scaling.beta_slow)
    if scaling.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    width = high - low if high != low else 1e-3
    divided = np.clip((np.arange(len(freqs)) - low) / width, 0.0, 1.0)  # 0: as it is, 1: by the full factor
    return np.asarray(freqs / scaling.factor * divided + freqs * (1 - divided))


def rotary_tables(rope: RopeConfig, head_dim: int, rows: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """(cosines, sines), each [rows, head_dim // 2] float32.

    Angles are formed in float32, as Hugging Face does: at position 8,000 that differs from float64 by more than
    the parity tests allow.
    """
    freqs = inverse_frequencies(rope, head_dim).astype(np.float32)
    angles = np.outer(np.arange(rows, dtype=np.float32), freqs)
    gain = np.float32(rope.scaling.attention_factor if isinstance(rope.scaling, YarnScaling) else 1.0)
    return np.cos(angles) * gain, np.sin(angles) * gain
