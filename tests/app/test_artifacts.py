"""Where artifacts of models that are folders are kept, and that no older one is taken for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from selfspec.check.artifacts import artifact_name, ensure_artifact
from selfspec.runtime.artifact import open_artifact


def test_a_folder_is_called_by_its_name_wherever_it_lies(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "carved").mkdir()
    monkeypatch.chdir(tmp_path / "carved")
    assert artifact_name(".", "int4") == "carved-int4"
    assert artifact_name(str(tmp_path / "carved"), "fp32", "ort") == "carved-fp32-ort"
    assert artifact_name("smollm2-135m", "int8") == "smollm2-135m-int8"


def test_a_folder_is_exported_every_time(tmp_path: Path, tools: Any) -> None:
    """Another model may lie there by now, or one of the same name elsewhere."""
    digests, said = [], list[str]()
    for seed in (1, 2):
        source = tools.write(tmp_path / str(seed) / "toy", tools.spec(seed=seed))
        digests.append(open_artifact(ensure_artifact(tmp_path, "fp32", said.append, str(source))).digest)
    assert digests[0] != digests[1]
    assert any("may have changed" in line for line in said)
