"""Where an artifact will stand: looked at before the work, and again at the moment when the work takes that place."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from ..errors import ArtifactError
from ..models.manifest import MANIFEST_NAME
from .workspace import clean_up, publish, workspace


@contextlib.contextmanager
def destination(output: Path, *, force: bool) -> Iterator[Path]:
    """An empty folder, which becomes ``output`` when the block ends, or vanishes with all that was made for it.

    Args:
        force: an artifact that stands there may be replaced. Nothing else ever is.

    Raises:
        ArtifactError: something stands there, before or by then, that may not be replaced. It is left as it is.
        OSError: it cannot be written.
    """
    clean_up(output)
    if os.path.lexists(output) and not force:
        raise ArtifactError(f"{output} exists already; remove it, name another output, or pass `force` to replace it.")
    if os.path.lexists(output) and not _is_artifact(output):
        raise ArtifactError(f"{output} exists and is no artifact, so `force` does not replace it; name another output.")
    made: list[Path] = []
    try:
        _make_folders(output.parent, made)
        with workspace(output) as folder:
            (folder / "new").mkdir()
            yield folder / "new"
            _publish(folder, output, force=force)
    finally:
        if not output.exists():
            _remove_empty(made)


def _is_artifact(folder: Path) -> bool:
    """A link to an artifact is none: whether the link or the artifact were to be replaced is not ours to guess."""
    return (folder / MANIFEST_NAME).is_file() and not folder.is_symlink()


def _publish(folder: Path, output: Path, *, force: bool) -> None:
    def check(replaced: Path) -> None:
        if not _is_artifact(replaced):
            raise ArtifactError(
                f"{output} is no artifact by now, so `force` does not replace it; it was left as it is. Name another "
                "output."
            )

    try:
        publish(folder, output, check if force else None)
    except FileExistsError as error:
        raise ArtifactError(
            f"{output} exists by now, made while the export ran; it was left as it is. Remove it, name another output, "
            "or pass `force` to replace an artifact."
        ) from error


def _make_folders(folder: Path, made: list[Path]) -> None:
    """Make ``folder`` and what is missing above it, noted in ``made``: what others made is not ours to remove."""
    for path in (*reversed(folder.parents), folder):
        if not path.exists():
            with contextlib.suppress(FileExistsError):  # someone else has just made it
                path.mkdir()
                made.append(path)


def _remove_empty(folders: list[Path]) -> None:
    """Undo :func:`_make_folders`, innermost first; a folder that someone else uses by now stays."""
    for folder in reversed(folders):
        with contextlib.suppress(OSError):
            folder.rmdir()
