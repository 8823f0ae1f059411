"""The tables of benchmarks.peers, made of its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from selfspec.bench.bootstrap import Interval
from selfspec.bench.markdown import markdown_table

from .roster import NOT_TRIED


@dataclass(frozen=True, slots=True)
class PeerRow:
    """An arm of a peer: figures, or the ``reason`` why there are none.

    ``prompts``: how many it answered; ``tokens_per_second``: after the first token; ``ttft_ms``: median over prompts
    of each one's first answer.
    ``ratio``: its time ÷ our plain decoding's, above 1 where ours is faster, with its 95 % ``interval`` over prompts;
    ``ratio_of_best``: the same against our fastest arm. ``same_text``: prompts answered with exactly our plain's ids.
    """

    peer: str
    arm: str
    versions: Mapping[str, str]
    note: str
    prompts: int = 0
    tokens_per_second: float | None = None
    ttft_ms: float | None = None
    ratio: float | None = None
    interval: Interval | None = None
    ratio_of_best: float | None = None
    same_text: int | None = None
    reason: str = ""


def table(found: Sequence[PeerRow]) -> str:
    """Markdown. The ratios are theirs ÷ ours in time, which is ours ÷ theirs in speed."""
    header = ["", "arm", "tok/s", "TTFT ms", "ours plain ÷ this", "95 %", "ours best ÷ this", "same text"]
    return markdown_table(header, map(_cells, found))


def _cells(row: PeerRow) -> list[str]:
    if row.reason:
        told = row.reason if row.reason == NOT_TRIED else f"cannot run: {row.reason.replace('|', '/')}"
        return [row.peer, row.arm, told, *[""] * 5]
    interval = "-" if row.interval is None else f"{row.interval.low:.2f}–{row.interval.high:.2f}"
    return [
        row.peer,
        row.arm,
        _number(row.tokens_per_second, ".1f"),
        _number(row.ttft_ms, ".0f"),
        _number(row.ratio, ".2f"),
        interval,
        _number(row.ratio_of_best, ".2f"),
        "-" if row.same_text is None else f"{row.same_text} of {row.prompts}",
    ]


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
