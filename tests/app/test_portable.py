"""What Windows has not: everything imports and a model runs without it."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from selfspec.runtime import stats

ROOT = Path(__file__).parents[2]
POSIX_MODULES = ("resource", "fcntl", "termios", "readline", "pwd", "grp", "pty", "tty")
POSIX_FUNCTIONS = ("fork", "register_at_fork", "sched_getaffinity", "sched_setaffinity", "getuid", "uname", "killpg")

# Libraries first: what they do without a platform is their own affair.
PREPARE = f"""
import os, sys
import numpy, onnxruntime, tokenizers, jinja2, tempfile, subprocess, platform, ctypes.util, importlib.metadata
import multiprocessing, asyncio, concurrent.futures
for name in {POSIX_MODULES!r}:
    sys.modules[name] = None
for name in {POSIX_FUNCTIONS!r}:
    if hasattr(os, name):
        delattr(os, name)
"""


def without_posix(code: str, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", PREPARE + code, *argv], capture_output=True, text=True, check=False)


def modules(*packages: str) -> list[str]:
    """Names of all modules of these packages of ours."""
    found = []
    for package in packages:
        folder = ROOT / "src/selfspec" / package
        names = ["".join(p.relative_to(folder).with_suffix("").as_posix().replace("/", ".")) for p in
                 sorted(folder.rglob("*.py"))]  # fmt: skip
        found += [f"selfspec.{package}.{name}".replace(".__init__", "") for name in names]
    return found


def test_every_module_of_runtime_and_of_the_commands_imports_without_posix() -> None:
    """``import resource`` at the head of a module, and ``import selfspec`` fails on Windows."""
    names = [name for name in modules("runtime", "cli", "bench") if name != "selfspec.bench.plot"]
    assert "selfspec.runtime.drafters.base" in names
    done = without_posix("import importlib\nfor name in sys.argv[1:]:\n    importlib.import_module(name)", *names)
    assert done.returncode == 0, done.stderr


def test_the_exporter_and_its_locks_import_without_posix() -> None:
    done = without_posix("import selfspec.export.artifact, selfspec.export.source, selfspec.export.workspace")
    assert done.returncode == 0, done.stderr


def test_a_model_runs_without_posix(fp32: Any) -> None:
    code = "sys.platform = 'win32'\nfrom selfspec.cli.main import main\n"
    code += "import selfspec.runtime.stats as stats\nstats._peak_working_set = lambda: 7\nsys.exit(main(sys.argv[1:]))"
    argv = ["generate", str(fp32.folder), "-p", "hi", "--max-new-tokens", "3", "--draft", "none", "-t", "1"]
    done = without_posix(code, *argv)
    assert done.returncode == 0, done.stderr
    assert "tok/s" in done.stderr


def test_windows_tells_the_largest_working_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """PROCESS_MEMORY_COUNTERS by Microsoft's description: 72 bytes in a 64-bit process, the peak behind two DWORDs."""

    class Function:
        def __call__(self, *arguments: Any) -> int:
            if len(arguments) == 3:
                memory = (ctypes.c_uint64 * 9).from_address(ctypes.addressof(arguments[1]._obj))
                memory[1] = 12_345_678
                assert arguments[2] == 72
            return 1

    class Library:
        GetCurrentProcess = Function()
        K32GetProcessMemoryInfo = Function()

    if ctypes.sizeof(ctypes.c_size_t) != 8:
        pytest.skip("sizes are those of a 64-bit process")
    monkeypatch.setattr(ctypes, "WinDLL", lambda name: Library, raising=False)
    assert stats._peak_working_set() == 12_345_678
