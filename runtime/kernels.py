"""The library of native kernels, which an artifact may need: an optional package, imported when such an artifact is
opened. What an artifact says chooses between that package and none, never a file or a module of its own.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

import onnxruntime as ort

from ..errors import KernelSetupError
from ..models.manifest import EXPERTS_OPERATOR, KernelFacts

_INSTEAD = "or export the model again with selfspec-export --kernels ort"


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """``path``: what ONNX Runtime registers. ``name`` says version and instruction set: results are the same in all,
    times are not. ``sha256`` is the file's, which a new build changes and the version may not."""

    path: str
    name: str
    sha256: str

    def register(self, options: ort.SessionOptions) -> None:
        """Give sessions made with ``options`` the library's operators.

        Raises:
            KernelSetupError: ONNX Runtime refuses the library.
        """
        try:
            options.register_custom_ops_library(self.path)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise KernelSetupError(f"{self.name} cannot run here: {error}; install it again, {_INSTEAD}.") from error


def kernel_library(facts: KernelFacts) -> KernelLibrary:
    """The installed library that ``facts`` asks for, tried: its self-test is passed and ONNX Runtime takes it.

    The exporter looks at the same things before it chooses (``export/kernels.py``; the two may not import each other,
    so a test holds them together).

    Raises:
        KernelSetupError: it is not installed, of another layout, or not able to run here.
    """
    try:
        import selfspec_kernels as package
        from selfspec_kernels import KernelError, current_path, library_path, self_test, tiles
    except ImportError as error:
        raise KernelSetupError(
            f"this artifact needs {facts.name}, which is not installed ({error}): install it from selfspec's sources "
            f"(pip install ./kernels; it takes a C++ compiler), {_INSTEAD}."
        ) from error
    found = getattr(tiles, "LAYOUT", None)
    if found != facts.layout:
        raise KernelSetupError(
            f"this artifact's weights are in layout {facts.layout} of {facts.name}, and the installed one reads "
            f"{found}: install the {facts.name} of this selfspec, {_INSTEAD}."
        )
    try:
        self_test()
        if EXPERTS_OPERATOR not in getattr(package, "operators", tuple)():
            raise KernelSetupError(
                f"the installed {facts.name} lacks the operator {EXPERTS_OPERATOR}: install the {facts.name} of this "
                f"selfspec (pip install ./kernels), {_INSTEAD}."
            )
        version, path = metadata.version(facts.name), library_path()
        library = KernelLibrary(str(path), f"{facts.name} {version} ({current_path()})", _sha256(path))
    except metadata.PackageNotFoundError as error:
        raise KernelSetupError(
            f"{facts.name} is on Python's path but not installed, so its version is not known: pip install ./kernels, "
            f"{_INSTEAD}."
        ) from error
    except KernelError as error:
        raise KernelSetupError(
            f"{facts.name} cannot run here: {str(error).rstrip('.')}; install it again, {_INSTEAD}."
        ) from error
    library.register(ort.SessionOptions())
    return library


@cache  # a process goes on with the library that it has loaded
def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
