"""A benchmark's report as a picture, readable in grey: speed-ups with their intervals, V(m), acceptance by position."""

from __future__ import annotations

import importlib.util
import io
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..errors import SelfSpecError, UsageError
from .report import Report
from .rows import PLAIN, Row

SUFFIXES = (".png", ".svg", ".pdf")
_FILLS = (("0.55", ""), ("0.8", ""), ("1.0", "///"), ("1.0", "..."))  # grey, hatch
_LINES = (("-", "o"), ("--", "s"), (":", "^"), ("-.", "D"))
_BARS = 0.8  # of the room between two categories


def check_plot(path: Path) -> None:
    """That a picture can be made and written there, before anything is measured.

    Raises:
        UsageError: another format, no such folder, or matplotlib is not installed.
    """
    if path.suffix.lower() not in SUFFIXES:
        raise UsageError(f"--plot {path}: its name must end in {', '.join(SUFFIXES)}.")
    if path.is_dir():
        raise UsageError(f"--plot {path}: this is a folder; name a file.")
    if not path.parent.is_dir():
        raise UsageError(f"--plot {path}: there is no folder {path.parent}; make it first.")
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("--plot needs matplotlib, which is not installed; pip install 'selfspec[plot]'.")


def write_plot(report: Report, path: Path) -> None:
    """Draw ``report`` into the file ``path``, whole or not at all.

    Raises:
        SelfSpecError: it cannot be written by now, though :func:`check_plot` found nothing against it.
    """
    data = io.BytesIO()
    figure_of(report).savefig(data, format=path.suffix[1:].lower(), dpi=150)
    try:
        with tempfile.TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
            work = Path(folder) / path.name
            work.write_bytes(data.getvalue())
            work.replace(path)
    except OSError as error:
        raise SelfSpecError(f"--plot {path} cannot be written by now ({error}); the table is printed whole.") from error


def figure_of(report: Report) -> Any:
    """A matplotlib Figure of three panels; those without data say so."""
    from matplotlib.figure import Figure

    rows = [row for row in report.rows if row.category is not None and row.draft != PLAIN]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    grid = figure.add_gridspec(2, 2)
    _speed_ups(figure.add_subplot(grid[0, :]), rows)
    _verify_costs(figure.add_subplot(grid[1, 0]), report)
    _acceptance(figure.add_subplot(grid[1, 1]), rows)
    artifact, machine = report.artifact, report.machine
    what = f"{artifact.name} {artifact.precision}, {artifact.kernels} kernels"
    figure.suptitle(f"{what}, on {machine.cpu}, {machine.threads} thread(s)")
    return figure


def _speed_ups(axes: Any, rows: Sequence[Row]) -> None:
    categories = list(dict.fromkeys(str(row.category) for row in rows))
    drafts = list(dict.fromkeys(row.draft for row in rows))
    width = _BARS / max(1, len(drafts))
    for index, draft in enumerate(drafts):
        own = [row for row in rows if row.draft == draft and row.speed_up is not None]
        grey, hatch = _FILLS[index % len(_FILLS)]
        places = [categories.index(str(row.category)) + (index + 0.5) * width - _BARS / 2 for row in own]
        heights = [row.speed_up for row in own]
        axes.bar(places, heights, width, label=draft, color=grey, hatch=hatch, edgecolor="black", linewidth=0.8)
        for place, row in zip(places, own, strict=True):
            if row.speed_up_low is not None:
                axes.plot(
                    [place, place], [row.speed_up_low, row.speed_up_high], color="black", marker="_", markersize=6
                )
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.set_xticks(range(len(categories)), categories)
    axes.set_ylabel("speed-up over plain")
    axes.set_title("Speed-up by category, with 95 % intervals")
    highest = max([1.0, *(row.speed_up_high or row.speed_up or 0.0 for row in rows)])
    axes.set_ylim(0, 1.2 * highest)  # room for the legend above the bars
    _legend(axes, loc="upper left", ncols=len(_FILLS))


def _verify_costs(axes: Any, report: Report) -> None:
    costs = {} if report.costs is None else report.costs.verify
    axes.plot(list(costs), list(costs.values()), color="black", marker="o", label="V(m)")
    axes.plot(list(costs), list(costs), color="0.6", linestyle=":", label="m passes of one row")
    axes.set_ylim(0, 1.5 * max([2.0, *costs.values()]))
    axes.set_xlabel("rows m")
    axes.set_ylabel("one-row passes")
    axes.set_title("Cost of a pass over m rows")
    _legend(axes)


def _acceptance(axes: Any, rows: Sequence[Row]) -> None:
    whole = rows[-1].category if rows else None  # all prompts, or the only category
    drafted = [row for row in rows if row.category == whole and row.acceptance_by_position]
    for index, row in enumerate(drafted):
        line, marker = _LINES[index % len(_LINES)]
        positions = range(1, len(row.acceptance_by_position) + 1)
        axes.plot(positions, row.acceptance_by_position, color="black", linestyle=line, marker=marker, label=row.draft)
    axes.set_ylim(0, 1.05)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of drafted tokens kept")
    axes.set_title("Acceptance by position")
    _legend(axes)


def _legend(axes: Any, **place: Any) -> None:
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, **place)
    else:
        axes.text(0.5, 0.5, "nothing was measured", ha="center", va="center", transform=axes.transAxes)
