"""The process's one ONNX Runtime thread pool. Its size is set once, before the first session."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import onnxruntime as ort

from ..errors import RuntimeSetupError, UsageError

_lock = threading.Lock()
_size: int | None = None


def physical_cores() -> int:
    """Cores this process may run on, counting hyper-thread siblings once."""
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(os.cpu_count() or 1))
    siblings = set()
    for cpu in cpus:
        path = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        try:
            siblings.add(path.read_text(encoding="ascii"))
        except OSError:  # not Linux, or hidden in a container: every CPU counts
            siblings.add(str(cpu))
    return max(1, len(siblings))


def use_threads(requested: int | None) -> int:
    """Set the pool's size, or return the size it already has.

    Raises:
        UsageError: fewer than one thread, or more than the machine has CPUs.
        RuntimeSetupError: the pool exists with another size.
    """
    global _size
    most = os.cpu_count() or 1
    if requested is not None and (requested < 1 or (_size is None and requested > most)):
        raise UsageError(
            f"`threads` {requested}: it must be at least 1 and at most {most}, the CPUs of this machine.", "threads"
        )
    with _lock:
        if _size is None:
            size = requested or physical_cores()
            ort.set_global_thread_pool_sizes(size, 1)
            _size = size
        elif requested not in (None, _size):
            raise RuntimeSetupError(
                f"this process already runs with {_size} threads, and ONNX Runtime's pool cannot be resized to "
                f"{requested}; load every model with the same threads, or use another process."
            )
        return _size
