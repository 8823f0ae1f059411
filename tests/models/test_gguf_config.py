"""GGUF metadata as the same configuration as its folder's; what is not implemented is refused by name."""

from __future__ import annotations

import math
from typing import Any

import pytest

from selfspec.errors import CheckpointError, UnsupportedModelError
from selfspec.models.config import LinearScaling, ModelConfig, RopeConfig, YarnScaling
from selfspec.models.gguf_config import from_gguf

GGUF: dict[str, Any] = {
    "general.architecture": "llama", "llama.block_count": 30, "llama.context_length": 8192,
    "llama.embedding_length": 576, "llama.feed_forward_length": 1536, "llama.attention.head_count": 9,
    "llama.attention.head_count_kv": 3, "llama.rope.freq_base": 100000.0, "llama.rope.dimension_count": 64,
    "llama.attention.layer_norm_rms_epsilon": 1e-5, "llama.vocab_size": 49152, "general.name": "smollm2",
}  # fmt: skip


def gguf(**changes: Any) -> ModelConfig:
    data = {k: v for k, v in (GGUF | changes).items() if v is not ...}
    return from_gguf(data, tied=True, vocab_size=49152)


def of(arch: str, **own: Any) -> ModelConfig:
    """Another architecture with llama's sizes; keys of its own, with _ for the dot."""
    data = {k.replace("llama", arch): v for k, v in GGUF.items()} | {"general.architecture": arch}
    return from_gguf(data | {f"{arch}.{k}": v for k, v in own.items()}, tied=True, vocab_size=49152)


def test_smollm2_from_its_gguf_is_the_same(smollm2: ModelConfig) -> None:
    """Two translations that differ would export two models."""
    assert gguf() == smollm2


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
        ({"llama.rope.scaling.type": "longrope"}, "rope scaling 'longrope': known are linear, none, yarn"),
        ({"llama.rope.scaling.yarn_log_multiplier": 0.1}, "yarn_log_multiplier"),
        ({"llama.final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"llama.attention.clamp_kqv": 8.0}, "attention.clamp_kqv"),
        ({"llama.attention.causal": False}, "attention.causal is false"),
        ({"llama.attention.scale": 0.5}, "attention.scale"),
        ({"llama.residual_scale": 0.5}, "residual_scale"),
        ({"llama.rope.scaling.yarn_ext_factor": 1.0}, "yarn_ext_factor"),
        ({"llama.rope.scaling.attn_factor": 0.5}, "attn_factor without yarn"),
        ({"llama.surprise": [1]}, "llama.surprise"),
        ({"llama.attention.value_length": 32}, "values of another size"),
        ({"llama.rope.scale_linear": 4.0}, "scale_linear"),
        ({"llama.expert_count": 8}, "llama.expert_count"),
        ({"llama.attention.sliding_window": 4096}, "sliding_window"),
        ({"llama.attn_logit_softcapping": 30.0}, "attn_logit_softcapping"),
        ({"general.architecture": "gemma2"}, "unknown model type 'gemma2': known are gemma3_text, granite, granitemoe"),
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


def test_neutral_values_of_unknown_keys_are_accepted() -> None:
    """Converters write every default they know."""
    neutral = {
        "llama.expert_count": 0, "llama.attention.causal": True, "llama.rope.scale_linear": 1.0, "llama.vocab_size": 9,
        "llama.tensor_data_layout": "Meta AI original pth", "llama.attention.sliding_window": 0, "llama.nothing": "",
    }  # fmt: skip
    assert gguf(**neutral) == gguf()


def test_a_factor_without_a_type_is_linear() -> None:
    """llama.cpp's rule; ignored, every position beyond the first is another."""
    assert gguf(**{"llama.rope.scaling.factor": 4.0}).rope.scaling == LinearScaling(4.0)
    assert gguf(**{"llama.rope.scaling.factor": 1.0}).rope.scaling is None
    none = {"llama.rope.scaling.factor": 4.0, "llama.rope.scaling.type": "none"}
    assert gguf(**none).rope.scaling is None


def test_rope_scalings() -> None:
    """llama.cpp's attention factor is a correction of the usual one, not the whole."""
    linear = gguf(**{"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 4.0})
    assert linear.rope == RopeConfig(1e5, scaling=LinearScaling(4.0))
    keys = {"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 4.0}
    assert gguf(**keys).rope.scaling == YarnScaling(4.0, 8192, 0.1 * math.log(4) + 1)
    more = {"llama.rope.scaling.original_context_length": 2048, "llama.rope.scaling.attn_factor": 0.5}
    assert gguf(**keys, **more).rope.scaling == YarnScaling(4.0, 2048, 0.5 * (0.1 * math.log(4) + 1))


def test_biases_are_told_by_the_tensors() -> None:
    """No key says so: a Qwen2 GGUF has them, a Llama GGUF may."""
    config = from_gguf(GGUF, tied=True, vocab_size=49152, biases=frozenset(("qkv", "mlp")))
    assert (config.qkv_bias, config.output_bias, config.mlp_bias) == (True, False, True)


def test_gemma3_knows_what_its_file_does_not_say() -> None:
    """Five of six layers slide, by base 10,000; the embedding is scaled; the 27B's scores by another number."""
    keys = {"attention.sliding_window": 512}
    config = of("gemma3", **keys)
    assert (config.model_type, config.activation, config.qk_norm) == ("gemma3_text", "gelu_tanh", "head")
    assert config.sliding_layers == tuple(i for i in range(30) if i % 6 != 5)
    assert (config.sliding_window, config.local_rope) == (512, RopeConfig(1e4))
    assert (config.embedding_multiplier, config.attention_scale) == (24.0, 0.125)
    assert of("gemma3", **keys, block_count=62).attention_scale == 1 / math.sqrt(576 / 9)
    assert of("gemma3", **keys, **{"rope.freq_base_swa": 5e3}).local_rope == RopeConfig(5e3)
    with pytest.raises(UnsupportedModelError, match="sliding_window_pattern"):
        of("gemma3", **keys, **{"attention.sliding_window_pattern": 4})
    with pytest.raises(CheckpointError, match=r"attention\.sliding_window"):
        of("gemma3")


def test_other_architectures() -> None:
    """SmolLM3's every fourth layer without rope, Granite's multipliers, norms of q and k."""
    assert of("smollm3").nope_layers == (3, 7, 11, 15, 19, 23, 27)
    granite = of("granite", **{
        "attention.scale": 0.5, "embedding_scale": 12.0, "residual_scale": 0.2, "logit_scale": 8.0,
    })  # fmt: skip
    assert (granite.attention_scale, granite.embedding_multiplier) == (0.5, 12.0)
    assert (granite.residual_multiplier, granite.logits_divisor) == (0.2, 8.0)
    assert (of("qwen3").qk_norm, of("olmo2").qk_norm, of("qwen2").qk_norm) == ("head", "projection", None)


@pytest.mark.parametrize("arch", ["gemma3", "smollm3"])
def test_two_billion_layers_are_refused_at_once(arch: str) -> None:
    """Layer lists of a hundred thousand entries, each looked up in the other."""
    with pytest.raises(UnsupportedModelError, match="num_layers is 2147483647"):
        of(arch, block_count=2**31 - 1, **{"attention.sliding_window": 512} if arch == "gemma3" else {})
