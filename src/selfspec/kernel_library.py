"""The installed library of native kernels, tried as the exporter and the runtime both need it. Imports nothing of ours,
and ONNX Runtime only when it is tried."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path
from typing import Any, Literal


@dataclass(frozen=True, slots=True)
class KernelLibrary:
    """``path``: what ONNX Runtime registers. ``version`` and ``instructions`` are for people: results are the same in
    all, times are not. ``sha256`` is the file's, which a new build changes and the version may not."""

    path: str
    version: str
    instructions: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Problem:
    """``words``: of the error, or what was found instead. They may name ``folders`` of this machine."""

    kind: Literal["absent", "layout", "operator", "unversioned", "broken"]
    words: str
    folders: tuple[str, ...] = ()


def probe(name: str, layout: int, operator: str) -> KernelLibrary | Problem:
    """Try the library of the distribution ``name``: it reads ``layout`` of the weights, has ``operator``, passes its
    self-test, and ONNX Runtime takes it."""
    try:
        import selfspec_kernels as package
        from selfspec_kernels import KernelError, current_path, library_path, self_test, tiles
    except ImportError as error:
        return Problem("absent", str(error))
    found = getattr(tiles, "LAYOUT", None)
    if found != layout:
        return Problem("layout", str(found))
    folders = tuple(package.__path__)
    try:
        self_test()
        if operator not in getattr(package, "operators", tuple)():
            return Problem("operator", operator)
        path = library_path()
        library = KernelLibrary(str(path), metadata.version(name), str(current_path()), _sha256(path))
    except metadata.PackageNotFoundError as error:
        return Problem("unversioned", str(error), folders)
    except KernelError as error:
        return Problem("broken", str(error), folders)
    refusal = _refusal(library.path)
    return library if refusal is None else Problem("broken", str(refusal), (str(path.parent), *folders))


def _refusal(path: str) -> Exception | None:
    """What ONNX Runtime has against the library's operators."""
    import onnxruntime as ort  # takes its time, and not everyone who imports this tries a library

    options: Any = ort.SessionOptions()
    try:
        options.register_custom_ops_library(path)
    except Exception as error:  # ONNX Runtime's exceptions share no base class
        return error
    return None


@cache  # a process goes on with the library that it has loaded
def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
