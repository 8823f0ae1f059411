"""sha256 on open: bytes are compared once per state of a file, a change is found, and nothing depends on the cache."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec import load
from selfspec.errors import ArtifactError
from selfspec.runtime import checksums
from selfspec.runtime.artifact import compare_files, open_artifact

if TYPE_CHECKING:
    from tests.conftest import Toy


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def folder(fp32: Toy, tmp_path: Path, cache: Path) -> Path:
    return Path(shutil.copytree(fp32.folder, tmp_path / "copy"))


@pytest.fixture
def hashed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the files whose bytes were compared on opening."""
    names: list[str] = []
    original = hashlib.file_digest

    def watching(file: Any, digest: Any) -> Any:
        names.append(Path(file.name).name)
        return original(file, digest)

    monkeypatch.setattr(hashlib, "file_digest", watching)
    return names


def change_a_byte(path: Path) -> None:
    with path.open("r+b") as file:
        file.seek(1000)
        byte = file.read(1)
        file.seek(1000)
        file.write(bytes([byte[0] ^ 1]))


def test_every_file_is_compared_once(folder: Path, hashed: list[str]) -> None:
    """Half a second for every start with a large model; or weights that nobody ever compares."""
    manifest = open_artifact(folder).manifest
    assert sorted(hashed) == sorted(Path(name).name for name in manifest.files)
    hashed.clear()
    open_artifact(folder)
    assert hashed == []


def test_a_changed_byte_in_the_weights_is_found_at_the_next_open(folder: Path) -> None:
    """A wrong weight gives plausible text: size and graphs are as they were."""
    open_artifact(folder)
    change_a_byte(folder / "weights.bin")
    for _ in range(2):  # a refusal is not remembered as a comparison
        with pytest.raises(ArtifactError, match=r"weights\.bin is not the file .*sha256"):
            load(folder, threads=1)


def test_a_change_with_its_times_forged_is_found_by_a_full_comparison(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is remembered is a shortcut: whoever wants to know must be able to look at every byte."""
    monkeypatch.setattr(
        checksums, "file_state", lambda status: [status.st_size, status.st_mtime_ns]
    )  # no ctime: forged
    open_artifact(folder)
    status = (folder / "weights.bin").stat()
    change_a_byte(folder / "weights.bin")
    os.utime(folder / "weights.bin", ns=(status.st_atime_ns, status.st_mtime_ns))
    open_artifact(folder)  # does not see it
    problems = dict(compare_files(folder))
    assert [name for name, problem in problems.items() if problem] == ["weights.bin"]
    with pytest.raises(ArtifactError, match=r"weights\.bin"):
        open_artifact(folder)  # and is no longer told that the file is right


def test_another_file_with_the_same_size_and_times_is_compared(folder: Path, tmp_path: Path) -> None:
    """rsync -t puts another file in place with the times of the old one."""
    open_artifact(folder)
    status = (folder / "weights.bin").stat()
    shutil.copyfile(folder / "weights.bin", tmp_path / "other")
    change_a_byte(tmp_path / "other")
    os.utime(tmp_path / "other", ns=(status.st_atime_ns, status.st_mtime_ns))
    os.replace(tmp_path / "other", folder / "weights.bin")
    with pytest.raises(ArtifactError, match="sha256"):
        open_artifact(folder)


@pytest.mark.parametrize(
    "files", [None, [], {"weights.bin": None}, {"weights.bin": "x"}, {"weights.bin": [1, 2]}, {"weights.bin": {}}]
)
def test_a_damaged_memory_is_no_memory(folder: Path, cache: Path, hashed: list[str], files: Any) -> None:
    """KeyError out of a cache file, or a file called right because an entry of any kind is there."""
    open_artifact(folder)
    (path,) = (cache / "verified").iterdir()
    path.write_text(json.dumps({"version": 1, "files": files}))
    hashed.clear()
    open_artifact(folder)
    assert "weights.bin" in hashed


def test_without_a_cache_every_open_compares(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hashed: list[str]
) -> None:
    """A read-only home must cost time and nothing else."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "file"))
    for _ in range(2):
        hashed.clear()
        open_artifact(folder)
        assert "weights.bin" in hashed


def test_a_folder_behind_a_link_is_no_part_of_an_artifact(folder: Path, tmp_path: Path) -> None:
    """graphs/ as a link to a folder of the user's: only the last part of a path was looked at."""
    (folder / "graphs").rename(tmp_path / "elsewhere")
    (folder / "graphs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match=r"graphs is a symbolic link"):
        open_artifact(folder)


def test_an_artifact_that_is_itself_behind_a_link_opens(folder: Path, tmp_path: Path) -> None:
    """The path is the user's own word; the rule is about what a folder by a stranger holds."""
    (tmp_path / "link").symlink_to(folder)
    assert load(tmp_path / "link", threads=1).generate("The", max_new_tokens=2, draft="none").token_ids


def test_a_name_that_no_file_can_have_is_one_sentence(folder: Path) -> None:
    """OSError: File name too long."""
    data = json.loads((folder / "manifest.json").read_text())
    data["files"]["x" * 5000] = {"size": 1, "sha256": "0" * 64}
    (folder / "manifest.json").write_text(json.dumps(data))
    with pytest.raises(ArtifactError, match="cannot be read"):
        open_artifact(folder)
