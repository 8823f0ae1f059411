"""Native row-invariant products and attention for ONNX Runtime: where the library is, what it can run here, and a call.

Row-invariant: a row of the result has the same bits whether it is computed alone or among others, on any number of
threads and on every instruction set. Register `library_path()` with onnxruntime's SessionOptions to get the operators
MatMulTiles, GatherTiles, GatedMLPTiles, SparseMLPTiles and GroupedAttention of domain `selfspec`; `tiles` writes the
weights they read.
"""

import ctypes
import os
import sys
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from . import tiles

PATH_VARIABLE = "SELFSPEC_KERNELS_PATH"
"""The environment variable that names the path to begin with, instead of the best one: to test or to measure it."""

__all__ = [
    "PATH_VARIABLE",
    "KernelError",
    "compiled_paths",
    "current_path",
    "last_tiles",
    "library_path",
    "matmul",
    "operators",
    "paths",
    "self_test",
    "tiles",
    "use_path",
]


class KernelError(RuntimeError):
    """The library is missing, refuses what it was given, or computes something else than its reference."""


def library_path() -> Path:
    """The compiled library. Raises KernelError where the package was not built."""
    name = "libselfspec_kernels.so"  # a module to be loaded: .so on macOS too
    for folder in sys.modules[__name__].__path__:  # two of them in an editable install
        if (path := Path(folder) / name).is_file():
            return path
    raise KernelError(
        f"selfspec-kernels has no {name} beside its Python files, so its native kernels cannot run. "
        "Install it with pip and a C++17 compiler, or use the ONNX Runtime kernels."
    )


@cache
def _library() -> ctypes.CDLL:
    path = library_path()
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise KernelError(f"{path} cannot be loaded: {error}. Reinstall selfspec-kernels on this machine.") from error
    for name in ("compiled_paths", "paths", "use_path", "current_path", "self_test", "matmul", "operators"):
        getattr(library, f"selfspec_{name}").restype = ctypes.c_char_p
    library.selfspec_last_tiles.restype = ctypes.c_void_p
    if (path_name := os.environ.get(PATH_VARIABLE)) and (refused := library.selfspec_use_path(path_name.encode())):
        raise KernelError(f"{PATH_VARIABLE}={path_name!r}: {refused.decode()}")
    return library


def operators() -> tuple[str, ...]:
    """The operators of domain `selfspec` in the library: an older one lacks some."""
    return tuple(_library().selfspec_operators().decode().split(","))


def compiled_paths() -> tuple[str, ...]:
    """The instruction-set paths in the library, best first; which ones is up to the compiler that built it."""
    return tuple(_library().selfspec_compiled_paths().decode().split(","))


def paths() -> tuple[str, ...]:
    """Those of them that this processor can run, best first; the last is `scalar`."""
    return tuple(_library().selfspec_paths().decode().split(","))


def use_path(name: str) -> None:
    """Make the operators use this path from now on. Raises KernelError when it cannot run here."""
    _raise(_library().selfspec_use_path(name.encode()))


def current_path() -> str:
    """The path the operators use: the best that can run here, unless another was asked for."""
    return str(_library().selfspec_current_path().decode())


def self_test() -> None:
    """Run every usable path against the scalar one; raises KernelError naming the first that differs by a bit."""
    if (differs := _library().selfspec_self_test()) is not None:
        raise KernelError(
            f"The path {differs.decode()} computes other bits than the scalar path, so its results cannot be trusted. "
            "Rebuild selfspec-kernels, or use the ONNX Runtime kernels."
        )


def matmul(
    x: NDArray[np.float32], weights: NDArray[np.uint8], bits: int, path: str | None = None, threads: int = 1
) -> NDArray[np.float32]:
    """x [M, K] times the transpose of the weights [N, K], given as tiles [N / 8, K / 32, bytes]: y [M, N].

    For tests and measurements: it starts its own threads at every call. Raises KernelError for what does not fit.
    """
    x, weights = np.ascontiguousarray(x, np.float32), np.ascontiguousarray(weights)
    if x.ndim != 2 or weights.ndim != 3 or weights.dtype != np.uint8:
        raise KernelError(
            f"x {x.shape} and tiles {weights.shape} {weights.dtype}; [M, K] and uint8 [N/8, K/32, bytes] are needed."
        )
    m, k = x.shape
    y = np.empty((m, weights.shape[0] * tiles.COLUMNS), np.float32)
    pointer, size = ctypes.c_void_p, ctypes.c_uint64
    _raise(
        _library().selfspec_matmul(
            (path or current_path()).encode(),
            bits,
            pointer(x.ctypes.data),
            size(m),
            size(k),
            pointer(weights.ctypes.data),
            size(weights.nbytes),
            size(y.shape[1]),
            pointer(y.ctypes.data),
            threads,
        )
    )
    return y


def last_tiles() -> int:
    """Address where the last call of an operator found its weights, 0 before any: to see that they lie in the file."""
    return int(_library().selfspec_last_tiles() or 0)


def _raise(sentence: bytes | None) -> None:
    if sentence is not None:
        raise KernelError(sentence.decode())
