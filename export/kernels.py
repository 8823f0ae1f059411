"""Which kernels an artifact is exported for: operators for its graphs, a layout for its matrices, and why these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models.components import Kernels
from ..models.manifest import EXPERTS_OPERATOR, KERNEL_LAYOUTS, KernelFacts
from ..models.native_kernels import NativeKernels
from ..models.ort_kernels import OrtKernels
from ..models.tensors import FLOAT_BITS, TensorSpec
from .experts import padded
from .layouts import BlockLayout, Layout, TileLayout, check_fit
from .weights import Precision

KERNELS = ("auto", "native", "ort")
_LIBRARY = "selfspec-kernels"


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """``facts`` is what the manifest says, None for ONNX Runtime's own kernels. ``reason`` follows "because"."""

    kernels: Kernels
    layout: Layout
    facts: KernelFacts | None
    reason: str

    def __str__(self) -> str:
        name = "ONNX Runtime's" if self.facts is None else self.facts.name
        return f"kernels: {name}, because {self.reason}"


def choose_kernels(
    asked: str, precision: Precision, block_size: int | None, specs: Sequence[TensorSpec]
) -> KernelChoice:
    """The kernels for matrices ``specs``.

    Args:
        asked: one of KERNELS. 'auto' takes native ones where they fit the matrices and run on this machine.
        block_size: as the user asked; None for the default.

    Raises:
        UsageError: the kernels that were asked for cannot hold a matrix.
    """
    matrices = [spec for spec in specs if precision.quantises(spec)]
    native = TileLayout()
    if asked == "auto":
        problem = _against_native(precision, block_size, matrices, native)
        if problem is None:
            return _native(native, "they run here")
        return _ort(block_size, matrices, problem)
    if asked == "ort":
        return _ort(block_size, matrices, "they were asked for")
    check_fit(native, matrices)
    problem = _unusable(matrices)
    return _native(native, "they were asked for" + (f", though {problem}" if problem else ""))


def _native(layout: Layout, reason: str) -> KernelChoice:
    return KernelChoice(NativeKernels(), layout, KernelFacts(_LIBRARY, KERNEL_LAYOUTS[_LIBRARY]), reason)


def _ort(block_size: int | None, matrices: Sequence[TensorSpec], reason: str) -> KernelChoice:
    layout = BlockLayout() if block_size is None else BlockLayout(block_size)
    check_fit(layout, matrices)
    return KernelChoice(OrtKernels(), layout, None, reason)


def _against_native(
    precision: Precision, block_size: int | None, matrices: Sequence[TensorSpec], native: Layout
) -> str | None:
    """Why 'auto' does without native kernels; None where it takes them."""
    if precision.linear_bits == FLOAT_BITS:
        return "there are no others for float32"
    if block_size not in (None, native.block_size):
        return f"native ones have blocks of {native.block_size}"
    misfits = (native.misfit(padded(spec, native.block_size)) for spec in matrices)
    return next((problem for problem in misfits if problem), None) or _unusable(matrices)


def _unusable(matrices: Sequence[TensorSpec]) -> str | None:
    """Why the library does not run ``matrices`` on this machine; None where it does."""
    try:
        import selfspec_kernels
    except ImportError:
        return f"{_LIBRARY} is not installed here"
    try:
        selfspec_kernels.self_test()
        operators: tuple[str, ...] = getattr(selfspec_kernels, "operators", tuple)()
        if EXPERTS_OPERATOR not in operators and any(spec.experts for spec in matrices):
            return f"the installed {_LIBRARY} has no operator for experts"
        if KERNEL_LAYOUTS[_LIBRARY] != selfspec_kernels.tiles.LAYOUT:
            return f"the installed {_LIBRARY} reads layout {selfspec_kernels.tiles.LAYOUT} of the weights, another one"
    except selfspec_kernels.KernelError as error:
        return str(error)
    return None
