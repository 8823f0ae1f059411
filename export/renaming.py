"""A rename that never takes the place of something else, not even of an empty folder, as os.rename would."""

from __future__ import annotations

import ctypes
import errno
import os
import sys
from pathlib import Path

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_UNKNOWN_HERE = (errno.ENOSYS, errno.EINVAL, errno.ENOTSUP)  # the kernel or the file system has no such rename


def rename_to_free_name(source: Path, target: Path) -> None:
    """Rename ``source`` to ``target``, where nothing may stand.

    Linux does this in one step. Elsewhere we look first: what appears between the look and the rename is safe unless it
    is an empty folder.

    Raises:
        FileExistsError: something is there: a file, a folder, or a link to anywhere.
        OSError: it cannot be renamed.
    """
    sys.audit("os.rename", str(source), str(target), -1, -1)
    code = _rename_noreplace(source, target)
    if code in _UNKNOWN_HERE:
        if os.path.lexists(target):
            code = errno.EEXIST
        else:
            os.rename(source, target)
            return
    if code:
        raise OSError(code, os.strerror(code), str(source), None, str(target))


def _rename_noreplace(source: Path, target: Path) -> int:
    """The number of the error, 0 where it was done."""
    if not sys.platform.startswith("linux"):
        return errno.ENOSYS
    library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(library, "renameat2"):  # a C library older than 2018
        return errno.ENOSYS
    done = library.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), _RENAME_NOREPLACE)
    return 0 if done == 0 else ctypes.get_errno()
