"""What every results file holds beside its numbers: machine, day and version. Files are written whole or not at all."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selfspec import __version__
from selfspec.machine import machine
from selfspec.runtime.threads import physical_cores

FOLDER = Path(__file__).resolve().parent / "results"


def machine_facts(threads: int | None = None, seconds: float = 1.0) -> dict[str, Any]:
    """The fields of :class:`selfspec.machine.Machine`, with ``date`` (UTC) and ``selfspec``, the version.

    Args:
        threads: that were measured with; None: the physical cores.
        seconds: for how long the read bandwidth is measured.
    """
    found = asdict(machine(threads or physical_cores(), seconds))
    return {"date": datetime.now(UTC).date().isoformat(), "selfspec": __version__} | found


def write_results(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` as JSON into ``path``, whose folder is made; another file of that name is replaced at once.

    Raises:
        OSError: it cannot be written; the older file is still there.
        ValueError: a number is not finite, which JSON has no word for.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(name, 0o644)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


def markdown_table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Lines of a Markdown table, without a last newline."""
    lines = [list(names), ["---"] * len(names), *(list(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
