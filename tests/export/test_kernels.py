"""Which kernels an artifact is made for, and the reason that it keeps: by trying, and without a library as well."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec import load
from selfspec.errors import UsageError
from selfspec.export.kernels import choose_kernels
from selfspec.export.layouts import BlockLayout
from selfspec.export.weights import PRECISIONS
from selfspec.models.manifest import KERNEL_LAYOUTS, MAX_REASON, KernelFacts
from selfspec.models.tensors import Role, TensorSpec
from selfspec.runtime.artifact import open_artifact

if TYPE_CHECKING:
    from tests.conftest import Tools

FACTS = KernelFacts("selfspec-kernels", KERNEL_LAYOUTS["selfspec-kernels"])
INT4 = PRECISIONS["int4"]


def linear_spec(*parts: tuple[int, int], name: str = "m") -> TensorSpec:
    return TensorSpec(name, tuple(f"{name}.{i}" for i in range(len(parts))), parts, Role.LINEAR)


FITTING = [linear_spec((16, 64)), TensorSpec("norm", ("norm",), ((48,),), Role.VECTOR)]


@pytest.mark.parametrize(
    ("shape", "named"), [((12, 64), r"odd\.1 is a matrix \[12, 64\]"), ((16, 48), r"odd\.0 is a matrix \[16, 48\]")]
)
def test_a_matrix_that_fits_no_tiles_is_refused_by_name(shape: tuple[int, int], named: str) -> None:
    """And 'auto' does without native kernels, saying so, without the advice that belongs to the refusal."""
    specs = [*FITTING, linear_spec((16, shape[1]), shape, name="odd")]
    with pytest.raises(UsageError, match=named + r", and native kernels need .*\[8, 32\]; export with `kernels` ort\."):
        choose_kernels("native", INT4, None, specs)
    chosen = choose_kernels("auto", INT4, None if shape[1] % 32 == 0 else 16, specs)
    assert isinstance(chosen.layout, BlockLayout)
    assert chosen.facts is None
    assert "--kernels ort" not in chosen.reason


def test_the_reason_names_what_decided() -> None:
    """The line a user reads when it is not faster than expected."""

    def reason(asked: str, precision: str, block_size: int | None = None, *specs: TensorSpec) -> str:
        return choose_kernels(asked, PRECISIONS[precision], block_size, specs or FITTING).reason

    assert reason("ort", "int4") == "asked for with --kernels ort"
    assert reason("auto", "fp32") == "auto: fp32 weights are multiplied by ONNX Runtime"
    assert reason("auto", "int4", 16) == "auto: native kernels have blocks of 32, not 16"
    odd = "auto: m.0 is a matrix [12, 64], and native kernels need multiples of [8, 32]"
    assert reason("auto", "int8", None, linear_spec((12, 64))) == odd


@pytest.mark.usefixtures("native_kernels")
def test_native_kernels_are_taken_where_they_run() -> None:
    import selfspec_kernels

    chosen = choose_kernels("auto", INT4, None, FITTING)
    ran = f"selfspec-kernels {metadata.version('selfspec-kernels')} ran ({selfspec_kernels.current_path()})"
    assert (chosen.facts, chosen.reason) == (FACTS, f"auto: {ran}")
    assert str(chosen) == f"kernels: selfspec-kernels; auto: {ran}"
    assert choose_kernels("native", INT4, None, FITTING).reason == "asked for with --kernels native"
    assert choose_kernels("ort", INT4, None, FITTING).facts is None


# A library that does not run here. Each of these breaks it in another way, and returns the words expected.

Break = Callable[[pytest.MonkeyPatch, Path], str]


def raising(error: Exception) -> Callable[..., Any]:
    def broken(*_: object) -> None:
        raise error

    return broken


def absent(patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setitem(sys.modules, "selfspec_kernels", None)
    return "selfspec-kernels was not installed"


def other_layout(patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setattr(pytest.importorskip("selfspec_kernels").tiles, "LAYOUT", 2)
    return "the installed selfspec-kernels read layout 2 of the weights, not 1"


def other_bits(patch: pytest.MonkeyPatch, folder: Path) -> str:
    library = pytest.importorskip("selfspec_kernels")
    patch.setattr(library, "self_test", raising(library.KernelError("The path avx9 computes other bits.")))
    return "selfspec-kernels could not run: The path avx9 computes other bits."


def not_built(patch: pytest.MonkeyPatch, folder: Path) -> str:
    library = pytest.importorskip("selfspec_kernels")
    patch.setattr(library, "library_path", raising(library.KernelError("It was not built.")))
    return "selfspec-kernels could not run: It was not built."


def no_version(patch: pytest.MonkeyPatch, folder: Path) -> str:
    pytest.importorskip("selfspec_kernels")
    version = metadata.version
    missing = raising(metadata.PackageNotFoundError("selfspec-kernels"))
    patch.setattr(metadata, "version", lambda name: missing() if name == "selfspec-kernels" else version(name))
    return "selfspec-kernels could not run: No package metadata was found for selfspec-kernels"


def not_loadable(patch: pytest.MonkeyPatch, folder: Path) -> str:
    """Of another processor, or of an older ONNX Runtime: it is ONNX Runtime that says no."""
    path = folder / "libselfspec_kernels.so"
    path.write_text("no library")
    patch.setattr(pytest.importorskip("selfspec_kernels"), "library_path", lambda: path)
    return "selfspec-kernels could not run: "


def other_operators(patch: pytest.MonkeyPatch, folder: Path) -> str:
    patch.setattr(pytest.importorskip("selfspec_kernels"), "operators", lambda: ("MatMulTiles",))
    return "the installed selfspec-kernels lacked the operator SparseMLPTiles"


BREAKS = (absent, other_layout, other_operators, other_bits, not_built, no_version, not_loadable)


@pytest.mark.parametrize("broken", BREAKS)
def test_auto_does_without_a_library_that_does_not_run(
    broken: Break, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A library that computes something else than its reference must not end up in an artifact by default. Where it
    lies on this machine must not end up there either."""
    words = broken(monkeypatch, tmp_path)
    chosen = choose_kernels("auto", INT4, None, FITTING)
    assert chosen.facts is None
    assert chosen.reason.startswith(f"auto: {words}")
    assert str(tmp_path) not in chosen.reason
    asked = choose_kernels("native", INT4, None, FITTING)
    assert asked.facts == FACTS
    assert asked.reason.startswith(f"asked for with --kernels native, though {words}")


@pytest.mark.parametrize("broken", [absent, other_bits])
def test_an_artifact_of_auto_runs_without_the_library(
    broken: Break, tools: Tools, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """No compiler, or a processor that the library does not know: everything works, and the artifact says why so."""
    words = broken(monkeypatch, tmp_path)
    source = tools.write(tmp_path / "checkpoint", tools.spec())
    folder = tools.export(source, tmp_path / "artifact", precision="int4", kernels="auto")
    manifest = open_artifact(folder).manifest
    assert (manifest.kernels, manifest.kernels_reason) == (None, f"auto: {words}")
    assert load(folder, threads=1).generate("The", max_new_tokens=4, draft="prompt-lookup").token_ids


@pytest.mark.usefixtures("native_kernels")
def test_a_reason_is_short_and_printable_whatever_a_library_says(monkeypatch: pytest.MonkeyPatch) -> None:
    """The export would be refused at its end by its own manifest."""
    import selfspec_kernels

    said = f"bad\x1b[2J\n {Path(selfspec_kernels.__file__).parent}/x.so " + "at length " * 500
    monkeypatch.setattr(selfspec_kernels, "self_test", raising(selfspec_kernels.KernelError(said)))
    reason = choose_kernels("auto", INT4, None, FITTING).reason
    assert reason.startswith(r"auto: selfspec-kernels could not run: bad\x1b[2J x.so at length")
    assert reason.isprintable()
    assert len(reason) <= MAX_REASON
