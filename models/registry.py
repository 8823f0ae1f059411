"""Model type → family. The only list of families."""

from __future__ import annotations

from ..errors import UnsupportedModelError, unknown_name
from .family import Family
from .llama import Llama

_FAMILIES: dict[str, Family] = {"llama": Llama()}


def family_of(model_type: str) -> Family:
    """The family that builds ``model_type``.

    Raises:
        UnsupportedModelError: there is none; the message lists the known ones.
    """
    if model_type not in _FAMILIES:
        raise UnsupportedModelError(unknown_name("model type", model_type, _FAMILIES))
    return _FAMILIES[model_type]
