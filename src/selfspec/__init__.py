"""selfspec: a small language model that drafts for itself, on device, with the full model's own output.

``load`` is imported lazily, so that ``import selfspec`` stays light on a box.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .runtime.model import Model, load

__version__ = "0.1.0"
__all__ = ["Model", "__version__", "load"]


def __getattr__(name: str) -> Any:
    if name in ("load", "Model"):
        from .runtime import model

        return getattr(model, name)
    raise AttributeError(f"module 'selfspec' has no attribute {name!r}")
