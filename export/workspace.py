"""The hidden folder beside an output in which an export works, and how the result takes its place.

    .NAME.xxxxxxxx.selfspec-export/new        what is being written
    .NAME.xxxxxxxx.selfspec-export/replaced   the old artifact, between two renames

Its owner holds a lock on it, which ends with the process however that ends: a folder without one belongs to nobody. The
next export to the same output removes it, after putting back an old artifact whose successor never came: then both
``new`` and ``replaced`` are there.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from ..errors import ArtifactError
from .renaming import rename_to_free_name

try:
    import fcntl
except ImportError:  # Windows: nothing tells who is running, so nobody's folder is removed
    fcntl = None  # type: ignore[assignment]

_SUFFIX = ".selfspec-export"


@contextlib.contextmanager
def workspace(output: Path) -> Iterator[Path]:
    """A folder of our own beside ``output``, removed at the end with all that is still in it.

    Raises:
        OSError: it cannot be made.
    """
    folder, lock = _make(output)
    try:
        yield folder
    finally:
        try:
            _discard(folder, output)
        finally:
            _unlock(lock)


def clean_up(output: Path) -> None:
    """Remove what killed exports to ``output`` left behind, and never the folder of a running one.

    Raises:
        ArtifactError: an old artifact cannot be put back. It stays where it is.
        OSError: the folder beside ``output`` cannot be read.
    """
    if fcntl is None or not output.parent.is_dir():
        return
    pattern = re.compile(rf"\.{re.escape(output.name)}\.[a-z0-9_]{{8}}{re.escape(_SUFFIX)}")
    for folder in [p for p in output.parent.iterdir() if pattern.fullmatch(p.name) and not p.is_symlink()]:
        try:
            lock = _lock(folder)
        except OSError:  # its owner is running, or someone else has just removed it, or this place knows no locks
            continue
        try:
            _discard(folder, output)
        finally:
            _unlock(lock)


def publish(folder: Path, output: Path, check_replaced: Callable[[Path], None] | None = None) -> None:
    """Put ``folder``/new in the place of ``output``, as a whole and on the disk.

    Args:
        check_replaced: raises where what stands at ``output`` may not be replaced. It is called when that has been
            moved into the workspace, where nobody changes it. None: nothing may be replaced.

    Raises:
        FileExistsError: something stands there by now.
        OSError: it could not be done; leaving the workspace makes ``output`` what it was.
    """
    new, replaced = folder / "new", folder / "replaced"
    _sync_tree(new)
    if check_replaced is not None and os.path.lexists(output):
        output.rename(replaced)  # should one of the next lines fail, leaving the workspace puts it back
        check_replaced(replaced)
    rename_to_free_name(new, output)
    _sync(output.parent)


def _make(output: Path) -> tuple[Path, int | None]:
    while True:
        folder = Path(tempfile.mkdtemp(prefix=f".{output.name}.", suffix=_SUFFIX, dir=output.parent))
        try:
            lock = _lock(folder)
        except (BlockingIOError, FileNotFoundError):  # someone cleans up and took it for a dead one's
            continue
        except OSError:  # this place knows no locks, so nobody will remove it
            return folder, None
        if folder.exists():
            return folder, lock
        _unlock(lock)


def _discard(folder: Path, output: Path) -> None:
    """Remove a workspace; what was moved away for a successor that never came goes back first, or stays where it is.

    Raises:
        ArtifactError: it cannot go back, perhaps because something else has taken its place.
    """
    new, replaced = folder / "new", folder / "replaced"
    if os.path.lexists(replaced) and new.exists():
        try:
            rename_to_free_name(replaced, output)
        except OSError as error:
            raise ArtifactError(
                f"{output} was not replaced and could not be put back ({error.strerror}); it is {replaced} now."
            ) from error
    shutil.rmtree(folder, ignore_errors=True)


def _lock(folder: Path) -> int | None:
    """Raises: OSError where it cannot be had; BlockingIOError where someone else holds it."""
    if fcntl is None:
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise
    return handle


def _unlock(lock: int | None) -> None:
    if lock is not None:
        os.close(lock)


def _sync_tree(root: Path) -> None:
    for path in sorted(root.rglob("*"), reverse=True):
        _sync(path)
    _sync(root)


def _sync(path: Path) -> None:
    """Have the system write ``path`` to the disk now: a rename must not be there before what it names."""
    if path.is_dir() and not hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        return
    handle = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
