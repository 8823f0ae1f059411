"""Facts of the machine that a benchmark's numbers depend on, its read bandwidth among them."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ..runtime.limits import cpus
from ..runtime.machine_key import cpu_facts
from ..runtime.stats import reset_peak_rss

_LEAST_BUFFER, _MOST_BUFFER = 256 * 2**20, 2**30
_CACHES = 4  # how many times the largest cache the buffer has


@dataclass(frozen=True, slots=True)
class Machine:
    """``cores``: physical ones this process may use; ``cpus``: all that the system counts. ``cpu_quota``:
    how many CPUs' time its control groups pay for, None where they do not limit it.
    ``bandwidth``: bytes a second, read by ``threads`` threads as ``bandwidth_method`` says.
    ``peak_rss_of``: what peaks of memory are peaks of, which depends on the system."""

    cpu: str
    isa: tuple[str, ...]
    cores: int
    cpus: int
    threads: int
    bandwidth: float
    bandwidth_method: str
    onnxruntime: str
    numpy: str
    peak_rss_of: str
    cpu_quota: float | None = None


def machine(threads: int, seconds: float = 1.0) -> Machine:
    """Looks, and measures the bandwidth for about ``seconds``."""
    name, isa = cpu_facts()
    usable = cpus()
    size = buffer_bytes(_largest_cache())
    return Machine(
        cpu=name,
        isa=isa,
        cores=usable.cores,
        cpus=usable.machine,
        threads=threads,
        bandwidth=read_bandwidth(threads, size, seconds),
        bandwidth_method=f"NumPy max of int64 over {size / 2**20:.0f} MiB, {threads} thread(s) each over a part of its "
        f"own, whole passes for {seconds:g} s",
        onnxruntime=ort.__version__,
        numpy=np.__version__,
        peak_rss_of="each run" if reset_peak_rss() else "the process until then",
        cpu_quota=usable.quota,
    )


def buffer_bytes(largest_cache: int) -> int:
    """How much is read in a pass: several times the largest cache, and not all of the memory."""
    return min(_MOST_BUFFER, max(_LEAST_BUFFER, _CACHES * largest_cache))


def read_bandwidth(threads: int, size: int, seconds: float) -> float:
    """Bytes a second that ``threads`` threads read together from ``size`` bytes of memory; at least one pass each.

    A maximum needs one instruction a vector, so that memory is what limits it; a sum of floats does not get there.
    """
    parts = np.array_split(np.zeros(max(threads, size // 8), dtype=np.int64), threads)
    for part in parts:
        part.fill(1)  # gives every page memory of its own
    start = threading.Barrier(threads + 1)
    passes = [0] * threads
    readers = [
        threading.Thread(target=_read, args=(part, start, seconds, passes, index)) for index, part in enumerate(parts)
    ]
    for reader in readers:
        reader.start()
    start.wait()
    began = time.perf_counter()
    for reader in readers:
        reader.join()
    taken = time.perf_counter() - began
    return sum(part.nbytes * count for part, count in zip(parts, passes, strict=True)) / taken


def _read(part: NDArray[np.int64], start: threading.Barrier, seconds: float, passes: list[int], index: int) -> None:
    start.wait()
    end = time.perf_counter() + seconds
    while not passes[index] or time.perf_counter() < end:
        part.max()
        passes[index] += 1


def _largest_cache() -> int:
    """Bytes of the largest cache of CPU 0; 0 where the system does not say."""
    sizes = [0]
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text(encoding="ascii").strip()
        if text.endswith("K") and text[:-1].isdecimal():
            sizes.append(int(text[:-1]) * 1024)
    return max(sizes)
