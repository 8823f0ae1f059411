"""Hugging Face's config.json as one configuration; what this version does not implement is refused by its own name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from selfspec.errors import CheckpointError, UnsupportedModelError
from selfspec.models.config import LinearScaling, Llama3Scaling, ModelConfig, RopeConfig, YarnScaling
from selfspec.models.hf_config import from_hf
from selfspec.models.hf_inert import GENERATION_KEYS

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


def test_smollm2_from_its_config_json(smollm2: ModelConfig) -> None:
    """A published config with all its decoration must pass; every refusal below starts from it."""
    assert from_hf(SMOLLM2) == smollm2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("num_return_sequences", 1), ("num_return_sequences", 4), ("max_sequence_length", 256), ("length_penalty", 1.0),
        ("typical_p", 1.0), ("encoder_no_repeat_ngram_size", 0), ("exponential_decay_length_penalty", [8, 1.1]),
        ("forced_bos_token_id", 7), ("watermarking_config", {"bias": 2.0}), ("tf_legacy_loss", False),
        ("use_bfloat16", True), ("num_logits_to_keep", 1), ("model_max_length", 2048), ("attention_dropout", 0.1),
        ("_name_or_path", "/home/me/llama"), ("use_cache", False), ("quantization_config", None),
        ("rope_scaling", None), ("rope_scaling", {"type": "default"}), ("rope_scaling", {"rope_type": "default"}),
    ],
)  # fmt: skip
def test_what_does_not_touch_the_forward_pass_is_read_over(smollm2: ModelConfig, key: str, value: Any) -> None:
    """transformers 4 wrote all generation settings into config.json, where a config was dumped whole."""
    assert from_hf(SMOLLM2 | {key: value}) == smollm2


@pytest.mark.parametrize(
    ("key", "value"),
    [("quantization_config", {"bits": 4}), ("layer_norm_eps", 1e-5), ("logit_scale", 0.5), ("residual_dropout_x", 1)],
)
def test_what_may_touch_it_is_still_refused_by_name(key: str, value: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=key):
        from_hf(SMOLLM2 | {key: value})


@pytest.mark.reference
def test_generation_keys_are_the_fields_of_transformers_own_class() -> None:
    """A list written by hand rots: every field of the installed GenerationConfig must be on it."""
    from transformers import GenerationConfig

    fields = {name for name in vars(GenerationConfig()) if not name.startswith("_")}
    assert fields <= GENERATION_KEYS, sorted(fields - GENERATION_KEYS)


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


def test_rope_as_transformers_5_writes_it(smollm2: ModelConfig) -> None:
    """rope_parameters hold theta too; read the old way, theta would silently be 10,000."""
    data = {k: v for k, v in SMOLLM2.items() if not k.startswith("rope")}
    plain = data | {"rope_parameters": {"rope_theta": 100000, "rope_type": "default"}}
    assert from_hf(plain) == smollm2
    scaled = data | {"rope_parameters": LLAMA3_SCALING | {"rope_theta": 500000.0}}
    assert from_hf(scaled).rope == RopeConfig(500000.0, scaling=Llama3Scaling(32.0, 1.0, 4.0, 8192))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"auto_map": {"AutoModelForCausalLM": "modeling.Model"}}, "auto_map"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0, "surprise": 1}}, "rope setting surprise"),
        ({"hidden_act": "gelu"}, "hidden_act = 'gelu'"),
        ({"attn_logit_softcapping": 50.0}, "attn_logit_softcapping"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor"),
        ({"rope_interleaved": True}, "rope_interleaved"),
        ({"sliding_window": 4096}, "sliding_window"),
        ({"num_local_experts": 8}, "num_local_experts"),
        ({"layer_types": ["full_attention"]}, "layer_types"),
        ({"quantization_config": {"bits": 4}}, "quantization_config"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope scaling 'longrope'.*default, linear, llama3, yarn"),
        ({"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4}}, "rope scaling 'dynamic'"),
        (
            {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}},
            "partial_rotary_factor",
        ),
        ({"rope_scaling": LLAMA3_SCALING | {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ({"model_type": "qwen9"}, "unknown model type 'qwen9': known are gemma3_text, granite, granitemoe"),
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
        {"rope_scaling": LLAMA3_SCALING | {"low_freq_factor": "low"}}, {"attention_bias": 1}, {"mlp_bias": "no"},
        {"tie_word_embeddings": "yes"}, {"rope_scaling": {"type": "linear"}},
        {"rope_scaling": {"type": "yarn", "factor": 2.0, "truncate": 1}},
    ],
)  # fmt: skip
def test_values_of_the_wrong_type_are_checkpoint_errors(change: dict[str, Any]) -> None:
    """TypeError from the arithmetic behind."""
    with pytest.raises(CheckpointError, match="config"):
        from_hf(SMOLLM2 | change)


def test_neutral_values_of_unknown_keys_are_accepted(smollm2: ModelConfig) -> None:
    """transformers writes every default it knows; refusing 'sliding_window: null' would refuse every model."""
    neutral: dict[str, Any] = {"sliding_window": None, "layer_types": [], "some_flag": False, "quantization_config": {}}
    assert from_hf(SMOLLM2 | neutral) == smollm2


# Other families: what of a published config.json is particular, and what becomes of it.

SHAPE: dict[str, Any] = {
    "vocab_size": 1024, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-6, "max_position_embeddings": 4096,
}  # fmt: skip


def family(model_type: str, **own: Any) -> ModelConfig:
    return from_hf(SHAPE | {"model_type": model_type} | own)


def test_qwen2_has_biases_of_qkv_and_ignores_a_window_that_is_switched_off() -> None:
    """Qwen2.5's config.json names a sliding window and does not use it."""
    config = family("qwen2", sliding_window=32768, use_sliding_window=False, max_window_layers=2, rope_theta=1e6)
    assert (config.qkv_bias, config.output_bias, config.mlp_bias, config.qk_norm) == (True, False, False, None)
    assert (config.sliding_window, config.sliding_layers, config.rope.theta) == (None, (), 1e6)
    late = family("qwen2", sliding_window=64, use_sliding_window=True, max_window_layers=4)
    assert (late.sliding_window, late.sliding_layers, late.local_rope) == (64, (4, 5), None)
    listed = ["full_attention", "sliding_attention"] * 3
    assert family("qwen2", sliding_window=64, use_sliding_window=True, layer_types=listed).sliding_layers == (1, 3, 5)


def test_qwen3_norms_q_and_k_by_head_and_has_a_head_of_its_own_size() -> None:
    """head_dim is 128 where the config is silent, not hidden ÷ heads."""
    config = family("qwen3", head_dim=32)
    assert (config.qk_norm, config.head_dim, config.qkv_bias) == ("head", 32, False)
    assert config.attention_scale == 1 / math.sqrt(32)
    assert family("qwen3").head_dim == 128
    assert family("qwen3", attention_bias=True).output_bias


def test_gemma3_slides_five_of_six_layers_by_a_rope_of_their_own() -> None:
    """The old keys: a pattern, a local base, scaling for the full layers only; tied unless said otherwise."""
    config = family("gemma3_text", head_dim=32, query_pre_attn_scalar=64, sliding_window=512, num_hidden_layers=7)
    assert config.sliding_layers == (0, 1, 2, 3, 4, 6)
    assert (config.rope, config.local_rope) == (RopeConfig(1e6), RopeConfig(1e4))
    assert (config.attention_scale, config.embedding_multiplier, config.tie_word_embeddings) == (0.125, 8.0, True)
    assert (config.activation, config.qk_norm) == ("gelu_tanh", "head")
    scaled = family("gemma3_text", rope_scaling={"rope_type": "linear", "factor": 8.0}, rope_local_base_freq=5e3)
    assert (scaled.rope.scaling, scaled.local_rope) == (LinearScaling(8.0), RopeConfig(5e3))
    assert scaled.head_dim == 256


def test_gemma3_as_transformers_5_writes_it() -> None:
    """Ropes by layer type, and the types themselves."""
    config = family(
        "gemma3_text", sliding_window=512, layer_types=["sliding_attention"] * 5 + ["full_attention"],
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 2e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
        },
    )  # fmt: skip
    assert config.rope == RopeConfig(2e6, scaling=LinearScaling(8.0))
    assert (config.local_rope, config.sliding_layers) == (RopeConfig(2e4), (0, 1, 2, 3, 4))


def test_gemma3_ropes_without_a_theta_have_each_its_own() -> None:
    """A rope_theta of the whole config is the full layers', and never the sliding ones'."""
    kinds = {"full_attention": {"rope_type": "default"}, "sliding_attention": {"rope_type": "default"}}
    config = family("gemma3_text", rope_parameters=kinds, rope_theta=5e4, rope_local_base_freq=500.0)
    assert (config.rope, config.local_rope) == (RopeConfig(5e4), RopeConfig(500.0))
    config = family("gemma3_text", rope_parameters={"full_attention": {}}, rope_theta=5e4)
    assert (config.rope, config.local_rope) == (RopeConfig(5e4), RopeConfig(1e4))


def test_a_window_that_is_null_is_none() -> None:
    """Absent means Hugging Face's default of 4,096, null means no window."""
    on = {"use_sliding_window": True, "max_window_layers": 2}
    assert family("qwen2", **on).sliding_window == 4096
    assert family("qwen2", **on, sliding_window=None).sliding_layers == ()
    assert family("qwen3", **on, sliding_window=None).sliding_layers == ()


def test_smollm3_a_one_means_rope_and_a_zero_none() -> None:
    """The key is called no_rope_layers; read by its name, three layers of four lose their positions."""
    assert family("smollm3", no_rope_layers=[1, 1, 1, 0, 1, 1]).nope_layers == (3,)
    config = family("smollm3")
    assert (config.nope_layers, config.rope.theta, config.tie_word_embeddings) == ((3,), 2e6, True)
    assert family("smollm3", no_rope_layer_interval=2).nope_layers == (1, 3, 5)
    sliding = family("smollm3", use_sliding_window=True, sliding_window=99)
    assert (sliding.sliding_window, sliding.sliding_layers) == (99, (3,))


def test_granite_has_four_multipliers() -> None:
    """attention_multiplier replaces 1/sqrt(head_dim), logits_scaling divides."""
    config = family(
        "granite", embedding_multiplier=12.0, residual_multiplier=0.22, attention_multiplier=0.0078125,
        logits_scaling=8.0,
    )  # fmt: skip
    assert (config.embedding_multiplier, config.residual_multiplier) == (12.0, 0.22)
    assert (config.attention_scale, config.logits_divisor) == (0.0078125, 8.0)
    assert family("granite").attention_scale == 1.0


def test_olmo2_norms_whole_projections() -> None:
    """Its q_norm is as wide as all heads together."""
    assert family("olmo2").qk_norm == "projection"


def test_yarn_infers_its_attention_factor() -> None:
    """0.1 ln(factor) + 1 where nothing is said, a ratio where mscale is; the original context may be the context."""
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    scaling = family("qwen2", rope_scaling=yarn).rope.scaling
    assert scaling == YarnScaling(4.0, 1024, 0.1 * math.log(4) + 1)
    found = family("llama", rope_scaling=yarn | {"attention_factor": 1.5, "beta_fast": 16, "truncate": False})
    assert found.rope.scaling == YarnScaling(4.0, 1024, 1.5, 16.0, 1.0, False)
    both = family("llama", rope_scaling={"type": "yarn", "factor": 2.0, "mscale": 2.0, "mscale_all_dim": 1.0})
    ratio = (0.1 * 2.0 * math.log(2) + 1) / (0.1 * math.log(2) + 1)
    assert both.rope.scaling == YarnScaling(2.0, 4096, ratio)
    silent = family("llama", rope_scaling={"type": "yarn", "original_max_position_embeddings": 1024})
    assert isinstance(silent.rope.scaling, YarnScaling)
    assert silent.rope.scaling.factor == 4.0


@pytest.mark.parametrize(
    ("model_type", "own", "error", "named"),
    [
        ("gemma3_text", {"attn_logit_softcapping": 50.0}, UnsupportedModelError, "attn_logit_softcapping"),
        ("gemma3_text", {"final_logit_softcapping": 30.0}, UnsupportedModelError, "final_logit_softcapping"),
        ("gemma3_text", {"use_bidirectional_attention": True}, UnsupportedModelError, "use_bidirectional_attention"),
        ("gemma3_text", {"rope_parameters": {"rope_type": "default"}}, CheckpointError, "full_attention"),
        ("gemma3_text", {"rope_parameters": {"full_attention": 3}}, CheckpointError, "full_attention"),
        ("gemma3_text", {"hidden_activation": "gelu"}, UnsupportedModelError, "hidden_activation = 'gelu'"),
        ("gemma3_text", {"query_pre_attn_scalar": 0}, UnsupportedModelError, "query_pre_attn_scalar"),
        ("gemma3_text", {"sliding_window": 0}, UnsupportedModelError, "sliding_window"),
        ("gemma3_text", {"sliding_window": None}, UnsupportedModelError, "sliding_window is null"),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {}}, "rope_scaling": {"rope_type": "linear", "factor": 2.0}},
            UnsupportedModelError,
            "rope_parameters and rope_scaling differ",
        ),
        (
            "gemma3_text",
            {"rope_parameters": {"full_attention": {"rope_type": "yarn", "truncate": False}}},
            UnsupportedModelError,
            "truncate = false",
        ),
        (
            "llama",
            {
                "rope_parameters": {"rope_type": "linear", "factor": 2.0},
                "rope_scaling": {"rope_type": "linear", "factor": 4.0},
            },
            UnsupportedModelError,
            "rope_parameters and rope_scaling differ",
        ),
        ("qwen3", {"layer_types": ["full_attention"]}, CheckpointError, "list of 6"),
        ("qwen3", {"layer_types": ["linear_attention"] * 6}, UnsupportedModelError, "layer type 'linear_attention'"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 6}, UnsupportedModelError, "sliding window go together"),
        ("qwen3", {"num_experts": 8}, UnsupportedModelError, "num_experts"),
        ("smollm3", {"no_rope_layers": [1, 0]}, CheckpointError, "list of 6 flags"),
        ("smollm3", {"no_rope_layers": [1, 2] * 3}, CheckpointError, "list of 6 flags"),
        ("smollm3", {"no_rope_layer_interval": 0}, UnsupportedModelError, "no_rope_layer_interval"),
        ("granite", {"logits_scaling": 0}, UnsupportedModelError, "logits_divisor"),
        ("granite", {"attention_multiplier": "x"}, CheckpointError, "attention_multiplier"),
        ("granite", {"num_local_experts": 4}, UnsupportedModelError, "num_local_experts"),
        ("olmo2", {"sliding_window": 4096}, UnsupportedModelError, "sliding_window"),
        ("qwen2", {"attention_bias": True}, UnsupportedModelError, "attention_bias"),
    ],
)
def test_what_a_family_cannot_do_is_refused_by_name(
    model_type: str, own: dict[str, Any], error: type[Exception], named: str
) -> None:
    """A key that another family knows is not therefore known to this one."""
    with pytest.raises(error, match=named):
        family(model_type, **own)


@pytest.mark.parametrize("value", [[], ["silu"], {"a": 1}, 3, True])
def test_an_activation_that_is_no_name_is_refused(value: Any) -> None:
    """TypeError: unhashable type, found by damaging files."""
    with pytest.raises(UnsupportedModelError, match="hidden_act"):
        from_hf(SMOLLM2 | {"hidden_act": value})


def test_two_billion_layers_are_refused_before_they_are_listed() -> None:
    """A list of every fourth of them, before anyone asks whether there can be so many."""
    many = {"model_type": "smollm3", "num_hidden_layers": 2**31 - 1, "rope_interleaved": None}
    with pytest.raises(UnsupportedModelError, match="num_layers is 2147483647"):
        from_hf(SMOLLM2 | many)
