"""Makes the helper modules of this folder importable, wherever pytest is started."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import selfspec_kernels as kernels

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def _same_path_afterwards() -> Iterator[None]:
    """Tests call `use_path` as they like: the next one has the path that the run began with."""
    try:
        before = kernels.current_path()
    except kernels.KernelError:  # not built: what needs the library skips itself
        yield
        return
    yield
    kernels.use_path(before)
