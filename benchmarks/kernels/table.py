"""The table of benchmarks.kernels.beside_ort, made of what it found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfspec.bench.markdown import markdown_table

ROWS = (1, 2, 4, 8, 16)
PREFILL = 512


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: ort's time over native's, a line a model, and what opening costs."""
    head = [
        "",
        *(f"M={rows}" for rows in ROWS),
        f"prompt of {PREFILL}",
        "open s",
        "anonymous MB: graphs",
        "and tokenizer",
        "answering",
    ]
    rows = []
    for found in results:
        cells = [_ratio(each) for each in [*found["passes"], found["prefill"]]]
        opened = [found["native_open"], found["ort_open"]]
        cells.append(" / ".join(f"{each['seconds']:.2f}" for each in opened))
        for key in ("graphs_anonymous_bytes", "anonymous_bytes", "answer_anonymous_bytes"):
            cells.append(" / ".join(f"{each[key] / 1e6:.1f}" for each in opened))
        rows.append([f"{found['model']} {found['precision']}", *cells])
    return markdown_table(head, rows)


def _ratio(each: Mapping[str, float]) -> str:
    interval = f" [{each['low']:.2f}, {each['high']:.2f}]" if "low" in each else ""
    return f"{each['ort_ms'] / each['native_ms']:.2f}×{interval} ({each['native_ms']:.2f} / {each['ort_ms']:.2f} ms)"
