"""Where memory runs out a call is refused in a sentence, and the next one is right; and how much a call may ask for.

Each scene runs in a process of its own, whose malloc refuses requests of one size. Needs glibc and a C++ compiler.
"""

import ctypes
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import selfspec_kernels as kernels
from attention_node import Cache, Heads, bits, rows, run, session
from selfspec_kernels import tiles

HERE = Path(__file__).parent
COMPILER = shutil.which(os.environ.get("CXX", "c++"))
pytestmark = pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc" or COMPILER is None, reason="needs glibc and a C++ compiler"
)


@pytest.fixture(scope="module")
def scarce(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("scarce") / "libscarce.so"
    source = HERE / "scarce_malloc.cpp"
    subprocess.run([COMPILER, "-std=c++17", "-O2", "-fPIC", "-shared", source, "-o", library], check=True)
    return library


def play(scene: str, scarce: Path) -> None:
    path = os.pathsep.join(filter(None, [str(HERE), os.environ.get("PYTHONPATH")]))
    done = subprocess.run(
        [sys.executable, "-P", "-c", f"import test_scarce_memory as scenes; scenes.{scene}()"],
        env=os.environ | {"LD_PRELOAD": str(scarce), "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=120,  # a pool that waits for a thread which threw waits for ever
    )
    assert done.returncode == 0, done.stderr


def refuse(size: int, spare: int = 0) -> None:
    ctypes.CDLL(None).scarce_refuse(ctypes.c_size_t(size), spare)


def refused() -> int:
    return int(ctypes.CDLL(None).scarce_refused())


def largest() -> int:
    found = ctypes.CDLL(None).scarce_largest
    found.restype = ctypes.c_size_t
    return int(found())


def test_a_task_without_memory_fails_its_call_only(scarce: Path) -> None:
    """Thrown through ONNX Runtime's threads, it would end the process, and the conversations in it."""
    play("scene_of_a_task", scarce)


def scene_of_a_task() -> None:
    heads = Heads(4, 2, 72)
    qkv, op = rows(heads, 512), session(heads, 2)
    want = run(session(heads, 1), heads, qkv[:, :8], Cache.of(heads, 512), 0)
    refuse(72 * 64 * 4)  # where a thread transposes keys; the pool's other thread has asked for none yet
    errors = []
    for _ in range(20):
        try:
            run(op, heads, qkv, Cache.of(heads, 512), 0)
        except Exception as error:
            errors.append(str(error))
    assert errors
    assert all("selfspec's kernels are out of memory" in error for error in errors), errors
    assert refused() >= len(errors)
    refuse(0)
    got = run(op, heads, qkv, Cache.of(heads, 512), 0)
    np.testing.assert_array_equal(bits(got[:, :8]), bits(want))


def test_what_was_had_of_working_memory_is_not_taken_for_all_of_it(scarce: Path) -> None:
    """Memory for the scales but none for the sums: the next call would write where nothing is."""
    play("scene_of_a_product", scarce)


def scene_of_a_product() -> None:
    rng = np.random.default_rng(0)
    blocks = 331
    w = tiles.pack(rng.integers(0, 16, (8, 32 * blocks), dtype=np.uint8), np.ones((8, blocks)), None, 4)
    x = rng.standard_normal((7, 32 * blocks)).astype(np.float32)
    refuse(7 * blocks * 4, spare=1)
    with pytest.raises(kernels.KernelError, match="Out of memory"):
        kernels.matmul(x, w, 4)
    assert refused() == 1
    refuse(0)
    alone = np.concatenate([kernels.matmul(row[None], w, 4) for row in x])
    np.testing.assert_array_equal(bits(kernels.matmul(x, w, 4)), bits(alone))


def test_working_memory_of_attention_does_not_grow_with_the_context(scarce: Path) -> None:
    """It is kept by the thread for ever: sums of every chunk of 8,192 positions would be 10 MB of it."""
    play("scene_of_a_long_context", scarce)


def scene_of_a_long_context() -> None:
    heads, position = Heads(64, 64, 8, rotary=False), 8191 - 64
    op, qkv, memory = session(heads, 2), rows(heads, 64), Cache.of(heads, 8192, fill=0)
    refuse(0)
    run(op, heads, qkv, memory, position)
    assert 2**20 < largest() < 5 * 2**20, largest()
