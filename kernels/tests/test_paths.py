"""The instruction set in use: the best, or the one that SELFSPEC_KERNELS_PATH names, and all else works with it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import selfspec_kernels as kernels

try:
    PATHS = kernels.paths()
except kernels.KernelError as error:
    pytest.skip(str(error), allow_module_level=True)

REST = [path for path in PATHS if path != kernels.current_path()]


def python(path: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python with the package as it is here and the variable set, or left out where it is empty."""
    environment = {name: value for name, value in os.environ.items() if name != kernels.PATH_VARIABLE}
    if path:
        environment[kernels.PATH_VARIABLE] = path
    return subprocess.run([sys.executable, "-P", *arguments], env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("path", ["", *PATHS])
def test_the_variable_names_the_path_and_without_it_the_best_is_used(path: str) -> None:
    done = python(path, "-c", "import selfspec_kernels; print(selfspec_kernels.current_path())")
    assert (done.stdout, done.stderr) == (f"{path or PATHS[0]}\n", "")


def test_a_path_that_cannot_run_here_is_refused_and_not_replaced() -> None:
    done = python("sse9", "-c", "import selfspec_kernels; selfspec_kernels.self_test()")
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "selfspec_kernels.KernelError: SELFSPEC_KERNELS_PATH='sse9': No path 'sse9' here; usable are"
    )


@pytest.mark.parametrize("path", REST)
def test_the_operators_pass_their_tests_on_every_other_path(path: str) -> None:
    """Most tests take the path in use, so a run of all of them sees one."""
    files = [str(Path(__file__).with_name(f"test_{name}.py")) for name in ("ops", "sparse_mlp")]
    done = python(path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout[-3000:]
