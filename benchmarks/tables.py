"""The tables of README.md and docs/log.md, made of the JSON files under benchmarks/results; no number is typed by hand.

    python -m benchmarks.tables            rewrites them

A table stands between ``<!-- results: NAME -->`` and ``<!-- end of results -->``; what stands there is replaced. Where
its results were never measured, it says so. Knows no model and no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from selfspec.bench.bootstrap import Interval
from selfspec.bench.markdown import markdown_table

from . import RESULTS
from .bench_tables import TITLES, Results, categories, details, machine_sentence, spec, speed, stored, whole_runs
from .experts import table as experts_table
from .kernels import table as kernels_table
from .memory import table as memory
from .peers import table as peer_tables
from .synthetic import table as synthetic

ROOT = RESULTS.parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "log.md")
_REGION = re.compile(r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
_MISSING = "Not measured yet: `make bench` and `make peers` do."
_MB = 1e6


def rewrite(documents: Iterable[Path] = DOCUMENTS) -> list[Path]:
    """Makes all tables anew, and names the documents that changed."""
    results, changed = load_results(), []
    for path in documents:
        text = path.read_text(encoding="utf-8")
        new = fill(text, results)
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed.append(path)
    return changed


def load_results(folder: Path = RESULTS) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def fill(text: str, results: Results) -> str:
    """``text`` with its tables made anew.

    Raises:
        KeyError: a table's name is not known.
    """

    def made(match: re.Match[str]) -> str:
        needed, make = TABLES[match[2]]
        ready = any(name.startswith(needed) for name in results)
        return f"{match[1]}{make(results) if ready else _MISSING}\n{match[3]}"

    return _REGION.sub(made, text)


def beside(results: Results) -> str:
    """Native kernels beside ONNX Runtime's."""
    found = [data for name, data in results.items() if name.startswith("beside-")]
    machine = found[0]["machine"]
    about = f"{found[0]['settings']['kernels']}, {machine['date']}: {machine_sentence(machine)}"
    return f"{kernels_table.markdown([data['settings'] | data for data in found])}\n\n{about}."


def quality(results: Results) -> str:
    """What precision costs in text and saves in bytes."""
    found = results["quality"]
    rows = []
    for row in found["rows"]:
        size, kl = f"{row['weights_bytes'] / _MB:.0f} MB", f"{row['kl']:.4f}"
        rows.append([stored(row), size, f"{row['agreement']:.1%}", kl, _resident(row, results)])
    head = ["", "weights.bin", "same best token", "KL divergence", "PSS, plain"]
    return f"Against fp32 on {found['rows'][0]['tokens']} tokens of its own answers:\n\n{markdown_table(head, rows)}"


def peers(results: Results) -> str:
    """A table a model and precision."""
    parts = []
    for found in _by_model(results):
        settings, machine = found["settings"], found["machine"]
        parts.append(
            f"{TITLES[settings['model']]}, {settings['prompts']} prompts ({settings['prompt_file']}), greedy, at most "
            f"{settings['max_new_tokens']} new tokens, {settings['repeats']} runs in turns. {machine['date']}: "
            f"{machine_sentence(machine)}."
        )
        for precision, rows in found["precisions"].items():
            title = f"**{TITLES[settings['model']]} {precision}**"
            parts.append(f"{title}\n\n{peer_tables.table(_peer_rows(rows))}")
    return "\n\n".join(parts)


def peer_notes(results: Results) -> str:
    """Versions of the peers, and what a reader must know of them."""
    lines = []
    for row in (row for found in _by_model(results) for rows in found["precisions"].values() for row in rows):
        versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
        facts = "; ".join(text for text in (versions, row["note"]) if text)
        lines += [f"- {row['peer']}: {facts}"] if facts else []
    return "\n".join(dict.fromkeys(lines))


def _by_model(results: Results) -> list[Any]:
    return [results[name] for name in (f"peers-{model}" for model in TITLES) if name in results]


def _peer_rows(rows: Iterable[Any]) -> list[peer_tables.PeerRow]:
    return [
        peer_tables.PeerRow(**row | {"interval": None if row["interval"] is None else Interval(**row["interval"])})
        for row in rows
    ]


def _resident(row: Any, results: Results) -> str:
    """PSS of plain decoding with that very artifact, where it was measured."""
    rows = [r for data in whole_runs(results) if data["artifact"]["digest"] == row["digest"] for r in data["rows"]]
    sizes = [r["pss_bytes"] for r in rows if r["test"].startswith("tg") and r["pss_bytes"]]
    return f"{sizes[0] / _MB:.0f} MB" if sizes else ""


def _synthetic(results: Results) -> str:
    """Each run of benchmarks.synthetic that was kept."""
    return "\n\n".join(
        synthetic.markdown(data) for name, data in sorted(results.items()) if name.startswith("synthetic")
    )


TABLES: dict[str, tuple[str, Callable[[Results], str]]] = {
    "speed": ("bench-", speed),
    "categories": ("bench-", categories),
    "details": ("bench-", details),
    "spec": ("spec-", spec),
    "beside": ("beside-", beside),
    "quality": ("quality", quality),
    "memory": ("memory", lambda results: memory.markdown(results["memory"])),
    "experts": ("experts-", lambda results: experts_table.of_all(results.items())),
    "synthetic": ("synthetic", _synthetic),
    "peers": ("peers-", peers),
    "peer-notes": ("peers-", peer_notes),
}
"""Name of a table → how the name of a file that it needs begins, and what makes it."""


if __name__ == "__main__":
    for document in rewrite():
        print(f"{document}: rewritten")
