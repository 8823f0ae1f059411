"""GGUF metadata → :class:`ModelConfig`. Knows llama.cpp's key names, its defaults, and what it keeps to itself."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from typing import Any

from ..errors import UnsupportedModelError, unknown_name
from .config import (
    MAX_LAYERS,
    MOE_MODEL_TYPES,
    LinearScaling,
    ModelConfig,
    RopeConfig,
    RopeScaling,
    YarnScaling,
    check_model_type,
)
from .foreign import Settings
from .hf_rope import yarn_attention_factor

_WHERE = "the GGUF metadata"
_MODEL_TYPES = {"gemma3": "gemma3_text", "qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe"}  # where names differ
_KEYS = frozenset(
    "context_length embedding_length block_count feed_forward_length attention.head_count attention.head_count_kv "
    "attention.key_length attention.value_length attention.layer_norm_rms_epsilon rope.freq_base "
    "rope.dimension_count rope.scaling.type rope.scaling.factor rope.scaling.original_context_length "
    "rope.scaling.attn_factor rope.scaling.yarn_beta_fast rope.scaling.yarn_beta_slow".split()
)
_INERT_KEYS = frozenset("vocab_size rope.scaling.finetuned tensor_data_layout attention.layer_norm_epsilon".split())
_OWN_KEYS = {
    "gemma3_text": "attention.sliding_window attention.sliding_window_pattern rope.freq_base_swa",
    "granite": "attention.scale embedding_scale residual_scale logit_scale",
}
_NEUTRAL = {"attention.causal": True, "rope.scale_linear": 1}  # elsewhere 0, false or empty
_GEMMA3_PATTERN, _SMOLLM3_INTERVAL = 6, 4  # every sixth layer is full, every fourth has no rope: in no metadata
_GEMMA3_27B_LAYERS = 62  # the one size whose attention scale is not that of its head


def model_type_of(architecture: Any) -> str:
    """Hugging Face's name of a GGUF's architecture.

    Raises:
        UnsupportedModelError: this version does not implement it.
    """
    model_type = check_model_type(_MODEL_TYPES.get(str(architecture), architecture), _WHERE)
    if model_type in MOE_MODEL_TYPES:
        raise UnsupportedModelError(f"{_WHERE}: {model_type} has experts, which are read of Hugging Face folders only.")
    return model_type


def from_gguf(
    data: Mapping[str, Any],
    *,
    tied: bool,
    vocab_size: int,
    biases: frozenset[str] = frozenset(),
    rope_divisors: Sequence[float] | None = None,
) -> ModelConfig:
    """Translate GGUF metadata.

    Args:
        data: metadata key → value.
        tied: whether the file lacks an output matrix of its own.
        vocab_size: rows of the embedding tensor.
        biases: which of 'qkv', 'output' and 'mlp' have bias tensors; the metadata does not say.
        rope_divisors: the ``rope_freqs.weight`` tensor, where the file has one.

    Raises:
        CheckpointError: a needed key is missing or not a number.
        UnsupportedModelError: unknown architecture, or a feature this version lacks, named.
    """
    arch = data.get("general.architecture")
    model_type = model_type_of(arch)
    s = Settings(data, _WHERE, prefix=f"{arch}.")
    _refuse_unknown(s, _KEYS | _INERT_KEYS | set(_OWN_KEYS.get(model_type, "").split()))
    heads, hidden = s.whole("attention.head_count"), s.whole("embedding_length")
    if heads <= 0:
        raise UnsupportedModelError(f"{_WHERE}: {heads} attention heads.")
    head_dim = s.whole("attention.key_length", hidden // heads)
    for key in ("rope.dimension_count", "attention.value_length"):
        if s.get(key) not in (None, head_dim):
            what = "partial rotary" if key.startswith("rope") else "values of another size than keys"
            raise UnsupportedModelError(f"{_WHERE}: {what} ({s.get(key)} of {head_dim} dimensions) is not supported.")
    shared: dict[str, Any] = {
        "model_type": model_type,
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": s.whole("feed_forward_length"),
        "num_layers": s.whole("block_count"),
        "num_attention_heads": heads,
        "num_kv_heads": s.whole("attention.head_count_kv", heads),
        "head_dim": head_dim,
        "rms_norm_eps": s.number("attention.layer_norm_rms_epsilon"),
        "context_length": s.whole("context_length"),
        "rope": _rope(s, rope_divisors),
        "tie_word_embeddings": tied,
        "attention_scale": 1 / math.sqrt(head_dim) if head_dim > 0 else 0.0,
        "qkv_bias": "qkv" in biases,
        "output_bias": "output" in biases,
        "mlp_bias": "mlp" in biases,
    }
    own = _READERS[model_type](s, shared) if model_type in _READERS else {}
    return ModelConfig(**(shared | own))


def _refuse_unknown(s: Settings, known: Set[str]) -> None:
    """Raises: UnsupportedModelError for a key of the architecture that may change what the model computes."""
    for key in (key.removeprefix(s.prefix) for key in s.data if key.startswith(s.prefix)):
        value = s.get(key)
        if key not in known and value and value != _NEUTRAL.get(key):
            raise UnsupportedModelError(f"{_WHERE}: {s.prefix}{key} is set, which is not supported.")
        if key in _NEUTRAL and value is False and _NEUTRAL[key] is True:
            raise UnsupportedModelError(f"{_WHERE}: {s.prefix}{key} is false, which is not supported.")


def _rope(s: Settings, divisors: Sequence[float] | None) -> RopeConfig:
    theta, kind = s.number("rope.freq_base", 1e4), s.get("rope.scaling.type")
    if kind is None:  # llama.cpp's rule: a factor alone means linear
        kind = "linear" if s.number("rope.scaling.factor", 0) not in (0, 1) else "none"
    if kind != "yarn" and s.number("rope.scaling.attn_factor", 1) != 1:
        raise UnsupportedModelError(f"{_WHERE}: rope.scaling.attn_factor without yarn is not supported.")
    if kind == "none":
        return RopeConfig(theta, divisors=None if divisors is None else tuple(float(x) for x in divisors))
    if divisors is not None:
        raise UnsupportedModelError(f"{_WHERE}: rope scaling {kind!r} beside rope_freqs is not supported.")
    return RopeConfig(theta, scaling=_scaling(s, kind))


def _scaling(s: Settings, kind: Any) -> RopeScaling:
    if kind == "linear":
        return LinearScaling(s.number("rope.scaling.factor"))
    if kind != "yarn":
        raise UnsupportedModelError(f"{_WHERE}: {unknown_name('rope scaling', str(kind), ('none', 'linear', 'yarn'))}")
    factor = s.number("rope.scaling.factor")
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=s.whole("rope.scaling.original_context_length", s.whole("context_length")),
        attention_factor=s.number("rope.scaling.attn_factor", 1) * yarn_attention_factor(factor, 1),
        beta_fast=s.number("rope.scaling.yarn_beta_fast", 32),
        beta_slow=s.number("rope.scaling.yarn_beta_slow", 1),
    )


def _gemma3(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    layers, hidden = shared["num_layers"], shared["hidden_size"]
    window, pattern = s.whole("attention.sliding_window"), s.get("attention.sliding_window_pattern")
    slides = [bool((i + 1) % _GEMMA3_PATTERN) for i in range(min(layers, MAX_LAYERS))]
    sliding = tuple(i for i, does in enumerate(slides) if does)
    if pattern not in (None, _GEMMA3_PATTERN, slides):
        raise UnsupportedModelError(f"{_WHERE}: this sliding_window_pattern is not supported.")
    scale = shared["attention_scale"]
    if layers == _GEMMA3_27B_LAYERS:
        scale = 1 / math.sqrt(hidden / shared["num_attention_heads"])
    return {
        "activation": "gelu_tanh",
        "attention_scale": scale,
        "qk_norm": "head",
        "embedding_multiplier": math.sqrt(hidden) if hidden > 0 else 1.0,
        "sliding_window": window if sliding else None,
        "sliding_layers": sliding,
        "local_rope": RopeConfig(s.number("rope.freq_base_swa", 1e4)) if sliding else None,
    }


def _granite(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "attention_scale": s.number("attention.scale", shared["attention_scale"]),
        "embedding_multiplier": s.number("embedding_scale", 1),
        "residual_multiplier": s.number("residual_scale", 1),
        "logits_divisor": s.number("logit_scale", 1),
    }


_READERS: dict[str, Callable[[Settings, Mapping[str, Any]], dict[str, Any]]] = {
    "gemma3_text": _gemma3,
    "granite": _granite,
    "olmo2": lambda s, shared: {"qk_norm": "projection"},
    "qwen3": lambda s, shared: {"qk_norm": "head"},
    "smollm3": lambda s, shared: {
        "nope_layers": tuple(range(_SMOLLM3_INTERVAL - 1, min(shared["num_layers"], MAX_LAYERS), _SMOLLM3_INTERVAL))
    },
}
