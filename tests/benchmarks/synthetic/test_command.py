"""benchmarks.synthetic on its tiny model, whole; and what it refuses before it writes gigabytes."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks.synthetic import command as synthetic
from selfspec.errors import SelfSpecError


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.mark.slow
def test_the_tiny_model_is_measured_and_removed(
    temporary: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "synthetic.json"
    assert synthetic.main(["--models", "tiny", "--threads", "1", "-o", str(output)]) == 0
    data = json.loads(output.read_text())
    (row,) = data["rows"]
    assert (row["model"], row["layers"], data["precision"], data["machine"]["threads"]) == ("tiny", 4, "int4", 1)
    assert row["verify_costs"]["1"] == 1.0
    assert list(row["draft_costs"]) == ["2", "3", "4"]
    assert row["artifact_bytes"] > 0
    assert all(row[key] > 0 for key in ("export_seconds", "first_open_seconds", "open_seconds", "step_seconds"))
    told = capfd.readouterr()
    assert told.out.startswith("| model |")
    assert "| tiny |" in told.out
    for word in ("accept", "agree"):  # of random weights that means nothing
        assert word not in told.out + output.read_text()
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("error", [SelfSpecError("no"), KeyboardInterrupt()])
def test_nothing_is_left_where_a_step_fails_or_is_interrupted(
    error: BaseException, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str] = []

    def fail(*arguments: str, **options: Any) -> None:
        seen.extend(path.name for path in temporary.glob("*/*"))
        raise error

    monkeypatch.setattr(synthetic, "run_child", fail)
    assert synthetic.main(["--models", "tiny", "-o", os.devnull]) != 0
    assert seen == ["tiny"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--models", "tiny,llama"], "unknown model 'llama'"),
        (["--precision", "int3"], "unknown precision 'int3'"),
        (["--threads", "0"], "--threads 0: it must be 1 or more"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    arguments: list[str], words: str, temporary: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert synthetic.main(arguments) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1
    assert list(temporary.iterdir()) == []


def test_a_disk_without_room_is_told_before_anything_is_written(
    temporary: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    usage = shutil.disk_usage(temporary)._replace(free=4 * 10**9)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert synthetic.main(["--models", "qwen3-1.7b"]) == 1
    assert f"{temporary} has 4.0 GB free and 5.4 GB are needed" in capsys.readouterr().err
    assert list(temporary.iterdir()) == []
