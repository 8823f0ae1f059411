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
from sparse_node import Experts, gated, matrices, rows, run, session

SOURCES = Path(__file__).parents[1] / "src"
COMMON = ("attention", "attention_scalar", "dispatch", "matmul", "matmul_scalar", "self_test", "sparse_mlp")
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
    units += [(Path(__file__).with_name("run_operators.cpp"), [])]
    objects = []
    for source, flags in units:
        objects.append(folder / f"{source.stem}.o")
        subprocess.run([COMPILER, *FLAGS, *flags, source, "-o", objects[-1]], check=True)
    subprocess.run([COMPILER, "-static", *objects, "-o", folder / "run_operators"], check=True)
    return folder / "run_operators"


def output(program: Path, operator: str, sizes: tuple[int, ...], *inputs: np.ndarray) -> bytes:
    command = [EMULATOR, "-cpu", "max", program, "neon", operator, *map(str, sizes)]
    done = subprocess.run(command, input=b"".join(array.tobytes() for array in inputs), capture_output=True)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("m", [1, 4, 11])
def test_neon_has_the_bits_of_this_machine(program: Path, bits: int, m: int) -> None:
    """sdot is signed: whole bytes are shifted and given back. A forgotten half of that shows in every number."""
    n, k = 40, 192
    rng = np.random.default_rng(m)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    w = tiles.pack(codes, rng.standard_normal((n, k // 32)), rng.standard_normal((n, k // 32)), bits)
    x = rng.standard_normal((m, k)).astype(np.float32)
    got = np.frombuffer(output(program, "product", (bits, m, k, n), x, w), np.float32)
    np.testing.assert_array_equal(got.reshape(m, n), kernels.matmul(x, w, bits))


@pytest.mark.parametrize(("m", "chosen"), [(1, 3), (6, 1), (11, 3)])
def test_neon_has_the_experts_of_this_machine_and_their_bits(program: Path, m: int, chosen: int) -> None:
    """Router and gate are float32 products of their own; one in another order could choose other experts."""
    experts = Experts(9, chosen, 96, 64)
    x, w, gate = rows(experts, m), matrices(experts), rows(experts, 1, seed=5)[0]
    got = output(program, "sparse_mlp", (m, 96, 64, 9, chosen), x, w.router, w.gate_up, w.down, gate)
    y, shared, selected = np.split(np.frombuffer(got, np.int32), [m * 96, 2 * m * 96])
    want, want_selected = run(session(experts, w), x, chosen)
    np.testing.assert_array_equal(selected, want_selected.ravel())
    np.testing.assert_array_equal(y, want.view(np.int32).ravel())
    [want_shared] = gated(experts, *w.expert(experts, 0), gate).run(None, {"x": x})
    np.testing.assert_array_equal(shared, want_shared.view(np.int32).ravel())


def test_neon_is_refused_without_the_dot_product(program: Path) -> None:
    """A Cortex-A72 has none: dispatch must see it rather than die of an illegal instruction."""
    command = [EMULATOR, "-cpu", "cortex-a72", program, "neon", "product", "4", "1", "32", "8"]
    done = subprocess.run(command, input=b"", capture_output=True)
    assert (done.returncode, b"not usable" in done.stderr) == (1, True)
