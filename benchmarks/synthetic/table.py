"""The table of benchmarks.synthetic, made of what it found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfspec.bench.markdown import markdown_table

PROMPT_TOKENS = 128
_SHOWN_ROWS = ("2", "4", "8", "16")


def markdown(data: Mapping[str, Any]) -> str:
    """A row a model."""
    sparse = any(row.get("fewer_costs") for row in data["rows"])
    names = (
        "model", "parameters", "checkpoint GB", "artifact GB", "export s", "export peak RSS GB",
        "open s, first / again", "step ms", *(f"V({rows})" for rows in _SHOWN_ROWS), "c by exit layer",
        *(["c by experts"] if sparse else []),
        f"pp{PROMPT_TOKENS} tok/s", "PSS MB", "RssAnon MB",
    )  # fmt: skip
    facts = data["machine"]
    under = (
        f"{data['precision']}, random weights, {facts['threads']} thread(s) of {facts['cpu']}, ONNX Runtime "
        f"{facts['onnxruntime']}, selfspec {facts['selfspec']}, {facts['date']}; {data['seconds']:.0f} s in all."
    )
    return f"{markdown_table(names, (_cells(row, sparse=sparse) for row in data['rows']))}\n\n{under}"


def _cells(row: Mapping[str, Any], *, sparse: bool) -> list[str]:
    whole, active = row["parameters"], row.get("active_parameters", row["parameters"])
    return [
        row["model"],
        f"{whole / 1e9:.2f} G" + ("" if active == whole else f", {active / 1e9:.2f} active"),
        f"{row['checkpoint_bytes'] / 1e9:.2f}",
        f"{row['artifact_bytes'] / 1e9:.2f}",
        f"{row['export_seconds']:.0f}",
        f"{row['export_peak_rss_bytes'] / 1e9:.2f}",
        f"{row['first_open_seconds']:.1f} / {row['open_seconds']:.1f}",
        f"{1000 * row['step_seconds']:.1f}",
        *(f"{row['verify_costs'][rows]:.2f}" if rows in row["verify_costs"] else "-" for rows in _SHOWN_ROWS),
        *(_costs(row.get(key, {})) for key in (["draft_costs", "fewer_costs"] if sparse else ["draft_costs"])),
        f"{row['prefill_tokens_per_second']:.0f}",
        *("-" if row[key] is None else f"{row[key] / 1e6:.0f}" for key in ("pss_bytes", "rss_anon_bytes")),
    ]


def _costs(costs: Mapping[str, float]) -> str:
    return ", ".join(f"{key}: {cost:.2f}" for key, cost in costs.items())
