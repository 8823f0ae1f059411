"""Model type → family. The only list of families."""

from __future__ import annotations

from ..errors import UnsupportedModelError, unknown_name
from .decoder import Decoder, Norms
from .family import Family

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
    "llama": _PRE_NORM,
    "olmo2": _POST_NORM,
    "qwen2": _PRE_NORM,
    "qwen3": _PRE_NORM,
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
