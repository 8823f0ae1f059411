"""The tables of README.md and docs/log.md, made of the JSON files under benchmarks/results; no number is typed by hand.

    python benchmarks/tables.py            rewrites them

A table stands between ``<!-- results: NAME -->`` and ``<!-- end of results -->``; what stands there is replaced. Where
its results were never measured, it says so. Knows no model and no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from results import FOLDER

Results = Mapping[str, Any]
"""Name of a file without .json → what it holds."""

ROOT = FOLDER.parents[1]
DOCUMENTS = (ROOT / "README.md", ROOT / "docs" / "log.md")
_REGION = re.compile(r"(<!-- results: ([a-z0-9-]+) -->\n).*?(<!-- end of results -->)", re.DOTALL)
_MISSING = "Not measured yet: `make bench` and `make peers` do."
_TITLES = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma-3-270M"}
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


def load_results(folder: Path = FOLDER) -> dict[str, Any]:
    return {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.json"))}


def fill(text: str, results: Results) -> str:
    """``text`` with its tables made anew.

    Raises:
        KeyError: a table's name is not known.
    """
    return _REGION.sub(lambda match: f"{match[1]}{TABLES[match[2]](results)}{match[3]}", text)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown; ends with a newline."""
    return "".join(f"| {' | '.join(row)} |\n" for row in (head, ["---"] * len(head), *rows))


def machine_sentence(data: Mapping[str, Any]) -> str:
    return (
        f"{data['cpu']}, {data['cores']} core(s), {data['threads']} thread(s), read bandwidth "
        f"{data['bandwidth'] / 1e9:.0f} GB/s (measured), ONNX Runtime {data['onnxruntime']}, NumPy {data['numpy']}"
    )


def speed(results: Results) -> str:
    """Every model and precision: plain, and the speed-ups over all prompts."""
    benches = _benches(results)
    if not benches:
        return _MISSING + "\n"
    drafts = list(dict.fromkeys(row["draft"] for data in benches for row in data["rows"] if row["speed_up"]))
    drafts.sort(key=("prompt-lookup", "early-exit", "auto", "none").index)
    head = ["", "plain tok/s", "of bandwidth", *(_DRAFT_TITLES.get(draft, draft) for draft in drafts)]
    rows = []
    for data in benches:
        (generation,) = (row for row in data["rows"] if row["test"].startswith("tg"))
        whole = {row["draft"]: row for row in data["rows"] if row["category"] == "all"}
        cells = [_speed_up(whole[draft]) if draft in whole else "" for draft in drafts]
        rows.append([_title(data), f"{whole['plain']['median']:.0f}", f"{generation['roofline']:.0%}", *cells])
    return f"{_conditions(benches[0])}\n\n{table(head, rows)}"


def categories(results: Results) -> str:
    """The speed-up of ``auto`` by category of prompts."""
    benches = _benches(results)
    if not benches:
        return _MISSING + "\n"
    names = list(dict.fromkeys(row["category"] for row in benches[0]["rows"] if row["category"] not in (None, "all")))
    rows = []
    for data in benches:
        auto = {row["category"]: row for row in data["rows"] if row["draft"] == "auto"}
        rows.append([f"{_title(data)}, auto", *(_speed_up(auto[name]) for name in names)])
    return table(["", *(name.replace("_", " ") for name in names)], rows)


def details(results: Results) -> str:
    """Everything over all prompts that ``selfspec bench`` found, and the costs."""
    benches = _benches(results)
    if not benches:
        return _MISSING + "\n"
    head = [
        "",
        "draft",
        "tok/s",
        "speed-up [95 %]",
        "accepted",
        "by position",
        "tokens/round",
        "draft share",
        "TTFT ms",
    ]
    rows, costs = [], []
    for data in benches:
        rows += [_detail(data, row) for row in data["rows"] if row["category"] == "all"]
        verify, draft = (
            ", ".join(f"{k}: {v:.2f}" for k, v in data["costs"][key].items()) for key in ("verify", "draft")
        )
        (prefill,) = (row for row in data["rows"] if row["test"].startswith("pp"))
        costs.append(
            f"- {_title(data)}: V(m) {verify}; c by exit layer {draft}; prompt of {prefill['test'][2:]} tokens at "
            f"{prefill['median']:.0f} tok/s; sha256 {data['artifact']['digest'][:12]}."
        )
    return f"{_conditions(benches[0])}\n\n{table(head, rows)}\n" + "\n".join(costs) + "\n"


def quality(results: Results) -> str:
    """What precision costs in text and saves in bytes."""
    found = results.get("quality")
    if found is None:
        return _MISSING + "\n"
    rows = []
    for row in found["rows"]:
        size, kl = f"{row['weights_bytes'] / _MB:.0f} MB", f"{row['kl']:.4f}"
        rows.append([row["precision"], size, f"{row['agreement']:.1%}", kl, _resident(row, results)])
    head = ["", "weights.bin", "same best token", "KL divergence", "PSS, plain"]
    return f"Against fp32 on {found['rows'][0]['tokens']} tokens of its own answers:\n\n{table(head, rows)}"


def _resident(row: Any, results: Results) -> str:
    """PSS of plain decoding, where it was measured."""
    bench = results.get(f"bench-{row['name']}-{row['precision']}", {"rows": []})
    sizes = [r["pss_bytes"] for r in bench["rows"] if r["test"].startswith("tg") and r["pss_bytes"]]
    return f"{sizes[0] / _MB:.0f} MB" if sizes else ""


def _detail(data: Any, row: Any) -> list[str]:
    rate, per_round, share = row["acceptance_rate"], row["tokens_per_round"], row["draft_share"]
    positions = " ".join(f"{kept:.2f}" for kept in row["acceptance_by_position"][:4])
    cells = [_title(data), row["draft"], f"{row['median']:.1f}", _speed_up(row), "" if rate is None else f"{rate:.2f}"]
    return [*cells, positions, f"{per_round:.2f}", f"{share:.3f}", f"{row['ttft_ms']:.0f}"]


def _benches(results: Results) -> list[Any]:
    order = list(_TITLES)
    found = [data for name, data in results.items() if name.startswith("bench-")]
    precisions = ("fp32", "int8", "int4")
    return sorted(
        found, key=lambda d: (order.index(d["artifact"]["name"]), precisions.index(d["artifact"]["precision"]))
    )


def _title(data: Any) -> str:
    artifact = data["artifact"]
    return f"{_TITLES[artifact['name']]} {artifact['precision']}"


def _conditions(data: Any) -> str:
    (plain,) = (row for row in data["rows"] if row["category"] == "all" and row["draft"] == "plain")
    return (
        f"{plain['prompts']} prompts ({data['prompt_set']}), greedy, at most {data['new_tokens']} new tokens, "
        f"{plain['repeats']} alternating runs. {data['date']}, selfspec {data['selfspec']}: "
        f"{machine_sentence(data['machine'])}."
    )


def _speed_up(row: Any) -> str:
    if row["speed_up"] is None:
        return ""
    low, high = row["speed_up_low"], row["speed_up_high"]
    return f"{row['speed_up']:.2f}×" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


_DRAFT_TITLES = {"none": "plain again (noise)"}

TABLES: dict[str, Callable[[Results], str]] = {
    "speed": speed, "categories": categories, "details": details, "quality": quality,
}  # fmt: skip


if __name__ == "__main__":
    for document in rewrite():
        print(f"{document}: rewritten")
