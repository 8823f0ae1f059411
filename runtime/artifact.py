"""Opens an exported folder, checked before anything is loaded: the manifest, and the size and sha256 of every file."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import ArtifactError
from ..models.manifest import MANIFEST_NAME, Manifest
from .checksums import Verified, file_problem

_MAX_MANIFEST_BYTES = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Artifact:
    """An opened artifact. ``digest`` is the sha256 of its manifest, which names every other file's."""

    path: Path
    manifest: Manifest
    digest: str

    def read(self, name: str) -> bytes:
        """A small file, compared with the manifest's sha256.

        Raises:
            ArtifactError: it is not listed, or its bytes are not those that were exported.
        """
        facts = self.manifest.files.get(name)
        if facts is None:
            raise ArtifactError(f"{self.path} has no {name}; export the model again.")
        data = (self.path / name).read_bytes()
        if hashlib.sha256(data).hexdigest() != facts.sha256:
            raise ArtifactError(f"{self.path / name} is not the file that was exported (sha256 differs); export again.")
        return data

    def has(self, name: str) -> bool:
        return name in self.manifest.files


def open_artifact(path: str | Path) -> Artifact:
    """Open and validate. A file's bytes are compared once per state of the file (see ``checksums``).

    Raises:
        ArtifactError: the folder, its manifest or a file is missing or damaged, or the format is of another version.
    """
    artifact = _read_manifest(Path(path))
    verified = Verified(artifact.path)
    for name, facts in artifact.manifest.files.items():
        problem = file_problem(artifact.path, name, facts, verified)
        if problem is not None:
            raise ArtifactError(problem)
    verified.store()
    return artifact


def compare_files(path: str | Path) -> Iterator[tuple[str, str | None]]:
    """Compare every byte of every file, whatever is remembered; yields each file's name and what is wrong, or None.

    Raises:
        ArtifactError: there is no manifest to compare with, or it is damaged.
    """
    artifact = _read_manifest(Path(path))
    verified = Verified(artifact.path)
    for name, facts in artifact.manifest.files.items():
        yield name, file_problem(artifact.path, name, facts, verified, force=True)
    verified.store()


def _read_manifest(folder: Path) -> Artifact:
    try:
        return _read(folder)
    except OSError as error:
        raise ArtifactError(f"{folder} cannot be read ({error.strerror or error}).") from error


def _read(folder: Path) -> Artifact:
    manifest_path = folder / MANIFEST_NAME
    if not folder.exists():
        raise ArtifactError(f"there is no artifact at {folder}; make one with: selfspec-export MODEL_ID {folder}")
    if not folder.is_dir() or not manifest_path.is_file():
        raise ArtifactError(f"{folder} is no artifact: it has no {MANIFEST_NAME}. selfspec-export makes artifacts.")
    if manifest_path.is_symlink():
        raise ArtifactError(f"{manifest_path} is a symbolic link, where an artifact holds real files; copy the file.")
    if manifest_path.stat().st_size > _MAX_MANIFEST_BYTES:
        raise ArtifactError(f"{manifest_path} is larger than any manifest; export the model again.")
    raw = manifest_path.read_bytes()
    try:
        manifest = Manifest.from_json(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ArtifactError(f"{manifest_path} is not UTF-8 text ({error}); export the model again.") from error
    return Artifact(folder, manifest, hashlib.sha256(raw).hexdigest())
