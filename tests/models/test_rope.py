"""Rotary tables by hand, and Llama 3's scaling against the formula as the paper's code states it."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from selfspec.errors import UnsupportedModelError
from selfspec.models.config import Llama3Scaling, RopeConfig
from selfspec.models.rope import inverse_frequencies, rotary_tables

LLAMA32 = Llama3Scaling(32.0, 1.0, 4.0, 8192)


def test_frequencies_by_hand() -> None:
    """theta ** (-2i / d): 1, 1/10, 1/100, 1/1000 for theta 10,000 and d 8."""
    np.testing.assert_allclose(inverse_frequencies(RopeConfig(1e4), 8), [1, 0.1, 0.01, 0.001], rtol=1e-12)
    np.testing.assert_allclose(inverse_frequencies(RopeConfig(16.0), 4), [1, 0.25], rtol=1e-12)


def test_tables_by_hand() -> None:
    """Row = position, column = pair; position 0 rotates by nothing. Half a head wide, as the kernel wants them."""
    cos, sin = rotary_tables(RopeConfig(1e4), 8, 5)
    assert cos.shape == sin.shape == (5, 4)
    assert cos.dtype == sin.dtype == np.float32
    np.testing.assert_array_equal(cos[0], [1, 1, 1, 1])
    np.testing.assert_array_equal(sin[0], [0, 0, 0, 0])
    for row, column, angle in ((1, 0, 1.0), (3, 1, 0.3), (4, 2, 0.04), (2, 3, 0.002)):
        assert cos[row, column] == pytest.approx(math.cos(angle), abs=1e-7)
        assert sin[row, column] == pytest.approx(math.sin(angle), abs=1e-7)


def test_angles_are_formed_in_float32() -> None:
    """Angles in float64 differ from Hugging Face's at position 8,000 by more than parity allows."""
    cos, sin = rotary_tables(RopeConfig(1e5), 64, 8192)
    freqs = inverse_frequencies(RopeConfig(1e5), 64).astype(np.float32)
    for row in (1, 777, 8191):
        angles = np.float32(row) * freqs
        np.testing.assert_array_equal(cos[row], np.cos(angles))
        np.testing.assert_array_equal(sin[row], np.sin(angles))


def llama3_as_published(freqs: list[float], scaling: Llama3Scaling) -> list[float]:
    """apply_scaling of Meta's llama-models, rewritten from its description, one frequency at a time."""
    low_wavelength = scaling.original_max_position_embeddings / scaling.low_freq_factor
    high_wavelength = scaling.original_max_position_embeddings / scaling.high_freq_factor
    result = []
    for freq in freqs:
        wavelength = 2 * math.pi / freq
        if wavelength < high_wavelength:
            result.append(freq)
        elif wavelength > low_wavelength:
            result.append(freq / scaling.factor)
        else:
            share = (scaling.original_max_position_embeddings / wavelength - scaling.low_freq_factor) / (
                scaling.high_freq_factor - scaling.low_freq_factor
            )
            result.append((1 - share) * freq / scaling.factor + share * freq)
    return result


@pytest.mark.parametrize("scaling", [LLAMA32, Llama3Scaling(8.0, 1.0, 4.0, 8192), Llama3Scaling(4.0, 1.0, 2.0, 64)])
@pytest.mark.parametrize("head_dim", [8, 64, 128])
def test_llama3_scaling_as_published(scaling: Llama3Scaling, head_dim: int) -> None:
    """The ramp upside down, or its ends swapped: short texts hardly notice, long ones fall apart."""
    plain = inverse_frequencies(RopeConfig(5e5), head_dim)
    found = inverse_frequencies(RopeConfig(5e5, scaling=scaling), head_dim)
    np.testing.assert_allclose(found, llama3_as_published(plain.tolist(), scaling), rtol=1e-12)


def test_llama3_scaling_touches_long_wavelengths_only() -> None:
    """All three regimes must occur for the test above to mean anything."""
    plain = inverse_frequencies(RopeConfig(5e5), 64)
    ratio = plain / inverse_frequencies(RopeConfig(5e5, scaling=LLAMA32), 64)
    assert ratio[0] == 1
    assert ratio[-1] == pytest.approx(32)
    assert ((ratio > 1.001) & (ratio < 31.999)).any()


def test_divisors_divide_frequencies() -> None:
    """GGUF's rope_freqs are factors of the wavelength; multiplied instead, Llama 3 fails on longer texts."""
    found = inverse_frequencies(RopeConfig(1e4, divisors=(1.0, 2.0, 4.0, 8.0)), 8)
    np.testing.assert_allclose(found, [1, 0.05, 0.0025, 0.000125], rtol=1e-12)


def test_divisors_made_from_the_scaling_give_the_same_tables() -> None:
    """The two ways in which Llama 3 checkpoints state one thing: config.json and rope_freqs.weight."""
    plain = inverse_frequencies(RopeConfig(5e5), 64)
    divisors = tuple((plain / llama3_as_published(plain.tolist(), LLAMA32)).tolist())
    by_divisors = rotary_tables(RopeConfig(5e5, divisors=divisors), 64, 300)
    by_scaling = rotary_tables(RopeConfig(5e5, scaling=LLAMA32), 64, 300)
    for a, b in zip(by_divisors, by_scaling, strict=True):
        np.testing.assert_allclose(a, b, atol=1e-4)


def test_divisors_of_another_length_are_refused_with_both_numbers() -> None:
    """Broadcasting would make something of one divisor, or of none."""
    with pytest.raises(UnsupportedModelError, match="rope_freqs has 3 entries, but head_dim 8 needs 4"):
        inverse_frequencies(RopeConfig(1e4, divisors=(1.0, 2.0, 3.0)), 8)


@pytest.mark.reference
@pytest.mark.parametrize("scaled", [False, True])
def test_frequencies_are_transformers_own(scaled: bool) -> None:
    """The reference that parity is measured against."""
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    parameters: dict[str, Any] = {"rope_theta": 5e5, "rope_type": "default"}
    if scaled:
        parameters |= {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }  # fmt: skip
    config = LlamaConfig(
        hidden_size=256, num_attention_heads=4, head_dim=64, rope_parameters=parameters, max_position_embeddings=131072
    )
    theirs = LlamaRotaryEmbedding(config).inv_freq.numpy()
    ours = inverse_frequencies(RopeConfig(5e5, scaling=LLAMA32 if scaled else None), 64)
    np.testing.assert_allclose(ours, theirs, rtol=2e-6)
