"""Native beside ort, as far as nothing is timed: what may be compared, and what opening says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from benchmarks.kernels.beside_ort import check
from selfspec.errors import UsageError

NATIVE = SimpleNamespace(name="selfspec-kernels")


def model(name: str = "m", precision: str = "int4", kernels: Any = None, source: str = "Q4_1") -> Any:
    quantization = SimpleNamespace(source=source)
    manifest = SimpleNamespace(name=name, precision=precision, kernels=kernels, quantization=quantization)
    return SimpleNamespace(artifact=SimpleNamespace(manifest=manifest))


def test_the_same_model_in_both_kinds_may_be_compared() -> None:
    check({"native": model(kernels=NATIVE), "ort": model()})


@pytest.mark.parametrize(
    ("native", "ort"),
    [
        (model(), model()),
        (model(kernels=NATIVE), model(kernels=NATIVE)),
        (model(kernels=NATIVE), model(name="other")),
        (model(kernels=NATIVE), model(precision="int8")),
        (model(kernels=NATIVE), model(source="F32")),
    ],
)
def test_anything_else_is_refused_in_a_sentence(native: Any, ort: Any) -> None:
    """Would catch a table in which another model is faster."""
    with pytest.raises(UsageError, match=r"NATIVE is .* and ORT is .*--kernels"):
        check({"native": native, "ort": ort})
