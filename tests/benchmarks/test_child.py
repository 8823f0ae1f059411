"""What a benchmark starts ends with it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks import child
from benchmarks.child import run_group

_PARENT = """
import pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
target = pathlib.Path(sys.argv[1])
target.with_suffix(".part").write_text(str(child.pid))
target.with_suffix(".part").rename(target)
time.sleep(60)
"""


def test_a_command_that_ends_gives_its_code_and_output() -> None:
    done = run_group([sys.executable, "-c", "print('said'); raise SystemExit(3)"], 30, stdout=subprocess.PIPE)
    assert (done.returncode, done.stdout) == (3, "said\n")


@pytest.mark.skipif(sys.platform == "win32", reason="a process group is POSIX's")
def test_a_timeout_ends_what_the_command_has_started_too(tmp_path: Path) -> None:
    """Would catch a compiler that goes on for minutes behind an ended pip."""
    with pytest.raises(subprocess.TimeoutExpired):
        run_group([sys.executable, "-c", _PARENT, str(tmp_path / "pid")], 3)
    pid = int((tmp_path / "pid").read_text(encoding="utf-8"))
    _await(lambda: not _runs(pid))


@pytest.mark.skipif(sys.platform == "win32", reason="a process group is POSIX's")
def test_a_terminated_driver_takes_its_command_along(tmp_path: Path) -> None:
    """Would catch a pip that goes on behind a killed ``make peers``."""
    here = Path(child.__file__).parents[1]
    program = "from benchmarks.child import run_group; run_group(sys.argv[1:])"
    driver = f"import sys; sys.path.insert(0, {str(here)!r}); {program}"
    target = tmp_path / "pid"
    with subprocess.Popen([sys.executable, "-c", driver, sys.executable, "-c", _PARENT, str(target)]) as started:
        _await(target.exists)
        started.terminate()
        assert started.wait(20) == 128 + signal.SIGTERM
    pid = int(target.read_text(encoding="utf-8"))
    _await(lambda: not _runs(pid))


def _await(happened: Callable[[], bool]) -> None:
    for _ in range(200):
        if happened():
            return
        time.sleep(0.1)
    pytest.fail("it did not happen")


def _runs(pid: int) -> bool:
    """A zombie does not: whoever inherits it may be slow to ask for its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
