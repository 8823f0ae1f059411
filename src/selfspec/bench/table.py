"""A benchmark's report as text: Markdown, CSV, JSON, or one JSON object a line. Every form has every fact;
JSON has the single repeats too."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, TypeVar

from .calm import SLOWER, Turns
from .machine import Machine
from .markdown import markdown_table
from .prediction import PredictedRow, Prediction
from .report import Report
from .rows import Row

_NONE = "-"
_MB = 1e6
_SHOWN_POSITIONS = 5
_PLAUSIBLE_READING = 0.9
_FAST_READING = (
    "reading below 1: this machine was slower when its bandwidth was measured than when its profile was, or weights "
    "stay in a cache; the prediction is then too fast"
)

R = TypeVar("R")
Columns = tuple[tuple[str, Callable[[R], str]], ...]


def markdown(report: Report) -> str:
    """Tables for people, rounded; then the facts. Acceptance by position is cut after a few; JSON and CSV have all."""
    speed = [row for row in report.rows if row.category is None]
    answers = [row for row in report.rows if row.category is not None]
    parts = [_table(columns, rows) for columns, rows in ((_SPEED, speed), (_ANSWERS, answers)) if rows]
    parts.append(_list(_facts(report)))
    if report.prediction is not None:
        parts += _predicted(report.prediction)
    return "\n\n".join(parts) + "\n"


def as_csv(report: Report) -> str:
    """A line a row, each with all facts. Lists are separated by blanks, and of mappings ``key:value`` is an entry.
    Predictions have columns of their own, which are not there without any."""
    shared = {f"{part}_{key}": value for part, facts in _parts(report).items() for key, value in facts.items()}
    lines = [line | shared for line in _lines(report)]
    out = io.StringIO()
    writer = csv.DictWriter(out, fieldnames=list(dict.fromkeys(chain(*lines))), lineterminator="\n")
    writer.writeheader()
    writer.writerows({key: _cell(value) for key, value in line.items()} for line in lines)
    return out.getvalue()


def as_json(report: Report) -> str:
    """One object: the fields of :class:`Report`."""
    data = asdict(report)
    if report.prediction is not None:
        data["prediction"] = _prediction(report.prediction) | {"rows": _predicted_lines(report.prediction)}
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


def as_jsonl(report: Report) -> str:
    """An object a row, each with all facts; predictions have fields of their own."""
    shared = _parts(report)
    return "".join(json.dumps(line | shared, ensure_ascii=False) + "\n" for line in _lines(report))


WRITERS: dict[str, Callable[[Report], str]] = {
    "md": markdown, "csv": as_csv, "json": as_json, "jsonl": as_jsonl,
}  # fmt: skip


def _parts(report: Report) -> dict[str, dict[str, Any]]:
    costs = dict.fromkeys(("verify", "draft", "best_exit")) if report.costs is None else asdict(report.costs)
    artifact = asdict(report.artifact) | {"selfspec": report.selfspec, "date": report.date, "exact": report.exact}
    parts = {"artifact": artifact, "machine": asdict(report.machine), "costs": costs, "turns": asdict(report.turns)}
    return parts if report.prediction is None else parts | {"prediction": _prediction(report.prediction)}


def _lines(report: Report) -> list[dict[str, Any]]:
    lines = [asdict(row) for row in report.rows]
    return lines if report.prediction is None else lines + _predicted_lines(report.prediction)


def _prediction(found: Prediction) -> dict[str, Any]:
    """All of it but the rows. Rates are a second."""
    facts = {f"{machine}_{key}": value for machine, speeds in (("there", found.there), ("here", found.here))
             for key, value in asdict(speeds).items()}  # fmt: skip
    return facts | {f"fit_{key}": value for key, value in asdict(found.fit).items()}


def _predicted_lines(found: Prediction) -> list[dict[str, Any]]:
    return [
        {
            "test": f"predicted {row.name}",
            "predicted_there": row.there,
            "predicted_here": row.here,
            "measured_here": row.measured,
            "predicted_error": row.error,
        }
        for row in found.rows
    ]


def _predicted(found: Prediction) -> list[str]:
    """The section of predictions: a heading, a table, and what they rest on."""
    there, here, fit = found.there, found.here, found.fit
    fitted = f"reading {fit.reading:.2f}, computing {fit.computing:.2f}, overhead {1000 * fit.overhead:.2f} ms"
    reached = f"{here.bandwidth / 1e9:.1f} GB/s, {here.rate / 1e9:.0f} GOPS"
    lines = [
        f"this machine: {reached}; two operations a multiply-add of a matrix, as a prompt's pass reaches them here",
        "a pass takes reading * bytes / bandwidth + computing * rows * operations / rate + overhead",
        f"fitted to this machine's profile: {fitted}; carried over as they are",
        *([_FAST_READING] if fit.reading < _PLAUSIBLE_READING else []),
        "drafts: the rounds that were drafted here, with what was accepted here, at the predicted costs of passes",
        "error: of the prediction for this machine; V(m), c and plain by the profile are what was fitted",
    ]
    return [
        f"## Predicted, not measured: {there.bandwidth / 1e9:g} GB/s, {there.rate / 1e9:g} GOPS",
        _table(_PREDICTED, found.rows),
        _list(lines),
    ]


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _cell(value: Any) -> Any:
    if isinstance(value, Mapping):
        return " ".join(f"{key}:{item}" for key, item in value.items())
    return " ".join(map(str, value)) if isinstance(value, Sequence) and not isinstance(value, str) else value


def _table(columns: Columns[R], rows: Sequence[R]) -> str:
    return markdown_table([name for name, _ in columns], ([cell(row) for _, cell in columns] for row in rows))


def _facts(report: Report) -> list[str]:
    found, artifact, costs = report.machine, report.artifact, report.costs
    lines = [
        f"artifact: {artifact.name} {artifact.precision}, {artifact.kernels} kernels, sha256 {artifact.digest}",
        f"CPU: {found.cpu}, {found.cores} core(s), {found.cpus} CPU(s){_quota(found)}, {found.threads} thread(s) used",
        f"ISA: {' '.join(found.isa) or 'not known'}",
        f"read bandwidth: {found.bandwidth / 1e9:.1f} GB/s ({found.bandwidth_method})",
        f"bytes of a step: {_megabytes(artifact.step_bytes)} of {_megabytes(artifact.weights_bytes)} MB; "
        + artifact.step_bytes_counted,
        _turns(report.turns),
        f"peak RSS: of {found.peak_rss_of}; all drafts share one process",
        f"selfspec {report.selfspec}, ONNX Runtime {found.onnxruntime}, NumPy {found.numpy}; {report.date}",
    ]
    if report.exact:
        lines.append("exact: every run in padded passes, plain ones too; V(m) and c are those of unpadded passes")
    if costs is not None:
        lines.append("V(m): " + _pairs(costs.verify))
        chosen = "" if costs.best_exit is None else f"; early-exit drafts along {costs.best_exit}"
        lines.append(f"c by path: {_pairs(costs.draft)}{chosen}")
    return lines


def _quota(found: Machine) -> str:
    return "" if found.cpu_quota is None else f", a quota of {found.cpu_quota:g} CPU(s)"


def _turns(found: Turns) -> str:
    told = f"turns: {found.used} used of {found.run} run, those beside the quickest plain steps"
    return f"{told}; {found.disturbed} of the used disturbed all the same, by a step more than {SLOWER - 1:.0%} slower"


def _pairs(costs: Mapping[int, float] | Mapping[str, float]) -> str:
    return ", ".join(f"{key}: {value:.2f}" for key, value in costs.items())


def _number(value: float | None, digits: int = 2) -> str:
    return _NONE if value is None else f"{value:.{digits}f}"


def _speed(row: Row) -> str:
    return f"{row.mean:.2f} ± {_number(row.sd)}"


def _megabytes(value: int | None) -> str:
    return _NONE if value is None else f"{value / _MB:.0f}"


def _speed_up(row: Row) -> str:
    if row.speed_up_low is None or row.speed_up_high is None:
        return _number(row.speed_up)
    return f"{_number(row.speed_up)} [{row.speed_up_low:.2f}, {row.speed_up_high:.2f}]"


def _positions(row: Row) -> str:
    shown = [f"{share:.2f}" for share in row.acceptance_by_position[:_SHOWN_POSITIONS]]
    return " ".join(shown + ["..."] * (len(row.acceptance_by_position) > _SHOWN_POSITIONS)) or _NONE


def _same_text(row: Row) -> str:
    return _NONE if row.same_text is None else f"{row.same_text} of {row.prompts}"


_SPEED: Columns[Row] = (
    ("test", lambda row: row.test),
    ("tok/s", _speed),
    ("median", lambda row: _number(row.median)),
    ("of bandwidth", lambda row: _number(row.roofline)),
    ("peak RSS MB", lambda row: _megabytes(row.peak_rss_bytes)),
    ("PSS MB", lambda row: _megabytes(row.pss_bytes)),
)
_ANSWERS: Columns[Row] = (
    ("category", lambda row: str(row.category)),
    ("draft", lambda row: row.draft),
    ("prompts", lambda row: str(row.prompts)),
    ("tok/s", _speed),
    ("median", lambda row: _number(row.median)),
    ("speed-up [95 %]", _speed_up),
    ("accepted", lambda row: _number(row.acceptance_rate)),
    ("by position", _positions),
    ("tokens/round", lambda row: _number(row.tokens_per_round)),
    ("draft share", lambda row: _number(row.draft_share)),
    ("TTFT ms", lambda row: _number(row.ttft_ms, 1)),
    ("same text", _same_text),
    ("peak RSS MB", lambda row: _megabytes(row.peak_rss_bytes)),
    ("PSS MB", lambda row: _megabytes(row.pss_bytes)),
)
_PREDICTED: Columns[PredictedRow] = (
    ("", lambda row: row.name),
    ("predicted there", lambda row: _number(row.there)),
    ("predicted here", lambda row: _number(row.here)),
    ("measured here", lambda row: _number(row.measured)),
    ("error %", lambda row: f"{100 * row.error:+.0f}"),
)
