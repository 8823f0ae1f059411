"""Markdown tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of a Markdown table, without a last newline."""
    return "\n".join(f"| {' | '.join(line)} |" for line in (names, ["---"] * len(names), *rows))
