"""Hugging Face's ``config.json`` → :class:`ModelConfig`. Knows Hugging Face's key names and its defaults.

A key that is not listed here may change what a model computes, so a value of it that is not neutral is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from ..errors import CheckpointError, UnsupportedModelError, unknown_name
from .config import (
    MAX_LAYERS,
    ModelConfig,
    MoEConfig,
    RopeConfig,
    check_model_type,
)
from .foreign import Settings
from .hf_inert import INERT_KEYS
from .hf_rope import read_rope, refuse_both_ropes

_WHERE = "config.json"
_SHARED_KEYS = frozenset(
    "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
    "rms_norm_eps max_position_embeddings rope_theta rope_scaling rope_parameters tie_word_embeddings "
    "hidden_act".split()
)
_WINDOW_KEYS = "use_sliding_window sliding_window max_window_layers layer_types"
# Of a router: what training it takes (jitter_noise is not applied otherwise), and what is told beside the logits.
_ROUTER_KEYS = "num_experts_per_tok output_router_logits router_aux_loss_coef router_jitter_noise"
_GRANITE_KEYS = "attention_bias embedding_multiplier residual_multiplier attention_multiplier logits_scaling"
_QWEN_MOE_KEYS = (
    f"{_ROUTER_KEYS} {_WINDOW_KEYS} num_experts norm_topk_prob moe_intermediate_size decoder_sparse_step "
    "mlp_only_layers"
)
_OWN_KEYS = {
    "gemma3_text": "hidden_activation query_pre_attn_scalar sliding_window sliding_window_pattern layer_types "
    "rope_local_base_freq",
    "granite": f"mlp_bias {_GRANITE_KEYS}",
    "granitemoe": f"num_local_experts {_GRANITE_KEYS} {_ROUTER_KEYS}",
    "llama": "attention_bias mlp_bias",
    "mixtral": f"num_local_experts sliding_window {_ROUTER_KEYS}",
    "olmo2": "attention_bias",
    "olmoe": f"attention_bias clip_qkv num_experts norm_topk_prob {_ROUTER_KEYS}",
    "qwen2": _WINDOW_KEYS,
    "qwen2_moe": f"qkv_bias shared_expert_intermediate_size {_QWEN_MOE_KEYS}",
    "qwen3": f"attention_bias {_WINDOW_KEYS}",
    "qwen3_moe": f"attention_bias num_local_experts {_QWEN_MOE_KEYS}",  # transformers 5 writes num_local_experts
    "smollm3": f"attention_bias mlp_bias no_rope_layers no_rope_layer_interval {_WINDOW_KEYS}",
}
_DEFAULT_HEAD_DIM = {"gemma3_text": 256, "qwen3": 128}  # elsewhere hidden_size ÷ num_attention_heads
_DEFAULT_THETA = {"mixtral": 1e6, "smollm3": 2e6}
_DEFAULT_EPS = {"olmoe": 1e-5}
_COUNT_KEYS = ("num_experts", "num_local_experts")
_TIED_BY_DEFAULT = ("gemma3_text", "smollm3")
_ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}
_FULL, _SLIDING = "full_attention", "sliding_attention"


def from_hf(data: Mapping[str, Any]) -> ModelConfig:
    """Translate a ``config.json``.

    Raises:
        CheckpointError: a needed key is missing or not a number.
        UnsupportedModelError: unknown model type, or a feature this version lacks, named.
    """
    model_type = check_model_type(data.get("model_type"), _WHERE)
    known = INERT_KEYS | _SHARED_KEYS | set(_OWN_KEYS[model_type].split())
    unknown = [
        key for key, value in data.items()
        if key not in known and not key.startswith("_") and value not in (None, False, [], {})
    ]  # fmt: skip
    if unknown:
        raise UnsupportedModelError(
            f"{_WHERE}: {', '.join(sorted(unknown))} may change what the model computes and is not supported."
        )
    s = Settings(data, _WHERE)
    shared = _shared(s, model_type)
    own = _READERS[model_type](s, shared)
    if "rope" not in own:
        own["rope"] = read_rope(s, _DEFAULT_THETA.get(model_type, 1e4))
    return ModelConfig(**(shared | own))


def _shared(s: Settings, model_type: str) -> dict[str, Any]:
    heads, hidden = s.whole("num_attention_heads"), s.whole("hidden_size")
    head_dim = _DEFAULT_HEAD_DIM.get(model_type)
    if head_dim is None and s.get("head_dim") is None:
        if heads <= 0 or hidden % heads:
            raise UnsupportedModelError(f"{_WHERE}: hidden_size {hidden} does not divide into {heads} attention heads.")
        head_dim = hidden // heads
    head_dim = s.whole("head_dim", head_dim)
    return {
        "model_type": model_type,
        "vocab_size": s.whole("vocab_size"),
        "hidden_size": hidden,
        "intermediate_size": s.whole("intermediate_size"),
        "num_layers": s.whole("num_hidden_layers"),
        "num_attention_heads": heads,
        "num_kv_heads": s.whole("num_key_value_heads", heads),
        "head_dim": head_dim,
        "rms_norm_eps": s.number("rms_norm_eps", _DEFAULT_EPS.get(model_type)),
        "context_length": s.whole("max_position_embeddings"),
        "tie_word_embeddings": s.flag("tie_word_embeddings", model_type in _TIED_BY_DEFAULT),
        "attention_scale": 1 / math.sqrt(head_dim) if head_dim > 0 else 0.0,
        "activation": _activation(s, "hidden_activation" if model_type == "gemma3_text" else "hidden_act"),
    }


def _activation(s: Settings, key: str) -> str:
    value = s.get(key)
    value = "gelu_pytorch_tanh" if value is None and key == "hidden_activation" else "silu" if value is None else value
    if not isinstance(value, str) or value not in _ACTIVATIONS:
        raise UnsupportedModelError(
            f"{_WHERE}: {key} = {value!r} is not supported; known are {', '.join(_ACTIVATIONS)}."
        )
    return _ACTIVATIONS[value]


def _llama(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_bias(s) | {"mlp_bias": s.flag("mlp_bias", False)}


def _attention_bias(s: Settings) -> dict[str, Any]:
    bias = s.flag("attention_bias", False)
    return {"qkv_bias": bias, "output_bias": bias}


def _qwen2(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return {"qkv_bias": True} | _late_window(s, shared)


def _qwen3(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_bias(s) | {"qk_norm": "head"} | _late_window(s, shared)


def _window(s: Settings) -> int | None:
    """4,096 where the key is absent; null means none."""
    return None if s.get("sliding_window") is None and "sliding_window" in s.data else s.whole("sliding_window", 4096)


def _late_window(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Layers from ``max_window_layers`` on slide, where sliding is switched on at all."""
    window = _window(s) if s.flag("use_sliding_window", False) else None
    first = s.whole("max_window_layers", 28)
    return _sliding(s, shared, window, lambda layer: layer >= first)


def _smollm3(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    """In ``no_rope_layers`` a 1 means that the layer *has* rope, a 0 that it has none."""
    layers, listed = shared["num_layers"], s.get("no_rope_layers")
    interval = s.whole("no_rope_layer_interval", 4)
    if listed is None:
        if interval <= 0:
            raise UnsupportedModelError(f"{_WHERE}: no_rope_layer_interval is {interval}; it must be positive.")
        nope = tuple(range(interval - 1, min(layers, MAX_LAYERS), interval))
    else:
        if not isinstance(listed, list) or len(listed) < layers or any(flag not in (0, 1) for flag in listed):
            raise CheckpointError(f"{_WHERE}: no_rope_layers must be a list of {layers} flags, 0 or 1.")
        nope = tuple(i for i, rotated in enumerate(listed[:layers]) if not rotated)
    window = s.whole("sliding_window") if s.flag("use_sliding_window", False) and s.get("sliding_window") else None
    return _llama(s, shared) | {"nope_layers": nope} | _sliding(s, shared, window, lambda layer: layer in nope)


def _gemma3(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    scalar, pattern = s.number("query_pre_attn_scalar", 256), s.whole("sliding_window_pattern", 6)
    if scalar <= 0 or pattern <= 0:
        raise UnsupportedModelError(f"{_WHERE}: query_pre_attn_scalar and sliding_window_pattern must be positive.")
    window = _window(s)
    if window is None:
        raise UnsupportedModelError(f"{_WHERE}: sliding_window is null, which gemma3_text cannot be run with.")
    rope, local = _gemma3_ropes(s)
    sliding = _sliding(s, shared, window, lambda layer: (layer + 1) % pattern != 0)
    return sliding | {
        "rope": rope,
        "local_rope": local if sliding["sliding_layers"] else None,
        "attention_scale": scalar**-0.5,
        "qk_norm": "head",
        "embedding_multiplier": math.sqrt(shared["hidden_size"]) if shared["hidden_size"] > 0 else 1.0,
    }


def _gemma3_ropes(s: Settings) -> tuple[RopeConfig, RopeConfig]:
    both = s.get("rope_parameters")
    refuse_both_ropes(s)
    if both is None:  # before transformers 5: scaling is for the full layers alone
        return read_rope(s, 1e6), RopeConfig(s.number("rope_local_base_freq", 1e4))
    kinds = (_FULL, _SLIDING)
    if not isinstance(both, Mapping) or {*both} - {*kinds} or not all(isinstance(v, Mapping) for v in both.values()):
        raise CheckpointError(f"{_WHERE}: rope_parameters of gemma3_text must hold settings of {' and '.join(kinds)}.")

    data = {key: value for key, value in s.data.items() if key not in ("rope_theta", "rope_scaling")}

    def one(kind: str, theta: float) -> RopeConfig:
        settings = both.get(kind) or {}
        if settings.get("truncate") is False:  # transformers looks for it in another place, and truncates
            raise UnsupportedModelError(f"{_WHERE}: truncate = false in the ropes of gemma3_text is not supported.")
        return read_rope(Settings({**data, "rope_parameters": settings}, _WHERE), theta)

    return one(_FULL, s.number("rope_theta", 1e6)), one(_SLIDING, s.number("rope_local_base_freq", 1e4))


def _granite(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return _multipliers(s) | _llama(s, shared)


def _multipliers(s: Settings) -> dict[str, Any]:
    return {
        "embedding_multiplier": s.number("embedding_multiplier", 1),
        "residual_multiplier": s.number("residual_multiplier", 1),
        "attention_scale": s.number("attention_multiplier", 1),
        "logits_divisor": s.number("logits_scaling", 1),
    }


def _olmo2(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_bias(s) | {"qk_norm": "projection"}


def _mixtral(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    window = s.whole("sliding_window") if s.get("sliding_window") is not None else None
    moe = _experts(s, shared["intermediate_size"], _every_layer(shared), normalize=True)
    return {"moe": moe} | _sliding(s, shared, window, lambda layer: True)


def _granitemoe(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    size, layers = shared["intermediate_size"], _every_layer(shared)
    moe = _experts(s, size, layers, softmax="selected")
    return _multipliers(s) | _attention_bias(s) | {"moe": moe}


def _olmoe(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    normalize = s.flag("norm_topk_prob", False)
    return _attention_bias(s) | {
        "qk_norm": "projection",
        "clip_qkv": None if s.get("clip_qkv") is None else s.number("clip_qkv"),
        "moe": _experts(s, shared["intermediate_size"], _every_layer(shared), normalize=normalize),
    }


def _qwen2_moe(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    size = s.whole("shared_expert_intermediate_size")
    if size <= 0:
        raise UnsupportedModelError(f"{_WHERE}: shared_expert_intermediate_size is {size}; it must be positive.")
    moe = _qwen_experts(s, shared, shared_size=size, shared_gate=True)
    return {"qkv_bias": s.flag("qkv_bias", True), "moe": moe} | _no_window(s, shared)


def _qwen3_moe(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    return _attention_bias(s) | {"qk_norm": "head", "moe": _qwen_experts(s, shared)} | _no_window(s, shared)


def _qwen_experts(s: Settings, shared: Mapping[str, Any], **more: Any) -> MoEConfig:
    """Every ``decoder_sparse_step``-th layer has experts, those of ``mlp_only_layers`` excepted."""
    step, dense = s.whole("decoder_sparse_step", 1), s.get("mlp_only_layers") or []
    if step <= 0 or not isinstance(dense, list) or any(not isinstance(i, int) for i in dense):
        raise CheckpointError(
            f"{_WHERE}: decoder_sparse_step must be positive and mlp_only_layers a list of layer numbers."
        )
    layers = tuple(i for i in _every_layer(shared) if i not in dense and (i + 1) % step == 0)
    size, normalize = s.whole("moe_intermediate_size"), s.flag("norm_topk_prob", False)
    return _experts(s, size, layers, normalize=normalize, **more)


def _experts(s: Settings, size: int, layers: tuple[int, ...], **more: Any) -> MoEConfig:
    """The number of experts stands under one of two keys, or under both."""
    if not layers:
        raise UnsupportedModelError(f"{_WHERE}: no layer of it has experts; such a model is not supported as a MoE.")
    told = {s.whole(key) for key in _COUNT_KEYS if s.get(key) is not None}
    if len(told) != 1:
        problem = "neither is there" if not told else "they differ"
        raise CheckpointError(f"{_WHERE}: the number of experts is {' or '.join(_COUNT_KEYS)}, and {problem}.")
    return MoEConfig(told.pop(), s.whole("num_experts_per_tok"), size, layers, **more)


def _every_layer(shared: Mapping[str, Any]) -> tuple[int, ...]:
    return tuple(range(max(0, min(shared["num_layers"], MAX_LAYERS))))


def _no_window(s: Settings, shared: Mapping[str, Any]) -> dict[str, Any]:
    """Which layers slide differs between versions of transformers, and no published model has it switched on."""
    if s.flag("use_sliding_window", False):
        raise UnsupportedModelError(f"{_WHERE}: use_sliding_window = true is not supported with experts.")
    return _sliding(s, shared, None, lambda layer: False)


_READERS: dict[str, Callable[[Settings, Mapping[str, Any]], dict[str, Any]]] = {
    "gemma3_text": _gemma3,
    "granite": _granite,
    "granitemoe": _granitemoe,
    "llama": _llama,
    "mixtral": _mixtral,
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "qwen2": _qwen2,
    "qwen2_moe": _qwen2_moe,
    "qwen3": _qwen3,
    "qwen3_moe": _qwen3_moe,
    "smollm3": _smollm3,
}


def _sliding(
    s: Settings, shared: Mapping[str, Any], window: int | None, slides: Callable[[int], bool]
) -> dict[str, Any]:
    """From ``layer_types`` where it is given, else by the family's rule."""
    types, layers = s.get("layer_types"), shared["num_layers"]
    if types:
        if not isinstance(types, list) or len(types) != layers:
            raise CheckpointError(f"{_WHERE}: layer_types must be a list of {layers} names.")
        for kind in types:
            if kind not in (_FULL, _SLIDING):
                raise UnsupportedModelError(f"{_WHERE}: {unknown_name('layer type', str(kind), (_FULL, _SLIDING))}")
        sliding = tuple(i for i, kind in enumerate(types) if kind == _SLIDING)
    elif window is None or not 0 < layers < 10**5:
        sliding = ()
    else:
        sliding = tuple(i for i in range(layers) if slides(i))
    return {"sliding_window": window if sliding else None, "sliding_layers": sliding}
