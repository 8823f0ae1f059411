"""Compares the files of an artifact with its manifest: kind, size and sha256.

Hashing 100 MB takes a tenth of a second, so a file state whose bytes were right is remembered in the user's cache.
Where that cannot be written, every open compares again, which costs that time and nothing else.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from pathlib import Path

from ..models.manifest import FileFacts
from .cache import cache_folder, read_entry, write_entry

_VERSION = 1


class Verified:
    """The states in which files of one artifact folder had their sha256."""

    def __init__(self, folder: Path) -> None:
        key = hashlib.sha256(os.fsencode(folder.resolve())).hexdigest()
        self._path = cache_folder() / "verified" / f"{key}.json"
        files = read_entry(self._path, _VERSION).get("files")
        self._stored: dict[str, object] = files if isinstance(files, dict) else {}
        self._files = dict(self._stored)

    def knows(self, name: str, state: list[int], sha256: str) -> bool:
        return self._files.get(name) == [*state, sha256]

    def remember(self, name: str, state: list[int], sha256: str) -> None:
        self._files[name] = [*state, sha256]

    def forget(self, name: str) -> None:
        self._files.pop(name, None)

    def store(self) -> None:
        """Keep what changed. Of two processes the later one wins, whole; a lost entry is compared once more."""
        if self._files != self._stored:
            with contextlib.suppress(OSError):  # see the module's docstring
                write_entry(self._path, _VERSION, {"files": self._files})
            self._stored = dict(self._files)


def file_state(status: os.stat_result) -> list[int]:
    """What changes when a file's bytes do, unless someone forges it: size, times in ns, inode and device."""
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, status.st_dev]


def file_problem(folder: Path, name: str, facts: FileFacts, verified: Verified, *, force: bool = False) -> str | None:
    """What is wrong with the file ``name`` of the artifact at ``folder``, in one sentence; None where nothing is.

    Args:
        force: compare the bytes even where they are known to have been right in this state.
    """
    file = folder / name
    try:
        return _problem(folder, file, name, facts, verified, force)
    except OSError as error:
        return f"{file} cannot be read ({error.strerror}); copy the whole folder, or export again."


def _problem(folder: Path, file: Path, name: str, facts: FileFacts, verified: Verified, force: bool) -> str | None:
    for part in (file, *file.parents[: len(Path(name).parts) - 1]):
        if part.is_symlink():
            return f"{part} is a symbolic link, where an artifact holds real files; copy the files themselves."
    if not file.is_file():
        return f"{file} is missing; the manifest lists it. Copy the whole folder, or export again."
    with file.open("rb") as opened:
        state = file_state(os.fstat(opened.fileno()))
        if state[0] != facts.size:
            return (
                f"{file} has {state[0]} bytes where the manifest says {facts.size}; "
                "the copy is incomplete. Copy the folder again, or export again."
            )
        if not force and verified.knows(name, state, facts.sha256):
            return None
        if hashlib.file_digest(opened, "sha256").hexdigest() != facts.sha256:
            verified.forget(name)
            return f"{file} is not the file that was exported (sha256 differs); export again."
        if file_state(os.fstat(opened.fileno())) == state:
            verified.remember(name, state, facts.sha256)
    return None
