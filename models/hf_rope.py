"""The rope settings of Hugging Face's ``config.json``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from ..errors import CheckpointError, UnsupportedModelError, unknown_name
from .config import LinearScaling, Llama3Scaling, RopeConfig, RopeScaling, YarnScaling
from .foreign import Settings

_WHERE = "config.json"
_ROPE_KEYS = frozenset(
    "rope_theta rope_type type factor low_freq_factor high_freq_factor original_max_position_embeddings "
    "attention_factor beta_fast beta_slow mscale mscale_all_dim truncate partial_rotary_factor".split()
)


def read_rope(s: Settings, default_theta: float) -> RopeConfig:
    """Rope settings, in whichever of their keys.

    Raises:
        CheckpointError: they are no object.
        UnsupportedModelError: a setting or scaling that this version lacks.
    """
    # transformers 5 writes rope_parameters, older versions rope_theta beside rope_scaling.
    raw = s.get("rope_parameters") or s.get("rope_scaling") or {}
    refuse_both_ropes(s)
    if not isinstance(raw, Mapping):
        raise CheckpointError(f"{_WHERE}: rope settings are {raw!r}, where an object was expected.")
    for source in (raw, s.data):
        if source.get("partial_rotary_factor") not in (None, 1, 1.0):
            raise UnsupportedModelError(
                f"{_WHERE}: partial_rotary_factor = {source['partial_rotary_factor']!r} is not supported; only 1 is."
            )
    unknown = sorted(str(key) for key, value in raw.items() if key not in _ROPE_KEYS and value is not None)
    if unknown:
        raise UnsupportedModelError(f"{_WHERE}: the rope setting {', '.join(unknown)} is not supported.")
    r = Settings(raw, f"{_WHERE} rope scaling")
    theta = r.number("rope_theta", s.number("rope_theta", default_theta))
    kind = r.get("rope_type") or r.get("type") or "default"
    if kind == "default":
        return RopeConfig(theta)
    if not isinstance(kind, str) or kind not in _SCALINGS:
        raise UnsupportedModelError(f"{_WHERE}: {unknown_name('rope scaling', str(kind), ('default', *_SCALINGS))}")
    return RopeConfig(theta, scaling=_SCALINGS[kind](r, s.whole("max_position_embeddings")))


def refuse_both_ropes(s: Settings) -> None:
    """Raises: UnsupportedModelError where old and new keys do not say the same."""
    new, old = s.get("rope_parameters"), s.get("rope_scaling")
    if new and old and new != old:
        raise UnsupportedModelError(f"{_WHERE}: rope_parameters and rope_scaling differ; remove the one that is wrong.")


def _linear(r: Settings, context: int) -> RopeScaling:
    return LinearScaling(r.number("factor"))


def _llama3(r: Settings, context: int) -> RopeScaling:
    return Llama3Scaling(
        factor=r.number("factor"),
        low_freq_factor=r.number("low_freq_factor"),
        high_freq_factor=r.number("high_freq_factor"),
        original_max_position_embeddings=r.whole("original_max_position_embeddings", context),
    )


def _yarn(r: Settings, context: int) -> RopeScaling:
    original = r.whole("original_max_position_embeddings", context)
    factor = r.number("factor", context / original if original > 0 else None)
    mscale, mscale_all = r.number("mscale", 0), r.number("mscale_all_dim", 0)
    inferred = yarn_attention_factor(factor, 1)
    if mscale and mscale_all:
        inferred = yarn_attention_factor(factor, mscale) / yarn_attention_factor(factor, mscale_all)
    return YarnScaling(
        factor=factor,
        original_max_position_embeddings=original,
        attention_factor=r.number("attention_factor", inferred),
        beta_fast=r.number("beta_fast", 32),
        beta_slow=r.number("beta_slow", 1),
        truncate=r.flag("truncate", True),
    )


def yarn_attention_factor(factor: float, mscale: float) -> float:
    """What YaRN multiplies cosines and sines by where nothing else is said."""
    return 0.1 * mscale * math.log(factor) + 1.0 if factor > 1 else 1.0


_SCALINGS: dict[str, Callable[[Settings, int], RopeScaling]] = {"linear": _linear, "llama3": _llama3, "yarn": _yarn}
