"""The KV cache where memory is short: it takes what there is, or says so in a sentence before anything is written."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from selfspec.errors import RuntimeSetupError
from selfspec.models.config import ModelConfig, RopeConfig
from selfspec.runtime import kvcache
from selfspec.runtime.kvcache import INITIAL_ROWS, KVCache
from selfspec.runtime.limits import Room

MB = 2**20
CONFIG = ModelConfig("llama", 100, 128, 128, 2, 2, 2, 64, 1e-5, 16384, RopeConfig(1e4), False, 0.25)
ROW = 2048  # bytes of a token: 2 layers, keys and values, 2 heads, 64 floats


def room(monkeypatch: pytest.MonkeyPatch, rows: int) -> None:
    monkeypatch.setattr(kvcache, "memory_room", lambda: Room(rows * ROW, "the group may have 1 MB"))


def test_the_cache_grows_as_far_as_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Doubling is only a wish: a smaller step may still do. Old rows are free once they are copied."""
    cache = KVCache(CONFIG)
    assert cache.capacity == INITIAL_ROWS == 2048
    room(monkeypatch, 3000)
    cache.reserve(5000)
    assert cache.capacity == 3000 + 2048
    room(monkeypatch, 6000)
    cache.reserve(5049)
    assert cache.capacity == 2 * 5048


def test_a_cache_that_memory_does_not_hold_is_one_sentence_and_changes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = KVCache(CONFIG)
    room(monkeypatch, 100)
    with pytest.raises(RuntimeSetupError, match="because the group may have 1 MB; use a shorter prompt"):
        cache.reserve(INITIAL_ROWS + 1)
    assert cache.capacity == INITIAL_ROWS
    cache.reserve(INITIAL_ROWS)


def test_a_cache_begins_with_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    room(monkeypatch, 300)
    assert KVCache(CONFIG).capacity == 300
    room(monkeypatch, 0)
    with pytest.raises(RuntimeSetupError, match="KV cache of 1 tokens"):
        KVCache(CONFIG)


@pytest.fixture
def small_group() -> Iterator[Path]:
    """A control group of 512 MiB."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    folder = Path("/sys/fs/cgroup" if version_2 else "/sys/fs/cgroup/memory") / f"selfspec-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error})")
    try:
        try:
            (folder / ("memory.max" if version_2 else "memory.limit_in_bytes")).write_text(str(512 * MB))
        except OSError as error:
            pytest.skip(f"control groups limit no memory here ({error})")
        yield folder
    finally:
        folder.rmdir()


def test_a_real_limit_of_memory_is_one_sentence_and_not_the_end_of_the_process(small_group: Path) -> None:
    """Filling 32 GB of keys and values a page at a time, the process would be killed."""
    code = f"""
import os
open({str(small_group / "cgroup.procs")!r}, "w").write(str(os.getpid()))
from selfspec.errors import RuntimeSetupError
from selfspec.models.config import ModelConfig, RopeConfig
from selfspec.runtime.kvcache import KVCache
from selfspec.runtime.limits import memory_room
cache = KVCache(ModelConfig("llama", 100, 128, 128, 2, 2, 2, 64, 1e-5, 2**24, RopeConfig(1e4), False, 0.25))
try:
    while True:
        for keys in cache._arrays:
            keys.fill(1)
        cache.reserve(cache.capacity + 1)
except RuntimeSetupError as error:
    print("control group" in str(error), cache.capacity, memory_room().bytes)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said, capacity, left = done.stdout.split()
    assert said == "True"
    assert int(capacity) * ROW <= 512 * MB
    assert int(left) <= 512 * MB
