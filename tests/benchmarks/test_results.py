"""Results files: what the numbers depend on, written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.results import machine_facts, write_results


def test_machine_facts_name_the_day_the_version_and_the_processor() -> None:
    facts = machine_facts(threads=1, seconds=0.01)
    assert {"date", "selfspec", "cpu", "isa", "cores", "threads", "bandwidth", "onnxruntime"} <= facts.keys()
    assert facts["threads"] == 1
    json.dumps(facts)


def test_results_make_their_folder_and_replace_an_older_file(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "r.json"
    write_results(path, {"a": 1})
    write_results(path, {"a": "é"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": "é"}
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_lists_of_numbers_stand_on_one_line(tmp_path: Path) -> None:
    """And nothing else changes: not a text that looks like one, nor a list of lists or texts."""
    data = {"repeats": [1, -2.5, 3e-07], "text": "[ 1, 2 ]", "lists": [[1], []], "texts": ["1", "2"]}
    write_results(tmp_path / "r.json", data)
    text = (tmp_path / "r.json").read_text(encoding="utf-8")
    assert '"repeats": [1, -2.5, 3e-07],' in text
    assert json.loads(text) == data


def test_results_that_cannot_be_written_leave_the_older_file(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    write_results(path, {"a": 1})
    with pytest.raises(ValueError, match="JSON"):
        write_results(path, {"a": float("nan")})
    assert json.loads(path.read_text(encoding="utf-8")) == {"a": 1}
