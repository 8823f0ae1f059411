"""The picture of benchmarks.memory: a bar an arm, what is the process's own and what lies in files, in MB."""

from __future__ import annotations

import io
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfspec.errors import SelfSpecError

_PARTS = (("anonymous (RssAnon)", "0.45", "white"), ("file-backed (PSS - RssAnon)", "0.85", "black"))  # fill, text
_LEAST_SHARE = 0.04  # of the highest bar, below which a part has no room for its number


def write_plot(data: Mapping[str, Any], path: Path) -> None:
    """Draw what :func:`memory.measure` found into ``path``, whole or not at all.

    Raises:
        SelfSpecError: the system did not say what there is to draw.
    """
    image = io.BytesIO()
    figure_of(data).savefig(image, format=path.suffix[1:].lower(), dpi=150)
    path.write_bytes(image.getvalue())


def figure_of(data: Mapping[str, Any]) -> Any:
    """A matplotlib Figure."""
    from matplotlib.figure import Figure

    rows = data["rows"]
    if any(row["pss_bytes"] is None or row["rss_anon_bytes"] is None for row in rows):
        raise SelfSpecError("this system does not say what PSS and RssAnon are (Linux does), so nothing is drawn.")
    anonymous = [row["rss_anon_bytes"] / 1e6 for row in rows]
    in_files = [max(0.0, (row["pss_bytes"] - row["rss_anon_bytes"]) / 1e6) for row in rows]
    totals = [own + shared for own, shared in zip(anonymous, in_files, strict=True)]
    figure = Figure(figsize=(1.6 * len(rows) + 1.5, 5), layout="constrained")
    axes, below = figure.add_subplot(), [0.0] * len(rows)
    for heights, (label, grey, ink) in zip((anonymous, in_files), _PARTS, strict=True):
        axes.bar(range(len(rows)), heights, 0.65, bottom=below, label=label, color=grey, edgecolor="black")
        for place, (height, bottom) in enumerate(zip(heights, below, strict=True)):
            if height > _LEAST_SHARE * max(totals):
                axes.text(place, bottom + height / 2, f"{height:.0f}", ha="center", va="center", color=ink)
        below = [bottom + height for bottom, height in zip(below, heights, strict=True)]
    for place, (row, total) in enumerate(zip(rows, totals, strict=True)):
        axes.text(place, total, f"{total:.0f} MB\n{row['pss_ratio']:.2f}×", ha="center", va="bottom")
    axes.set_xticks(range(len(rows)), [textwrap.fill(row["arm"], 14) for row in rows])
    axes.set_ylim(0, 1.35 * max(totals))  # room for the legend above the bars
    axes.set_ylabel("PSS, MB")
    artifact, tokens = data["artifact"], rows[0]["prompt_tokens"] + rows[0]["new_tokens"]
    axes.set_title(f"Memory after {tokens} tokens: {artifact['name']} {artifact['precision']}")
    axes.legend(frameon=False, loc="upper left")
    return figure
