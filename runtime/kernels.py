"""The library of native kernels, which an artifact may need: an optional package, imported when such an artifact is
opened. What an artifact says chooses between that package and none, never a file or a module of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnxruntime as ort

from ..errors import KernelSetupError
from ..kernel_library import Problem, probe
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

    Raises:
        KernelSetupError: it is not installed, of another layout, or not able to run here.
    """
    found = probe(facts.name, facts.layout, EXPERTS_OPERATOR)
    if isinstance(found, Problem):
        raise KernelSetupError(_sentence(facts, found))
    return KernelLibrary(found.path, f"{facts.name} {found.version} ({found.instructions})", found.sha256)


def _sentence(facts: KernelFacts, problem: Problem) -> str:
    words = problem.words.rstrip(".")
    match problem.kind:
        case "absent":
            return (
                f"this artifact needs {facts.name}, which is not installed ({words}): install it from selfspec's "
                f"sources (pip install ./kernels; it takes a C++ compiler), {_INSTEAD}."
            )
        case "layout":
            return (
                f"this artifact's weights are in layout {facts.layout} of {facts.name}, and the installed one reads "
                f"{words}: install the {facts.name} of this selfspec, {_INSTEAD}."
            )
        case "operator":
            return (
                f"the installed {facts.name} lacks the operator {words}: install the {facts.name} of this selfspec "
                f"(pip install ./kernels), {_INSTEAD}."
            )
        case "unversioned":
            return (
                f"{facts.name} is on Python's path but not installed, so its version is not known: pip install "
                f"./kernels, {_INSTEAD}."
            )
    return f"{facts.name} cannot run here: {words}; install it again, {_INSTEAD}."
