"""One configuration: it survives the manifest, and damage to it is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from selfspec.errors import ArtifactError, SelfSpecError
from selfspec.models.config import (
    SUPPORTED_MODEL_TYPES,
    LinearScaling,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    YarnScaling,
    check_model_type,
)
from selfspec.models.registry import _FAMILIES, family_of

SMALL = ModelConfig("llama", 32, 64, 96, 2, 4, 2, 16, 1e-6, 128, RopeConfig(1e4), False, 0.25)


FULL = replace(
    SMALL, model_type="gemma3_text", num_layers=4, activation="gelu_tanh", qkv_bias=True, output_bias=True,
    mlp_bias=True, qk_norm="head", embedding_multiplier=8.0, residual_multiplier=0.5, logits_divisor=3.0,
    sliding_window=5, sliding_layers=(0, 2), nope_layers=(1,), local_rope=RopeConfig(500.0),
)  # fmt: skip


@pytest.mark.parametrize(
    "rope",
    [
        RopeConfig(1e4), RopeConfig(5e5, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        RopeConfig(5e5, divisors=(1.0, 2.5, 8.0)), RopeConfig(1e4, scaling=LinearScaling(2.0)),
        RopeConfig(1e4, scaling=YarnScaling(4.0, 4096, 1.1, 16.0, 2.0, False)),
    ],
)  # fmt: skip
@pytest.mark.parametrize("base", [SMALL, FULL])
def test_the_config_survives_the_manifest(base: ModelConfig, rope: RopeConfig) -> None:
    """Tuples become lists in JSON, nested values become dicts, and a scaling must come back as its own kind."""
    config = replace(base, rope=rope)
    assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": ...}, {"surprise": 1}, {"rope": None}, {"rope": {}}, {"rope": {"theta": 1e4, "extra": 1}},
        {"rope": {"theta": 1e4, "scaling": {"factor": 1}}}, {"rope": {"theta": 1e4, "divisors": ["x"]}},
        {"rope": {"theta": 1e4, "divisors": 3}}, {"rms_norm_eps": "small"}, {"vocab_size": "32"}, {"num_layers": 0},
        {"head_dim": 12}, {"num_kv_heads": 3}, {"rms_norm_eps": 10**400},
        {"rope": {"theta": 1e4, "divisors": [10**400]}}, {"rope": {"theta": "1e4"}}, {"tie_word_embeddings": "no"},
        {"rope": {"theta": 1e4, "scaling": {"rope_type": "spiral", "factor": 2}}},
        {"rope": {"theta": 1e4, "scaling": {"rope_type": "linear", "factor": -2}}}, {"rope": {"theta": 0.5}},
        {"rope": {"theta": 1e4, "scaling": "linear"}}, {"attention_scale": ...}, {"attention_scale": 0},
        {"activation": "relu"}, {"qk_norm": "layer"}, {"qkv_bias": 1}, {"sliding_layers": [0]}, {"sliding_window": 8},
        {"sliding_window": 0, "sliding_layers": [0]}, {"sliding_window": 8, "sliding_layers": [2]},
        {"nope_layers": [-1]}, {"nope_layers": 3}, {"nope_layers": ["0"]}, {"local_rope": 7}, {"logits_divisor": "x"},
        {"model_type": 5}, {"embedding_multiplier": None}, {"residual_multiplier": 10**400},
    ],
)  # fmt: skip
def test_a_damaged_config_in_a_manifest_is_an_artifact_error(change: dict[str, Any]) -> None:
    """Blaming the model ('not supported') for a damaged file sends the user in the wrong direction."""
    data = {k: v for k, v in (SMALL.to_dict() | change).items() if v is not ...}
    with pytest.raises(ArtifactError):
        ModelConfig.from_dict(data)


def test_every_supported_model_type_has_a_family_and_no_other_has(smollm2: ModelConfig) -> None:
    """Two lists that drift apart: accepted by the config and unknown to the registry, or built and never reachable."""
    assert sorted(SUPPORTED_MODEL_TYPES) == sorted(_FAMILIES)
    for model_type in SUPPORTED_MODEL_TYPES:
        assert check_model_type(model_type, "here") == model_type
        assert family_of(model_type).tensor_specs(smollm2)
    with pytest.raises(SelfSpecError, match="unknown model type 'mamba': known are gemma3_text, granite, granitemoe"):
        family_of("mamba")


def test_a_familys_tensors_are_those_of_the_checkpoint_each_once(smollm2: ModelConfig) -> None:
    """A tensor named twice or forgotten: 30 layers of 9, embedding and norm, and a head only where it is not tied."""
    specs = family_of("llama").tensor_specs(smollm2)
    parts = [part for s in specs for part in s.parts]
    assert len(parts) == len(set(parts)) == 30 * 9 + 2
    assert "lm_head.weight" not in parts
    untied = ModelConfig.from_dict(smollm2.to_dict() | {"tie_word_embeddings": False})
    assert [s.parts for s in family_of("llama").tensor_specs(untied)][-1] == ("lm_head.weight",)
    assert all(len(s.parts) == len(s.part_shapes) for s in specs)


@pytest.mark.parametrize("model_type", SUPPORTED_MODEL_TYPES)
def test_biases_and_norms_of_q_and_k_are_tensors_where_the_config_says_so(model_type: str) -> None:
    """A bias that is asked for and not read gives another model; one that is read and absent, no model."""
    family = family_of(model_type)

    def names(config: ModelConfig) -> set[str]:
        return {part for spec in family.tensor_specs(config) for part in spec.parts}

    layer = "model.layers.1"
    assert names(replace(SMALL, qkv_bias=True)) - names(SMALL) == {
        f"model.layers.{i}.self_attn.{p}_proj.bias" for i in (0, 1) for p in "qkv"
    }
    assert f"{layer}.self_attn.o_proj.bias" in names(replace(SMALL, output_bias=True))
    assert f"{layer}.mlp.up_proj.bias" in names(replace(SMALL, mlp_bias=True))
    assert f"{layer}.self_attn.q_norm.weight" in names(replace(SMALL, qk_norm="head"))
    whole = {s.name: s.part_shapes for s in family.tensor_specs(replace(SMALL, qk_norm="projection"))}
    assert whole[f"{layer}.self_attn.q_norm.weight"] == ((64,),)
    assert whole[f"{layer}.self_attn.k_norm.weight"] == ((32,),)


@pytest.mark.parametrize("model_type", SUPPORTED_MODEL_TYPES)
def test_only_gemmas_norms_are_stored_as_one_plus_weight(model_type: str) -> None:
    """Forgotten, every norm is a fraction of itself; applied elsewhere, twice as loud."""
    specs = family_of(model_type).tensor_specs(replace(SMALL, qk_norm="head", qkv_bias=True))
    expected = 1.0 if model_type == "gemma3_text" else 0.0
    for spec in specs:
        assert spec.offset == (expected if "norm" in spec.name else 0.0), spec.name
