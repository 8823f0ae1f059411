"""Which kernels an artifact is exported for: operators for its graphs, a layout for its matrices, and why these."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import one_line
from ..kernel_library import Problem, probe
from ..models.components import Kernels
from ..models.manifest import EXPERTS_OPERATOR, KERNEL_LAYOUTS, MAX_REASON, KernelFacts
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
    """``facts`` and ``reason`` are what the manifest says; ``facts`` is None for ONNX Runtime's own kernels."""

    kernels: Kernels
    layout: Layout
    facts: KernelFacts | None
    reason: str

    def __str__(self) -> str:
        return f"kernels: {'ONNX Runtime' if self.facts is None else self.facts.name}; {self.reason}"


@dataclass(frozen=True, slots=True)
class Trial:
    """Whether the library ran on this machine, and the words for it, in the past tense: an artifact keeps them."""

    ran: bool
    words: str


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
    if asked == "auto":
        problem = _misfit(precision, block_size, matrices, TileLayout())
        trial = Trial(False, problem) if problem else try_library()
        native, reason = trial.ran, f"auto: {trial.words}"
    else:
        native, reason = asked == "native", f"asked for with --kernels {asked}"
        if native and not (trial := try_library()).ran:
            reason += f", though {trial.words}"
    ort_layout = BlockLayout() if block_size is None else BlockLayout(block_size)
    layout: Layout = TileLayout() if native else ort_layout
    check_fit(layout, matrices)
    kernels = NativeKernels() if native else OrtKernels()
    facts = KernelFacts(_LIBRARY, KERNEL_LAYOUTS[_LIBRARY]) if native else None
    return KernelChoice(kernels, layout, facts, _kept(reason))


def _kept(reason: str) -> str:
    """As the manifest takes it: printable and not too long, whatever a library said."""
    return textwrap.shorten(one_line(reason), MAX_REASON, placeholder=" ...")


def _misfit(precision: Precision, block_size: int | None, matrices: Sequence[TensorSpec], native: Layout) -> str | None:
    """Why native kernels cannot multiply these matrices; None where they can."""
    if precision.linear_bits == FLOAT_BITS:
        return f"{precision.name} weights are multiplied by ONNX Runtime"
    if block_size not in (None, native.block_size):
        return f"native kernels have blocks of {native.block_size}, not {block_size}"
    misfits = (native.misfit(padded(spec, native.block_size)) for spec in matrices)
    return next((found.why for found in misfits if found), None)


def try_library() -> Trial:
    """Try the installed library as the runtime does before it opens an artifact."""
    layout = KERNEL_LAYOUTS[_LIBRARY]
    found = probe(_LIBRARY, layout, EXPERTS_OPERATOR)
    if not isinstance(found, Problem):
        return Trial(True, f"{_LIBRARY} {found.version} ran ({found.instructions})")
    match found.kind:
        case "absent":
            words = f"{_LIBRARY} was not installed"
        case "layout":
            words = f"the installed {_LIBRARY} read layout {found.words} of the weights, not {layout}"
        case "operator":
            words = f"the installed {_LIBRARY} lacked the operator {found.words}"
        case _:
            words = f"{_LIBRARY} could not run: {_without(found.folders, found.words)}"
    return Trial(False, words)


def _without(folders: tuple[str, ...], words: str) -> str:
    """An artifact is passed on, and where things lie on this machine is nobody else's business."""
    for folder in folders:
        words = words.replace(os.path.join(folder, ""), "")
    return words
