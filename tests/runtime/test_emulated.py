"""`exact` on a processor that this machine may not be: AVX2 without VNNI, as most small boxes have, emulated by QEMU.

Which kernels ONNX Runtime takes depends on the processor, and with them which rows have other bits alone. Needs
qemu-x86_64 on an x86-64 Linux (Debian and Ubuntu: qemu-user); skipped where it is missing.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.runtime.stack import AS_THEY_COME

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

EMULATOR = shutil.which("qemu-x86_64")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        EMULATOR is None or sys.platform != "linux" or platform.machine() != "x86_64",
        reason="needs qemu-x86_64 (qemu-user) on an x86-64 Linux",
    ),
]

ARTIFACTS: dict[str, dict[str, Any]] = {  # experts, attention and a dense head: every kind of product
    "int4": {"precision": "int4"},
    "int4 native": {"precision": "int4", "kernels": "native"},
}


@pytest.fixture(scope="module")
def folders(make_toy: Callable[..., Toy], tools: Tools, native_kernels: None) -> list[Path]:
    """Small, since an emulated step takes some forty times as long."""
    spec = tools.spec(family="olmoe", layers=2, context=24)
    return [make_toy(spec, exit_layers=(1,), **options).folder for options in ARTIFACTS.values()]


def emulated(processor: str, *arguments: object) -> list[dict[str, Any]]:
    """What emulated.py prints on ``processor``."""
    assert EMULATOR is not None
    done = subprocess.run(
        [EMULATOR, "-cpu", processor, sys.executable, Path(__file__).with_name("emulated.py"), *map(str, arguments)],
        env=os.environ | {"OPENBLAS_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_exact_holds_with_avx2_and_no_vnni(folders: list[Path]) -> None:
    """A way to put rows into passes is found for every artifact, and with it no draft changes the text."""
    found = emulated("Haswell", *folders)
    for artifact, facts in zip(ARTIFACTS, found, strict=True):
        assert facts["passes"] is not None, artifact
        assert facts["other texts"] == [], artifact
    assert found[-1]["kernels"].endswith("(avx2)"), "another processor than was asked for"
    assert found[-1]["passes"] == str(AS_THEY_COME), "native kernels need no padding on any processor"
