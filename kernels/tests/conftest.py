"""Makes the helper modules of this folder importable, wherever pytest is started."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import selfspec_kernels as kernels

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def every_path() -> Iterator[tuple[str, ...]]:
    """The usable paths, for tests that call `use_path`; afterwards the best one is in use again."""
    yield kernels.paths()
    kernels.use_path(kernels.paths()[0])
