"""Model type → family. The only list of families."""

from __future__ import annotations

from dataclasses import replace

from ..errors import UnsupportedModelError, unknown_name
from .decoder import Decoder, Norms
from .family import Family
from .moe import GRANITE, MIXTRAL

_PRE_NORM = Decoder(Norms("input_layernorm"), Norms("post_attention_layernorm"))
_POST_NORM = Decoder(Norms(None, "post_attention_layernorm"), Norms(None, "post_feedforward_layernorm"))
_SANDWICH_NORM = Decoder(
    Norms("input_layernorm", "post_attention_layernorm"),
    Norms("pre_feedforward_layernorm", "post_feedforward_layernorm"),
    norm_offset=1.0,
)
_FAMILIES: dict[str, Family] = {
    "gemma3_text": _SANDWICH_NORM,
    "granite": _PRE_NORM,
    "granitemoe": replace(_PRE_NORM, experts=GRANITE),
    "llama": _PRE_NORM,
    "mixtral": replace(_PRE_NORM, experts=MIXTRAL),
    "olmo2": _POST_NORM,
    "olmoe": _PRE_NORM,
    "qwen2": _PRE_NORM,
    "qwen2_moe": _PRE_NORM,
    "qwen3": _PRE_NORM,
    "qwen3_moe": _PRE_NORM,
    "smollm3": _PRE_NORM,
}


def family_of(model_type: str) -> Family:
    """The family that builds ``model_type``.

    Raises:
        UnsupportedModelError: there is none; the message lists the known ones.
    """
    if model_type not in _FAMILIES:
        raise UnsupportedModelError(unknown_name("model type", model_type, _FAMILIES))
    return _FAMILIES[model_type]
