"""The picture of a report: that what is drawn is what was found. How it looks, a person has seen."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfspec.bench.calm import Turns
from selfspec.bench.machine import Machine
from selfspec.bench.plot import check_plot, figure_of, write_plot
from selfspec.bench.report import ArtifactFacts, Costs, Report
from selfspec.bench.rows import PLAIN, Row
from selfspec.errors import SelfSpecError, UsageError

pytest.importorskip("matplotlib")


def row(category: str, draft: str, speed_up: float | None, *shares: float) -> Row:
    low, high = (None, None) if speed_up is None else (speed_up - 0.1, speed_up + 0.2)
    return Row("prompts", draft, category, 2, 2, 9, 1.0, None, 1.0, None, speed_up, low, high, None, shares)


ROWS = (
    Row("tg8", PLAIN, None, None, 1, 8, 1.0, None, 1.0),
    row("qa", PLAIN, None), row("qa", "none", 1.0), row("qa", "auto", 1.5, 0.1),
    row("all", PLAIN, None), row("all", "none", 1.1), row("all", "auto", 2.0, 0.75, 0.5),
)  # fmt: skip
REPORT = Report(
    "0", "2026-01-01", False, ArtifactFacts("toy", "int4", "its own", "a", 1, 1, ""),
    Machine("Fast", (), 1, 1, 1, 1.0, "", "", "", ""),
    Costs({1: 1.0, 2: 1.25, 4: 2.0}, {}, None), ROWS, Turns(1, 1, 0),
)  # fmt: skip


def panels(report: Report) -> tuple[Any, Any, Any]:
    speed, verify, acceptance = figure_of(report).axes
    return speed, verify, acceptance


def test_bars_stand_over_their_category_and_are_as_high_as_the_speed_up() -> None:
    speed, _, _ = panels(REPORT)
    assert [label.get_text() for label in speed.get_xticklabels()] == ["qa", "all"]
    bars = [(round(bar.get_x() + bar.get_width() / 2), bar.get_height()) for bar in speed.patches]
    assert bars == [(0, 1.0), (1, 1.1), (0, 1.5), (1, 2.0)]
    assert [text.get_text() for text in speed.get_legend().get_texts()] == ["none", "auto"]


def test_intervals_are_drawn_at_their_bars() -> None:
    speed, _, _ = panels(REPORT)
    ends = [tuple(line.get_ydata()) for line in speed.lines if len(set(line.get_xdata())) == 1]
    assert ends == [pytest.approx((h - 0.1, h + 0.2)) for h in (1.0, 1.1, 1.5, 2.0)]
    assert speed.get_ylim()[1] > 2.2


def test_curves_hold_the_costs_and_the_acceptance_of_all_prompts() -> None:
    _, verify, acceptance = panels(REPORT)
    assert list(zip(*verify.lines[0].get_data(), strict=True)) == [(1, 1.0), (2, 1.25), (4, 2.0)]
    (line,) = acceptance.lines
    assert (line.get_label(), list(line.get_ydata())) == ("auto", [0.75, 0.5])


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_a_report_of_little_is_a_picture_too(tmp_path: Path, suffix: str) -> None:
    """No profile, nothing drafted, one prompt: max() of nothing, or a legend of nothing."""
    lone = Row("prompts", "none", "qa", 1, 1, 9, 1.0, None, 1.0, speed_up=1.0)
    for rows in ((lone,), ROWS[:1]):
        write_plot(replace(REPORT, costs=None, rows=rows), tmp_path / f"x{suffix}")
    assert (tmp_path / f"x{suffix}").stat().st_size > 1000


def test_a_place_that_was_there_before_the_measuring_and_is_not_after_it(tmp_path: Path) -> None:
    """Half an hour of measuring, and then FileNotFoundError for a hidden name that nobody gave."""
    path = tmp_path / "a" / "x.png"
    path.parent.mkdir()
    check_plot(path)
    path.parent.rmdir()
    with pytest.raises(SelfSpecError, match=r"--plot .*x.png cannot be written by now"):
        write_plot(REPORT, path)
    path.mkdir(parents=True)
    with pytest.raises(UsageError, match="this is a folder"):
        check_plot(path)
    with pytest.raises(SelfSpecError, match="cannot be written by now"):
        write_plot(REPORT, path)
    assert list(path.parent.iterdir()) == [path]
