"""What every translation of SmolLM2-135M must come to."""

from __future__ import annotations

import pytest

from selfspec.models.config import ModelConfig, RopeConfig


@pytest.fixture(scope="session")
def smollm2() -> ModelConfig:
    return ModelConfig(
        model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
        num_attention_heads=9, num_kv_heads=3, head_dim=64, rms_norm_eps=1e-5, context_length=8192,
        rope=RopeConfig(100000.0), tie_word_embeddings=True,
        attention_scale=0.125,
    )  # fmt: skip
