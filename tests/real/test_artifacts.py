"""Artifacts of the demo and the losslessness check: made once, used again, replaced when they are not usable."""

from __future__ import annotations

from pathlib import Path

import pytest

from selfspec.check.artifacts import ensure_artifact
from selfspec.errors import ArtifactError
from selfspec.runtime.artifact import open_artifact

pytestmark = [pytest.mark.real, pytest.mark.slow]


def test_what_is_not_usable_is_exported_again_and_then_used(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2-135m-int4"
    folder.mkdir()
    (folder / "manifest.json").write_text("{}")
    said: list[str] = []
    assert ensure_artifact(tmp_path, "int4", said.append) == folder
    assert open_artifact(folder).manifest.precision == "int4"
    assert "exported again" in said[0]
    assert "exported in" in said[1]
    made = (folder / "manifest.json").stat().st_mtime_ns
    ensure_artifact(tmp_path, "int4", said.append)
    assert "used as it is" in said[2]
    assert (folder / "manifest.json").stat().st_mtime_ns == made


def test_a_folder_that_is_no_artifact_is_left_alone(tmp_path: Path) -> None:
    folder = tmp_path / "smollm2-135m-int4"
    folder.mkdir()
    (folder / "diary.txt").write_text("mine")
    with pytest.raises(ArtifactError, match="is no artifact"):
        ensure_artifact(tmp_path, "int4", lambda line: None)
    assert (folder / "diary.txt").read_text() == "mine"
