"""What every results file holds beside its numbers: machine, day and version. Files are written whole or not at all."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from selfspec import __version__
from selfspec.bench.machine import machine
from selfspec.runtime.cache import write_whole
from selfspec.runtime.limits import cpus

_NUMBERS = re.compile(r"\[\n\s+((?:[-+.eE\d]+,?\s+)+)\]")


def machine_facts(threads: int | None = None, seconds: float = 1.0) -> dict[str, Any]:
    """The fields of :class:`selfspec.bench.machine.Machine`, with ``date`` (UTC) and ``selfspec``, the version.

    Args:
        threads: that were measured with; None: the physical cores.
        seconds: for how long the read bandwidth is measured.
    """
    found = asdict(machine(threads or cpus().threads, seconds))
    return {"date": datetime.now(UTC).date().isoformat(), "selfspec": __version__} | found


def write_results(path: Path, data: Mapping[str, Any]) -> None:
    """Write ``data`` as JSON into ``path``, whose folder is made; another file of that name is replaced at once. Lists
    of numbers stand on one line, or repeats would fill thousands.

    Raises:
        OSError: it cannot be written; the older file is still there.
        ValueError: a number is not finite, which JSON has no word for.
    """
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False)
    write_whole(path, _NUMBERS.sub(lambda found: f"[{' '.join(found[1].split())}]", text) + "\n", mode=0o644)
