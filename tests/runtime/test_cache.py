"""The user's cache: where it lies, that an entry is whole or not there, and that damage is the same as absence."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from selfspec.runtime.cache import cache_folder, read_entry, write_entry


def test_the_cache_lies_where_the_user_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files in an unexpected place, or in the current folder when a variable is empty."""
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.setenv("SELFSPEC_CACHE", "")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "selfspec"
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache_folder() == tmp_path / "home" / ".cache" / "selfspec"


def test_an_entry_survives_its_file_and_no_other_version(tmp_path: Path) -> None:
    """An entry of another version read as if it were this one's."""
    write_entry(tmp_path / "a" / "b.json", 3, {"x": [1, "ä"]})
    assert read_entry(tmp_path / "a" / "b.json", 3)["x"] == [1, "ä"]
    assert read_entry(tmp_path / "a" / "b.json", 2) == {}


@pytest.mark.parametrize("text", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b"1" * 5000, b'"version"'])
def test_a_damaged_entry_is_no_entry(tmp_path: Path, text: bytes) -> None:
    """A cache that must be deleted by hand before anything works again."""
    (tmp_path / "x.json").write_bytes(text)
    assert read_entry(tmp_path / "x.json", 1) == {}


def test_a_write_that_fails_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an entry, or one more temporary file for every run on a full disk."""
    write_entry(tmp_path / "x.json", 1, {"x": 1})

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="space"):
            write_entry(tmp_path / "x.json", 1, {"x": 2})
    assert read_entry(tmp_path / "x.json", 1)["x"] == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]


def test_writers_at_once_leave_one_whole_entry(tmp_path: Path) -> None:
    """Two processes writing into one file: the texts mixed."""
    threads = [threading.Thread(target=write_entry, args=(tmp_path / "x.json", 1, {"x": [i] * 2000})) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(read_entry(tmp_path / "x.json", 1)["x"])) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["x.json"]
