"""The NEON path, cross-compiled and run under an emulator: the same bits as this machine's paths.

Needs aarch64-linux-gnu-g++ and qemu-aarch64 (Debian: g++-aarch64-linux-gnu, qemu-user); skipped without them.
"""

import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import selfspec_kernels as kernels
from selfspec_kernels import tiles

SOURCES = Path(__file__).parents[1] / "src"
COMMON = ("attention", "attention_scalar", "dispatch", "matmul", "matmul_scalar", "self_test")
NEON = ("attention_neon", "matmul_neon")
FLAGS = [
    "-std=c++17",
    "-O3",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-DSELFSPEC_ARM64",
    "-c",
]  # as CMakeLists.txt

COMPILER, EMULATOR = shutil.which("aarch64-linux-gnu-g++"), shutil.which("qemu-aarch64")
pytestmark = pytest.mark.skipif(
    platform.machine() in ("aarch64", "arm64") or not (COMPILER and EMULATOR),
    reason="aarch64-linux-gnu-g++ or qemu-aarch64 is missing, or this is an ARM machine, which runs the path itself",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("aarch64")
    units = [(SOURCES / f"{name}.cpp", []) for name in COMMON]
    units += [(SOURCES / f"{name}.cpp", ["-march=armv8.2-a+dotprod"]) for name in NEON]
    units += [(Path(__file__).with_name("run_product.cpp"), [])]
    objects = []
    for source, flags in units:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([COMPILER, *FLAGS, *flags, source, "-o", objects[-1]], check=True)
    subprocess.run([COMPILER, "-static", *objects, "-o", folder / "run_product"], check=True)
    return folder / "run_product"


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 4, 11])
def test_neon_has_the_bits_of_this_machine(program: Path, bits: int, m: int) -> None:
    """sdot is signed: whole bytes are shifted and given back. A forgotten half of that shows in every number."""
    n, k = 40, 192
    rng = np.random.default_rng(m)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    w = tiles.pack(codes, rng.standard_normal((n, k // 32)), rng.standard_normal((n, k // 32)), bits)
    x = rng.standard_normal((m, k)).astype(np.float32)
    command = [EMULATOR, "-cpu", "max", program, "neon", str(bits), str(m), str(k), str(n)]
    done = subprocess.run(command, input=x.tobytes() + w.tobytes(), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    np.testing.assert_array_equal(np.frombuffer(done.stdout, np.float32).reshape(m, n), kernels.matmul(x, w, bits))


def test_neon_is_refused_without_the_dot_product(program: Path) -> None:
    """A Cortex-A72 has none: dispatch must see it rather than die of an illegal instruction."""
    command = [EMULATOR, "-cpu", "cortex-a72", program, "neon", "4", "1", "32", "8"]
    done = subprocess.run(command, input=b"", capture_output=True)
    assert (done.returncode, b"not usable" in done.stderr) == (1, True)
