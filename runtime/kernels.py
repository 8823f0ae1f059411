"""The library of native kernels, which an artifact may need: an optional package, imported when such an artifact is
opened. What an artifact says chooses between that package and none, never a file or a module of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from ..errors import RuntimeSetupError
from ..models.manifest import KernelFacts

_INSTEAD = "or export the model again with --kernels ort"


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """``path``: what ONNX Runtime registers. ``name`` says version and instruction set: results are the same in all,
    times are not. ``sha256`` is the file's, which a new build changes and the version may not."""

    path: str
    name: str
    sha256: str


def kernel_library(facts: KernelFacts, operator: str | None = None) -> KernelLibrary:
    """The installed library that ``facts`` asks for.

    Args:
        operator: one that older libraries of the same layout lack.

    Raises:
        RuntimeSetupError: it is not installed, of another layout, too old, or not able to run here.
    """
    try:
        import selfspec_kernels as library
    except ImportError as error:
        raise RuntimeSetupError(
            f"this artifact needs {facts.name}, which is not installed ({error}): install it from selfspec's sources "
            f"(pip install ./kernels; it takes a C++ compiler), {_INSTEAD}."
        ) from error
    found = getattr(library.tiles, "LAYOUT", None)
    if found != facts.layout:
        raise RuntimeSetupError(
            f"this artifact's weights are in layout {facts.layout} of {facts.name}, and the installed one reads "
            f"{found}: install the {facts.name} of this selfspec, {_INSTEAD}."
        )
    try:
        library.self_test()
        if operator is not None and operator not in getattr(library, "operators", tuple)():
            raise RuntimeSetupError(
                f"this artifact needs the operator {operator}, which the installed {facts.name} lacks: install the "
                f"{facts.name} of this selfspec (pip install ./kernels), {_INSTEAD}."
            )
        version = metadata.version(facts.name)
        path = library.library_path()
        return KernelLibrary(str(path), f"{facts.name} {version} ({library.current_path()})", _sha256(path))
    except metadata.PackageNotFoundError as error:
        raise RuntimeSetupError(
            f"{facts.name} is on Python's path but not installed, so its version is not known: pip install ./kernels."
        ) from error
    except library.KernelError as error:
        raise RuntimeSetupError(f"{facts.name} cannot run here: {error}") from error


@cache  # a process goes on with the library that it has loaded
def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
