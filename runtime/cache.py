"""The user's cache: a folder for what was found out on this machine. What is lost or damaged there costs time only."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any


def cache_folder() -> Path:
    """$SELFSPEC_CACHE, else the user's cache folder; a place that cannot be written where the user has no home."""
    if os.environ.get("SELFSPEC_CACHE"):
        return Path(os.environ["SELFSPEC_CACHE"])
    try:
        home = Path.home()
    except RuntimeError:  # an unknown user, as in some containers
        home = Path(os.devnull)
    if sys.platform == "darwin":
        return home / "Library" / "Caches" / "selfspec"
    return Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache") / "selfspec"


def read_entry(path: Path, version: int) -> dict[str, Any]:
    """What :func:`write_entry` stored at ``path``; empty where nothing usable of that version is there."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return data if isinstance(data, dict) and data.get("version") == version else {}


def write_entry(path: Path, version: int, data: dict[str, Any]) -> None:
    """Store ``data``, whole or not at all, whoever else writes or reads there now.

    Raises:
        OSError: the cache cannot be written. What stood at ``path`` before still does.
    """
    write_whole(path, json.dumps({"version": version} | data, indent=1))


def write_whole(path: Path, text: str, mode: int = 0o600) -> None:
    """A file that appears whole or not at all; its folder is made, and another file of that name replaced at once.

    Raises:
        OSError: it cannot be written. What stood at ``path`` before still does.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, suffix=".tmp")
    try:
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
