"""The process's one ONNX Runtime thread pool. Its size is set once, before the first session."""

from __future__ import annotations

import os
import threading

import onnxruntime as ort

from ..errors import RuntimeSetupError, UsageError
from .lifetime import pool_exists
from .limits import cpus

_lock = threading.Lock()
_size: int | None = None
_warned = False


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
            size = requested or cpus().threads
            ort.set_global_thread_pool_sizes(size, 1)
            pool_exists()
            _size = size
        elif requested not in (None, _size):
            raise RuntimeSetupError(
                f"this process already runs with {_size} threads, and ONNX Runtime's pool cannot be resized to "
                f"{requested}; load every model with the same threads, or use another process."
            )
        return _size


def quota_warning(threads: int) -> str | None:
    """A sentence where a control group pays for fewer CPUs than ``threads`` spin on; said once a process."""
    global _warned
    quota = cpus().quota
    if _warned or quota is None or threads <= max(1.0, quota):
        return None
    _warned = True
    return (
        f"warning: {threads} threads share a quota of {quota:g} CPU(s) of this process's control group, so that they "
        f"are stopped again and again; `threads` {cpus().threads} is likely to be faster."
    )
