"""``selfspec info``: which kernels are in use and why, also of artifacts that cannot run here."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.cli.main import main

if TYPE_CHECKING:
    from tests.conftest import Toy

Capture = pytest.CaptureFixture[str]


@pytest.fixture
def native(native_kernels: None, make_toy: Callable[..., Toy]) -> Path:
    return make_toy(precision="int4", kernels="native", exit_layers=(2, 4, 5), hot_vocab=250).folder


def rows(folder: Path, capsys: Capture) -> dict[str, str]:
    assert main(["info", str(folder), "-t", "1"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    return {line[:14].rstrip(): line[15:] for line in captured.out.splitlines()}


def as_json(folder: Path, capsys: Capture) -> dict[str, Any]:
    assert main(["info", str(folder), "-t", "1", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def test_kernels_of_onnx_runtime(fp32: Toy, capsys: Capture) -> None:
    assert rows(fp32.folder, capsys)["kernels"] == "ONNX Runtime's; chosen at export: asked for with --kernels ort"
    found = as_json(fp32.folder, capsys)
    assert (found["kernels"], found["kernels_in_use"], found["kernels_problem"]) == (None, "ONNX Runtime's", None)
    assert found["kernels_reason"] == "asked for with --kernels ort"


def test_native_kernels_with_their_version_and_instruction_set(native: Path, capsys: Capture) -> None:
    import selfspec_kernels

    found = as_json(native, capsys)
    assert found["kernels_in_use"].startswith("selfspec-kernels 0.")
    assert found["kernels_in_use"].endswith(f"({selfspec_kernels.current_path()})")
    assert found["kernels_problem"] is None
    said = f"native (layout 1): {found['kernels_in_use']}; chosen at export: asked for with --kernels native"
    assert rows(native, capsys)["kernels"] == said


def test_an_older_artifact_does_not_say_why(fp32: Toy, tmp_path: Path, capsys: Capture) -> None:
    """Exported before the reason was recorded: no traceback, and nothing made up."""
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["format_version"] = 3
    for later in ("kernels_reason", "draft_heads", "weights"):
        del manifest[later]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert rows(folder, capsys)["kernels"] == "ONNX Runtime's; why was not recorded at export"
    assert as_json(folder, capsys)["kernels_reason"] is None


@pytest.mark.parametrize("how", ["absent", "wrong"])
def test_an_artifact_whose_kernels_cannot_run_is_described(
    how: str, native: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be loaded is what one asks about: what to install, and everything else as ever."""
    usual = rows(native, capsys)
    if how == "absent":
        monkeypatch.setitem(sys.modules, "selfspec_kernels", None)
    else:
        import selfspec_kernels

        def differs() -> None:
            raise selfspec_kernels.KernelError("The path avx9 computes other bits.")

        monkeypatch.setattr(selfspec_kernels, "self_test", differs)
    found = rows(native, capsys)
    assert found.pop("kernels").startswith("native (layout 1): selfspec-kernels, which cannot run here; chosen at")
    problem = found.pop("to run it")
    for words in ("selfspec-kernels", "install", "--kernels ort"):
        assert words in problem
    assert found.pop("profile") == "none, since it cannot run here"
    assert found == {key: value for key, value in usual.items() if key in found}
    assert len(found) > 8
    told = as_json(native, capsys)
    assert (told["kernels_in_use"], told["kernels_problem"], told["profile"]) == (None, problem, None)
