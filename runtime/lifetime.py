"""What becomes of running work where the process ends, and of the thread pool where it forks.

ONNX Runtime is native code, which knows of neither. A thread that Python ends while it is in there aborts the whole
process, and a forked child, at its end, waits for threads of the pool that only its parent has. So at the end other
threads are asked to stop before their next pass and are waited for, and a forked child leaves without tidying up.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections.abc import Callable
from types import TracebackType

_PATIENCE = 30.0  # seconds that the end of the process waits for a pass; some are long, a drafter may be anyone's


class _Running:
    """``with running:`` stands around whatever may be in native code."""

    def __init__(self) -> None:
        self.ending = False
        self.begin_anew()

    def __enter__(self) -> None:
        """Raises: SystemExit, as :func:`go_on`."""
        with self._lock:
            go_on()
            self._count += 1

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        with self._lock:
            self._count -= 1
            if self.ending:
                self._changed.notify_all()

    def stop(self) -> None:
        """Nothing begins any more; what has begun is waited for."""
        with self._changed, contextlib.suppress(KeyboardInterrupt):
            self.ending = True
            self._changed.wait_for(lambda: self._count <= 0, _PATIENCE)

    def begin_anew(self) -> None:
        """In a forked child, which has none of its parent's other threads, and perhaps a lock that one of them held."""
        self._count = 0
        self._lock = threading.RLock()  # a signal's handler may generate, too
        self._changed = threading.Condition(self._lock)


running = _Running()
atexit.register(running.stop)  # threads that are no daemons have been waited for by then


def go_on() -> None:
    """Called before each pass.

    Raises:
        SystemExit: the process ends, and this is a thread that it does not wait for. That ends it without a word.
    """
    if running.ending and threading.current_thread() is not threading.main_thread():
        raise SystemExit


def _native_exit() -> Callable[[], None] | None:
    """Has the process end, once Python is done with it, without what libraries have registered to be called then: the
    exit code stays, and buffers are written. None where that cannot be asked for (it is glibc's)."""
    try:
        import ctypes

        libc = ctypes.CDLL(None)
        leave, write = (ctypes.cast(function, ctypes.c_void_p) for function in (libc._exit, libc.fcloseall))
        on_exit = libc.on_exit
    except (ImportError, OSError, AttributeError, TypeError):
        return None
    on_exit.argtypes = [ctypes.c_void_p, ctypes.c_void_p]

    def register() -> None:
        for function in (leave, write):  # called in reverse
            on_exit(function, None)

    return register


_pool_exists = False


def pool_exists() -> None:
    """ONNX Runtime has been told of its pool: from now on a forked child has a copy of it without threads."""
    global _pool_exists
    _pool_exists = True


def _after_fork(register: Callable[[], None] | None) -> None:
    running.begin_anew()
    if _pool_exists and register is not None:
        register()


if hasattr(os, "register_at_fork"):
    _register = _native_exit()
    os.register_at_fork(after_in_child=lambda: _after_fork(_register))
