"""One configuration from two foreign formats; what this version does not implement is refused by its own name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from selfspec.errors import ArtifactError, CheckpointError, SelfSpecError, UnsupportedModelError
from selfspec.models.config import (
    SUPPORTED_MODEL_TYPES,
    Llama3Scaling,
    ModelConfig,
    RopeConfig,
    check_model_type,
    from_gguf,
    from_hf,
)
from selfspec.models.registry import _FAMILIES, family_of

# The config.json of SmolLM2-135M-Instruct, as published.
SMOLLM2: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 1,
    "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 576, "initializer_range": 0.041666666666666664,
    "intermediate_size": 1536, "is_llama_config": True, "max_position_embeddings": 8192, "mlp_bias": False,
    "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30, "num_key_value_heads": 3,
    "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_interleaved": False, "rope_scaling": None,
    "rope_theta": 100000, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
    "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16", "fp16": "float16"}},
    "transformers_version": "4.42.3", "use_cache": True, "vocab_size": 49152,
}  # fmt: skip
LLAMA3_SCALING = {
    "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0, "original_max_position_embeddings": 8192,
    "rope_type": "llama3",
}  # fmt: skip
GGUF: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 30, "llama.context_length": 8192,
    "llama.embedding_length": 576, "llama.feed_forward_length": 1536, "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3, "llama.rope.freq_base": 100000.0, "llama.rope.dimension_count": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 49152, "general.name": "smollm2",
}  # fmt: skip
SMOLLM2_CONFIG = ModelConfig(
    model_type="llama", vocab_size=49152, hidden_size=576, intermediate_size=1536, num_layers=30,
    num_attention_heads=9, num_kv_heads=3, head_dim=64, rms_norm_eps=1e-5, context_length=8192,
    rope=RopeConfig(100000.0), tie_word_embeddings=True,
)  # fmt: skip


def gguf(**changes: Any) -> ModelConfig:
    data = {k: v for k, v in (GGUF | changes).items() if v is not ...}
    return from_gguf(data, tied=True, vocab_size=49152)


def test_smollm2_from_its_config_json() -> None:
    """A published config with all its decoration must pass; every refusal below starts from it."""
    assert from_hf(SMOLLM2) == SMOLLM2_CONFIG


def test_smollm2_from_its_gguf_is_the_same() -> None:
    """Two translations that differ would export two models."""
    assert gguf() == SMOLLM2_CONFIG


def test_defaults_where_hugging_face_has_them() -> None:
    """Absent key/value heads mean as many as heads; absent head_dim is hidden ÷ heads; the head is not tied."""
    small = {
        "model_type": "llama", "vocab_size": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
        "num_attention_heads": 4, "rms_norm_eps": 1e-6, "max_position_embeddings": 128,
    }  # fmt: skip
    config = from_hf(small)
    assert (config.num_kv_heads, config.head_dim, config.tie_word_embeddings) == (4, 16, False)
    assert config.rope == RopeConfig(10000.0)
    assert from_hf(small | {"head_dim": 32}).head_dim == 32
    assert from_hf(small | {"head_dim": None, "num_key_value_heads": None}) == config


def test_rope_as_older_versions_write_it() -> None:
    """rope_theta beside rope_scaling, as in Llama 3.2's config.json."""
    rope = from_hf(SMOLLM2 | {"rope_theta": 500000.0, "rope_scaling": LLAMA3_SCALING}).rope
    assert rope == RopeConfig(500000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192))


def test_rope_as_transformers_5_writes_it() -> None:
    """rope_parameters hold theta too; read the old way, theta would silently be 10,000."""
    data = {k: v for k, v in SMOLLM2.items() if not k.startswith("rope")}
    plain = data | {"rope_parameters": {"rope_theta": 100000, "rope_type": "default"}}
    assert from_hf(plain) == SMOLLM2_CONFIG
    scaled = data | {"rope_parameters": LLAMA3_SCALING | {"rope_theta": 500000.0}}
    assert from_hf(scaled).rope == RopeConfig(500000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"attention_bias": True}, "attention_bias = True"),
        ({"mlp_bias": True}, "mlp_bias = True"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, "rope scaling 'yarn'.*default, llama3"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope scaling 'linear'"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope scaling 'dynamic'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"rope_scaling": LLAMA3_SCALING | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"model_type": "qwen2"}, "unknown model type 'qwen2': known are llama"),
        ({"model_type": "lama"}, "Did you mean 'llama'"),
        ({"model_type": None}, "unknown model type"),
        ({"head_dim": 60}, "head_dim is 60.*multiple of 16"),
        ({"num_key_value_heads": 2}, "9 attention heads do not divide into 2"),
        ({"head_dim": None, "num_attention_heads": 7}, "hidden_size 576 does not divide into 7"),
        ({"num_hidden_layers": 0}, "num_layers is 0"),
        ({"num_hidden_layers": 10**9}, "num_layers is 1000000000"),  # its list of tensors would not fit in memory
        ({"vocab_size": -1}, "vocab_size is -1"),
        ({"rms_norm_eps": 0}, "rms_norm_eps"),
    ],
)
def test_what_is_not_implemented_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    """A key that changes the computation and is ignored gives wrong text without any error."""
    with pytest.raises(UnsupportedModelError, match=named) as caught:
        from_hf(SMOLLM2 | change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "key",
    [
        "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "rms_norm_eps",
        "max_position_embeddings",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [..., None, "many", [1], True])
def test_a_needed_key_that_is_missing_or_no_number_is_named(key: str, value: Any) -> None:
    """KeyError: 'hidden_size', or a comparison of str and int."""
    data = {k: v for k, v in (SMOLLM2 | {key: value}).items() if v is not ...}
    with pytest.raises(CheckpointError, match=key):
        from_hf(data)


@pytest.mark.parametrize(
    "change",
    [
        {"num_hidden_layers": 2.5}, {"head_dim": "64"}, {"num_key_value_heads": "3"}, {"rope_theta": "1e5"},
        {"rope_scaling": "llama3"}, {"rope_scaling": [1]},
        {"rope_scaling": {k: v for k, v in LLAMA3_SCALING.items() if k != "factor"}},
        {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": "low"}},
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_checkpoint_errors(change: dict[str, Any]) -> None:
    """TypeError from the arithmetic behind."""
    with pytest.raises(CheckpointError, match="config"):
        from_hf(SMOLLM2 | change)


def test_neutral_values_of_unknown_keys_are_accepted() -> None:
    """transformers writes every default it knows; refusing 'sliding_window: null' would refuse every model."""
    neutral: dict[str, Any] = {"sliding_window": None, "layer_types": [], "some_flag": False, "quantization_config": {}}
    assert from_hf(SMOLLM2 | neutral) == SMOLLM2_CONFIG


def test_gguf_without_optional_keys() -> None:
    """head_count_kv, freq_base and dimension_count may be absent."""
    config = gguf(**{
        "llama.attention.head_count_kv": ..., "llama.rope.freq_base": ..., "llama.rope.dimension_count": ...,
    })  # fmt: skip
    assert (config.num_kv_heads, config.head_dim, config.rope.theta) == (9, 64, 10000.0)


def test_gguf_head_dim_may_differ_from_hidden_by_heads() -> None:
    """key_length is the head's size; dimension_count must agree with it."""
    assert gguf(**{"llama.attention.key_length": 128, "llama.rope.dimension_count": 128}).head_dim == 128


def test_gguf_rope_divisors_are_kept() -> None:
    """Llama 3 GGUFs carry their scaling as rope_freqs, one divisor a frequency, and no scaling type."""
    config = from_gguf(GGUF, tied=False, vocab_size=49152, rope_divisors=[1.0] * 16 + [32.0] * 16)
    assert config.rope == RopeConfig(100000.0, divisors=(1.0,) * 16 + (32.0,) * 16)
    assert not config.tie_word_embeddings


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"llama.rope.dimension_count": 32}, "partial rotary .32 of 64"),
        ({"llama.rope.scaling.type": "yarn"}, "rope scaling 'yarn'"),
        ({"llama.rope.scaling.type": "linear"}, "rope scaling 'linear'"),
        ({"llama.rope.scale_linear": 4.0}, "scale_linear"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window"),
        ({"llama.attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"general.architecture": "gemma3"}, "unknown model type 'gemma3': known are llama"),
        ({"general.architecture": ...}, "unknown model type"),
        ({"llama.attention.head_count": 0}, "0 attention heads"),
    ],
)
def test_gguf_features_that_are_not_implemented_are_refused_by_name(change: dict[str, Any], named: str) -> None:
    """As for config.json: ignored, they give wrong text."""
    with pytest.raises(UnsupportedModelError, match=named):
        gguf(**change)


@pytest.mark.parametrize(
    "key",
    [
        "block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count",
        "attention.layer_norm_rms_epsilon",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [..., "x", [3, 3]])
def test_gguf_keys_that_are_missing_or_no_number_are_named(key: str, value: Any) -> None:
    """Per-layer lists of head counts exist in the wild; they are not this architecture's."""
    with pytest.raises(CheckpointError, match=key):
        gguf(**{f"llama.{key}": value})


def test_the_config_survives_the_manifest() -> None:
    """Tuples become lists in JSON, nested values become dicts."""
    for rope in (
        RopeConfig(1e4), RopeConfig(5e5, scaling=Llama3Scaling(8.0, 1.0, 4.0, 8192)),
        RopeConfig(5e5, divisors=(1.0, 2.5, 8.0)),
    ):  # fmt: skip
        config = ModelConfig("llama", 32, 64, 96, 2, 4, 2, 16, 1e-6, 128, rope, False)
        assert ModelConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": ...}, {"surprise": 1}, {"rope": None}, {"rope": {}}, {"rope": {"theta": 1e4, "extra": 1}},
        {"rope": {"theta": 1e4, "scaling": {"factor": 1}}}, {"rope": {"theta": 1e4, "divisors": ["x"]}},
        {"rope": {"theta": 1e4, "divisors": 3}}, {"rms_norm_eps": "small"}, {"vocab_size": "32"}, {"num_layers": 0},
        {"head_dim": 12}, {"num_kv_heads": 3}, {"rms_norm_eps": 10**400},
        {"rope": {"theta": 1e4, "divisors": [10**400]}}, {"rope": {"theta": "1e4"}}, {"tie_word_embeddings": "no"},
    ],
)  # fmt: skip
def test_a_damaged_config_in_a_manifest_is_an_artifact_error(change: dict[str, Any]) -> None:
    """Blaming the model ('not supported') for a damaged file sends the user in the wrong direction."""
    good = ModelConfig("llama", 32, 64, 96, 2, 4, 2, 16, 1e-6, 128, RopeConfig(1e4), False).to_dict()
    data = {k: v for k, v in (good | change).items() if v is not ...}
    with pytest.raises(ArtifactError):
        ModelConfig.from_dict(data)


def test_every_supported_model_type_has_a_family_and_no_other_has() -> None:
    """Two lists that drift apart: accepted by the config and unknown to the registry, or built and never reachable."""
    assert sorted(SUPPORTED_MODEL_TYPES) == sorted(_FAMILIES)
    for model_type in SUPPORTED_MODEL_TYPES:
        assert check_model_type(model_type, "here") == model_type
        assert family_of(model_type).tensor_specs(SMOLLM2_CONFIG)
    with pytest.raises(SelfSpecError, match="unknown model type 'mamba': known are llama"):
        family_of("mamba")


def test_a_familys_tensors_are_those_of_the_checkpoint_each_once() -> None:
    """A tensor named twice or forgotten: 30 layers of 9, embedding and norm, and a head only where it is not tied."""
    specs = family_of("llama").tensor_specs(SMOLLM2_CONFIG)
    parts = [part for s in specs for part in s.parts]
    assert len(parts) == len(set(parts)) == 30 * 9 + 2
    assert "lm_head.weight" not in parts
    untied = ModelConfig.from_dict(SMOLLM2_CONFIG.to_dict() | {"tie_word_embeddings": False})
    assert [s.parts for s in family_of("llama").tensor_specs(untied)][-1] == ("lm_head.weight",)
    assert all(len(s.parts) == len(s.part_shapes) for s in specs)
