"""Facts of the machine: that bandwidth is counted right. What it is, no test says."""

from __future__ import annotations

import threading

import onnxruntime as ort
import pytest

from selfspec.bench import machine as module
from selfspec.bench.machine import buffer_bytes, machine, read_bandwidth

MIB = 2**20


@pytest.mark.parametrize(("cache", "size"), [(0, 256), (32, 256), (100, 400), (512, 1024)])
def test_the_buffer_is_larger_than_the_caches_and_not_all_of_memory(cache: int, size: int) -> None:
    assert buffer_bytes(cache * MIB) == size * MIB


class Clock:
    """Goes on by a second at each look."""

    def __init__(self) -> None:
        self.looks = 0
        self._lock = threading.Lock()

    def perf_counter(self) -> float:
        with self._lock:
            self.looks += 1
            return float(self.looks)


def test_bandwidth_is_the_bytes_of_whole_passes_over_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reader looks before it begins and after each pass, the one who waits before and after all.

    The two begin together and may look in either order, so that the reader makes three or four passes.
    """
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    found = read_bandwidth(1, 8000, 4.0)
    passes = clock.looks - 3
    assert passes in (3, 4)
    assert 8000 * passes / (passes + 2) <= found <= 8000 * passes


def test_every_thread_reads_a_part_of_its_own() -> None:
    """More threads than divide the buffer, and a buffer smaller than the threads."""
    assert read_bandwidth(3, 8 * 1001, 0.001) > 0
    assert read_bandwidth(3, 0, 0.0) > 0


def test_facts_are_those_of_this_process() -> None:
    found = machine(1, seconds=0.01)
    assert found.threads == 1
    assert 1 <= found.cores <= found.cpus
    assert found.cpu
    assert found.onnxruntime == ort.__version__
    assert "MiB, 1 thread(s)" in found.bandwidth_method
    assert found.bandwidth > 0
