"""What a benchmark starts ends with it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from child import run_group

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
    for _ in range(100):
        if not _runs(pid):
            return
        time.sleep(0.1)
    pytest.fail("it still runs")


def _runs(pid: int) -> bool:
    """A zombie does not: whoever inherits it may be slow to ask for its exit code."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.strip().startswith("Z")
