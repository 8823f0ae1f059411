"""The table of benchmarks.memory, made of what it found."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from selfspec.bench.markdown import markdown_table


def markdown(data: Mapping[str, Any]) -> str:
    """A row an arm."""
    names = ("arm", "tokens", "drafted", "PSS MB", "÷ plain", "RssAnon MB", "÷ plain", "peak RSS MB")
    artifact, facts, first = data["artifact"], data["machine"], data["rows"][0]
    under = (
        f"{artifact['name']} {artifact['precision']} after {first['prompt_tokens']} + {first['new_tokens']} tokens, "
        f"{facts['threads']} thread(s) of {facts['cpu']}, ONNX Runtime {facts['onnxruntime']}, selfspec "
        f"{facts['selfspec']}, {facts['date']}."
    )
    return f"{markdown_table(names, map(_cells, data['rows']))}\n\n{under}"


def _cells(row: Mapping[str, Any]) -> list[str]:
    def megabytes(name: str) -> str:
        return "-" if row[name] is None else f"{row[name] / 1e6:.0f}"

    def ratio(name: str) -> str:
        return "-" if row[name] is None else f"{row[name]:.3f}"

    return [
        row["arm"], str(row["new_tokens"]), str(row["drafted_tokens"]), megabytes("pss_bytes"), ratio("pss_ratio"),
        megabytes("rss_anon_bytes"), ratio("rss_anon_ratio"), megabytes("peak_rss_bytes"),
    ]  # fmt: skip
