"""The forms of a report, letter by letter."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace

import pytest

from selfspec.bench.calm import Turns
from selfspec.bench.machine import Machine
from selfspec.bench.prediction import Fit, PredictedRow, Prediction, Speeds
from selfspec.bench.report import ArtifactFacts, Costs, Report
from selfspec.bench.rows import Row, Sample
from selfspec.bench.table import WRITERS, as_csv, as_json, as_jsonl, markdown

REPORT = Report(
    selfspec="9.9",
    date="2026-01-02",
    exact=False,
    artifact=ArtifactFacts("toy", "int4", "its own", "abc", 5_000_000, 4_000_000, "everything"),
    machine=Machine("Fast", ("avx2", "fma"), 2, 4, 2, 3.21e10, "by hand", "1.2", "2.3", "each run", 1.5),
    costs=Costs({1: 1.0, 2: 1.25}, {"early-exit:layer=3": 0.5}, "early-exit:layer=3"),
    rows=(
        Row("pp16", "plain", None, None, 2, 32, 100.126, 1.5, 100.0, peak_rss_bytes=87_600_000),
        Row("tg8", "plain", None, None, 1, 8, 50.0, None, 50.0, 0.625, peak_rss_bytes=1_000_000, pss_bytes=500_000),
        Row("prompts", "plain", "qa", 3, 2, 60, 10.0, 0.5, 10.0, tokens_per_round=1.0, draft_share=0.0, ttft_ms=12.34),
        Row(
            "prompts", "auto", "qa", 3, 2, 60, 20.0, 0.25, 20.5, None, 2.0, 1.9, 2.125, 0.75,
            (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), 3.5, 0.125, 9.0, 2, 2_000_000, 1_000_000,
        ),
        Row("prompts", "none", "all", 1, 2, 60, 20.0, 0.25, 20.5, speed_up=1.0, same_text=1),
    ),
    turns=Turns(30, 12, 1),
    samples=(Sample(0, "qa", "auto", 20, (0.05, 0.0625)),),
)  # fmt: skip

MARKDOWN = """\
| test | tok/s | median | of bandwidth | peak RSS MB | PSS MB |
| --- | --- | --- | --- | --- | --- |
| pp16 | 100.13 ± 1.50 | 100.00 | - | 88 | - |
| tg8 | 50.00 ± - | 50.00 | 0.62 | 1 | 0 |

| category | draft | prompts | tok/s | median | speed-up [95 %] | accepted | by position | tokens/round | draft share \
| TTFT ms | same text | peak RSS MB | PSS MB |
| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |
| qa | plain | 3 | 10.00 ± 0.50 | 10.00 | - | - | - | 1.00 | 0.00 | 12.3 | - | 0 | - |
| qa | auto | 3 | 20.00 ± 0.25 | 20.50 | 2.00 [1.90, 2.12] | 0.75 | 0.90 0.80 0.70 0.60 0.50 ... | 3.50 | 0.12 | 9.0 \
| 2 of 3 | 2 | 1 |
| all | none | 1 | 20.00 ± 0.25 | 20.50 | 1.00 | - | - | - | - | - | 1 of 1 | 0 | - |

- artifact: toy int4, its own kernels, sha256 abc
- CPU: Fast, 2 core(s), 4 CPU(s), a quota of 1.5 CPU(s), 2 thread(s) used
- ISA: avx2 fma
- read bandwidth: 32.1 GB/s (by hand)
- bytes of a step: 4 of 5 MB; everything
- turns: 12 used of 30 run, those beside the quickest plain steps; 1 of the used disturbed all the \
same, by a step more than 10% slower
- peak RSS: of each run; all drafts share one process
- selfspec 9.9, ONNX Runtime 1.2, NumPy 2.3; 2026-01-02
- V(m): 1: 1.00, 2: 1.25
- c by path: early-exit:layer=3: 0.50; early-exit drafts along early-exit:layer=3
"""
FIELDS = (
    "test,draft,category,prompts,repeats,tokens,mean,sd,median,roofline,speed_up,speed_up_low,speed_up_high,"
    "acceptance_rate,acceptance_by_position,tokens_per_round,draft_share,ttft_ms,same_text,peak_rss_bytes,pss_bytes,"
    "artifact_name,artifact_precision,artifact_kernels,artifact_digest,artifact_weights_bytes,artifact_step_bytes,"
    "artifact_step_bytes_counted,artifact_selfspec,artifact_date,artifact_exact,machine_cpu,machine_isa,machine_cores,machine_cpus,"
    "machine_threads,machine_bandwidth,machine_bandwidth_method,machine_onnxruntime,machine_numpy,machine_peak_rss_of,machine_cpu_quota,"
    "costs_verify,costs_draft,costs_best_exit,turns_run,turns_used,turns_disturbed"
)
FACTS = "toy,int4,its own,abc,5000000,4000000,everything,9.9,2026-01-02,False,"
FACTS += "Fast,avx2 fma,2,4,2,32100000000.0,by hand,1.2,2.3,each run,1.5"


def test_markdown() -> None:
    assert markdown(REPORT) == MARKDOWN


def test_markdown_leaves_out_what_was_not_measured() -> None:
    found = markdown(replace(REPORT, costs=None, rows=REPORT.rows[:1]))
    assert found.splitlines()[3:5] == ["", "- artifact: toy int4, its own kernels, sha256 abc"]
    assert "V(m)" not in found
    assert markdown(replace(REPORT, rows=REPORT.rows[2:])).startswith("| category |")


def test_exact_is_said() -> None:
    """Its times are those of padded passes."""
    assert "\n- exact: every run in padded passes" in markdown(replace(REPORT, exact=True))
    assert json.loads(as_json(replace(REPORT, exact=True)))["exact"] is True


COSTS = "1:1.0 2:1.25,early-exit:layer=3:0.5,early-exit:layer=3,30,12,1"


def test_csv() -> None:
    lines = as_csv(REPORT).splitlines()
    assert lines[0] == FIELDS
    assert lines[1] == f"pp16,plain,,,2,32,100.126,1.5,100.0,{',' * 10}87600000,,{FACTS},{COSTS}"
    assert lines[4] == (
        "prompts,auto,qa,3,2,60,20.0,0.25,20.5,,2.0,1.9,2.125,0.75,0.9 0.8 0.7 0.6 0.5 0.4,3.5,0.125,9.0,2,2000000,"
        f"1000000,{FACTS},{COSTS}"
    )
    assert len(lines) == 1 + len(REPORT.rows)


def test_csv_quotes_what_holds_commas() -> None:
    text = as_csv(replace(REPORT, machine=replace(REPORT.machine, cpu='Fast, "really"'), costs=None))
    rows = list(csv.DictReader(io.StringIO(text)))
    assert rows[0]["machine_cpu"] == 'Fast, "really"'
    assert rows[0]["costs_verify"] == ""


def test_json_is_the_report() -> None:
    text = as_json(REPORT)
    data = json.loads(text)
    assert text.startswith(
        '{\n  "selfspec": "9.9",\n  "date": "2026-01-02",\n  "exact": false,\n  "artifact": {\n    "name": "toy",\n'
    )
    assert text.endswith("}\n")
    assert list(data) == [
        "selfspec",
        "date",
        "exact",
        "artifact",
        "machine",
        "costs",
        "rows",
        "turns",
        "prediction",
        "samples",
    ]
    assert data["prediction"] is None
    assert data["samples"] == [
        {
            "prompt": 0,
            "category": "qa",
            "draft": "auto",
            "tokens": 20,
            "seconds_per_token": [0.05, 0.0625],
            "unused_seconds_per_token": [],
        }
    ]
    assert data["costs"] == {
        "verify": {"1": 1.0, "2": 1.25},
        "draft": {"early-exit:layer=3": 0.5},
        "best_exit": "early-exit:layer=3",
    }
    assert data["rows"][3]["acceptance_by_position"] == [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]


MORE = Prediction(
    Speeds(2e10, 1e11), Speeds(3.21e10, 4e11), Fit(1.25, 1.5, 0.0005),
    (PredictedRow("tg8 tok/s", 30.126, 55.0, 50.0), PredictedRow("V(2)", 1.5, 1.2, 1.25)),
)  # fmt: skip


def test_predictions_are_a_section_of_their_own() -> None:
    """Behind everything that was measured, which is as without them."""
    found = markdown(replace(REPORT, prediction=MORE))
    assert found.startswith(MARKDOWN)
    assert (
        found[len(MARKDOWN) :]
        == """
## Predicted, not measured: 20 GB/s, 100 GOPS

|  | predicted there | predicted here | measured here | error % |
| --- | --- | --- | --- | --- |
| tg8 tok/s | 30.13 | 55.00 | 50.00 | +10 |
| V(2) | 1.50 | 1.20 | 1.25 | -4 |

- this machine: 32.1 GB/s, 400 GOPS; two operations a multiply-add of a matrix, as a prompt's pass reaches them here
- a pass takes reading * bytes / bandwidth + computing * rows * operations / rate + overhead
- fitted to this machine's profile: reading 1.25, computing 1.50, overhead 0.50 ms; carried over as they are
- drafts: the rounds that were drafted here, with what was accepted here, at the predicted costs of passes
- error: of the prediction for this machine; V(m), c and plain by the profile are what was fitted
"""
    )


def test_a_bandwidth_that_was_measured_too_low_is_told() -> None:
    """Else a busy moment of this machine would make any other one look fast."""
    slow = replace(MORE, fit=replace(MORE.fit, reading=0.5))
    assert "- reading below 1: this machine was slower when" in markdown(replace(REPORT, prediction=slow))


def test_predictions_are_an_object_of_json() -> None:
    data = json.loads(as_json(replace(REPORT, prediction=MORE)))
    assert data["rows"] == json.loads(as_json(REPORT))["rows"]
    assert data["prediction"]["there_bandwidth"] == 2e10
    assert data["prediction"]["fit_overhead"] == 0.0005
    assert data["prediction"]["rows"][0] == {
        "test": "predicted tg8 tok/s", "predicted_there": 30.126, "predicted_here": 55.0, "measured_here": 50.0,
        "predicted_error": pytest.approx(0.1),
    }  # fmt: skip


@pytest.mark.parametrize("form", ["csv", "jsonl"])
def test_predicted_lines_have_columns_of_their_own(form: str) -> None:
    """None of them stands where a measured number does."""
    text = WRITERS[form](replace(REPORT, prediction=MORE))
    rows = list(csv.DictReader(io.StringIO(text))) if form == "csv" else list(map(json.loads, text.splitlines()))
    measured, predicted = rows[: len(REPORT.rows)], rows[len(REPORT.rows) :]
    assert [row["test"] for row in predicted] == ["predicted tg8 tok/s", "predicted V(2)"]
    assert not any(row.get("mean") or row.get("median") or row.get("speed_up") for row in predicted)
    assert not any(row.get("predicted_there") for row in measured)
    assert float(predicted[0]["predicted_there"]) == 30.126
    assert all(("prediction_here_rate" in row if form == "csv" else "prediction" in row) for row in rows)


def test_every_line_of_jsonl_has_all_facts() -> None:
    lines = as_jsonl(REPORT).splitlines()
    assert lines[0] == (
        '{"test": "pp16", "draft": "plain", "category": null, "prompts": null, "repeats": 2, "tokens": 32, '
        '"mean": 100.126, "sd": 1.5, "median": 100.0, "roofline": null, "speed_up": null, "speed_up_low": null, '
        '"speed_up_high": null, "acceptance_rate": null, "acceptance_by_position": [], "tokens_per_round": null, '
        '"draft_share": null, "ttft_ms": null, "same_text": null, "peak_rss_bytes": 87600000, "pss_bytes": null, '
        '"artifact": {"name": "toy", "precision": "int4", "kernels": "its own", "digest": "abc", '
        '"weights_bytes": 5000000, "step_bytes": 4000000, "step_bytes_counted": "everything", '
        '"selfspec": "9.9", "date": "2026-01-02", '
        '"exact": false}, '
        '"machine": {"cpu": "Fast", "isa": ["avx2", "fma"], "cores": 2, "cpus": 4, "threads": 2, '
        '"bandwidth": 32100000000.0, "bandwidth_method": "by hand", "onnxruntime": "1.2", "numpy": "2.3", '
        '"peak_rss_of": "each run", "cpu_quota": 1.5}, '
        '"costs": {"verify": {"1": 1.0, "2": 1.25}, "draft": {"early-exit:layer=3": 0.5}, '
        '"best_exit": "early-exit:layer=3"}, '
        '"turns": {"run": 30, "used": 12, "disturbed": 1}}'
    )
    for line in lines:
        data = json.loads(line)
        assert data["machine"]["bandwidth"] == 3.21e10
        assert data["artifact"]["digest"] == "abc"


@pytest.mark.parametrize("form", sorted(WRITERS))
def test_every_form_ends_its_last_line(form: str) -> None:
    assert WRITERS[form](REPORT).endswith("\n")
    assert not WRITERS[form](REPORT).endswith("\n\n")
