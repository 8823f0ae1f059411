"""What ``make bench`` is made of, as far as nothing is measured."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from benchmarks import suite
from benchmarks.kernels.operators import by_operator
from selfspec.errors import SelfSpecError
from selfspec.runtime.drafters.registry import names


def test_an_unknown_step_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--steps", "bench,qualty"]) == 2
    assert "qualty" in capsys.readouterr().err


def test_missing_prompts_are_noticed_before_anything_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert suite.main(["--prompts", "/nowhere/at/all.jsonl"]) == 2
    assert "/nowhere/at/all.jsonl cannot be read" in capsys.readouterr().err


def test_cases_name_drafters_that_there_are() -> None:
    for case in suite.CASES:
        assert set(case.drafts.split(",")) <= set(names())


def test_without_native_kernels_there_is_nothing_beside(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the steps behind it go on."""
    bare = SimpleNamespace(manifest=SimpleNamespace(kernels=None))
    monkeypatch.setattr(suite, "exported", lambda *_, **__: Path("somewhere"))
    monkeypatch.setattr(suite, "open_artifact", lambda _: bare)
    suite.beside(argparse.Namespace(threads=None))
    assert "native kernels are not installed here" in capsys.readouterr().err


def test_the_carved_model_is_kept_and_the_wide_ones_are_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And every artifact is measured that the log shows."""
    ran: list[list[str]] = []
    monkeypatch.setattr(suite, "ARTIFACTS", tmp_path)
    monkeypatch.setattr(suite, "python", lambda arguments, what: ran.append([Path(a).name for a in arguments]))
    monkeypatch.setattr(suite, "run_child", lambda *_: {})
    (tmp_path / "carved").mkdir()
    suite.experts(argparse.Namespace(threads=2))
    modules = ["benchmarks.synthetic.checkpoints"] * 2 + ["benchmarks.experts"] * 4
    assert [line[:2] for line in ran] == [["-m", module] for module in modules]
    assert [line[2] for line in ran[2:]] == ["carved-int4", "carved-fp32", "wide-moe-int4", "wide-moe-int4-ort"]
    assert ran[4][3:5] == ["--dense", "wide-dense-int4"]
    assert all(line[-2:] == ["--threads", "2"] for line in ran[2:])


def test_what_a_step_says_comes_back_and_its_failure_is_told() -> None:
    assert suite.python(["-c", "print('found')"], "a step") == "found\n"
    with pytest.raises(SelfSpecError, match="a step failed with exit code 3"):
        suite.python(["-c", "raise SystemExit(3)"], "a step")


def test_changes_are_counted_against_the_results_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(suite, "RESULTS", tmp_path)
    row = {"category": "qa", "draft": "auto", "speed_up": 1.5}
    (tmp_path / "bench-m.json").write_text(json.dumps({"rows": [row, row | {"draft": "plain", "speed_up": None}]}))
    now = suite.speed_ups()
    assert now == {("m", "qa", "auto"): 1.5}
    suite.report_changes({("m", "qa", "auto"): 1.25, ("gone", "qa", "auto"): 1.0}, now)
    assert "1 speed-ups" in (told := capsys.readouterr().err)
    assert "1 moved by more than 5%" in told
    assert "1.25 to 1.50 (+20.0%)" in told


def test_operators_are_summed_by_type() -> None:
    event = {"cat": "Node", "name": "x_kernel_time", "dur": 5, "args": {"op_name": "MatMul"}}
    spent, calls = by_operator([event, event, event | {"name": "x_fence_before"}, {"cat": "Session", "name": "run"}])
    assert (dict(spent), dict(calls)) == ({"MatMul": 10}, {"MatMul": 2})
