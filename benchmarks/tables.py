"""The tables of README.md and docs/log.md, made of the JSON files under benchmarks/results; no number is typed by hand.

    python -m benchmarks.tables            rewrites them

A table stands between ``<!-- results: NAME -->`` and ``<!-- end of results -->``; what stands there is replaced. Where
its results were never measured, it says so. Knows no model and no clock.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from selfspec.bench.bootstrap import Interval
from selfspec.bench.rows import ALL, PLAIN
from selfspec.bench.table import markdown_table

from .experts import table as experts_table
from .kernels import beside_ort
from .memory import command as memory
from .peers import results as peer_results
from .results import FOLDER
from .synthetic import command as synthetic

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

    def made(match: re.Match[str]) -> str:
        needed, make = TABLES[match[2]]
        ready = any(name.startswith(needed) for name in results)
        return f"{match[1]}{make(results) if ready else _MISSING}\n{match[3]}"

    return _REGION.sub(made, text)


def machine_sentence(data: Mapping[str, Any]) -> str:
    return (
        f"{data['cpu']}, {data['cores']} core(s), {data['threads']} thread(s), ONNX Runtime {data['onnxruntime']}, "
        f"NumPy {data['numpy']}"
    )


def speed(results: Results) -> str:
    """Every model and precision: plain, and the speed-ups over all prompts."""
    return "\n\n".join(f"{conditions}\n\n{_speeds(benches)}" for conditions, benches in _groups(results).items())


def _speeds(benches: Sequence[Any]) -> str:
    drafts = list(dict.fromkeys(row["draft"] for data in benches for row in data["rows"] if row["speed_up"]))
    drafts.sort(key=("prompt-lookup", "early-exit", "auto", "none").index)
    head = ["", "plain tok/s", "of bandwidth", *(_DRAFT_TITLES.get(draft, draft) for draft in drafts)]
    rows = []
    for data in benches:
        (generation,) = (row for row in data["rows"] if row["test"].startswith("tg"))
        whole = {row["draft"]: row for row in _whole(data)}
        share = f"{generation['roofline']:.0%} of {data['machine']['bandwidth'] / 1e9:.0f} GB/s"
        cells = [_speed_up(whole[draft]) if draft in whole else "" for draft in drafts]
        rows.append([_title(data), f"{generation['median']:.0f}", share, *cells])
    return markdown_table(head, rows)


def categories(results: Results) -> str:
    """The speed-up of ``auto`` by category of prompts."""
    benches = [data for group in _groups(results).values() for data in group]
    names = list(dict.fromkeys(row["category"] for d in benches for row in d["rows"] if row["category"] is not None))
    names = [name for name in names if name != ALL]
    rows = []
    for data in benches:
        auto = {row["category"]: row for row in data["rows"] if row["draft"] == "auto"}
        rows.append([f"{_title(data)}, auto", *(_speed_up(auto[n]) if n in auto else "" for n in names)])
    return markdown_table(["", *(name.replace("_", " ") for name in names)], rows)


def spec(results: Results) -> str:
    """The speed-up of ``auto`` over Spec-Bench, by category and over all."""
    benches = sorted((data for name, data in results.items() if name.startswith("spec-")), key=_order)
    rows = [row for row in benches[0]["rows"] if row["draft"] == "auto"]
    lines = []
    for data in benches:
        found = {row["category"]: row for row in data["rows"] if row["draft"] == "auto"}
        lines.append([_title(data), *(_speed_up(found[row["category"]]) for row in rows)])
    table = markdown_table(["", *(row["category"].replace("_", " ") for row in rows)], lines)
    again = [
        f"- {_title(data)}: plain again {_speed_up(row)}; texts of auto equal to plain's: {auto['same_text']} of "
        f"{auto['prompts']}; {auto['tokens_per_round']:.2f} tokens a round; {_turns(data)}."
        for data in benches
        for row in _whole(data)
        if row["draft"] == "none"
        for auto in _whole(data)
        if auto["draft"] == "auto"
    ]
    return "\n\n".join([_conditions(benches[0]), table, "\n".join(again)])


def details(results: Results) -> str:
    """Everything over all prompts that ``selfspec bench`` found, and the costs."""
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
    parts = []
    for conditions, benches in _groups(results).items():
        rows = [_detail(data, row) for data in benches for row in _whole(data)]
        parts += [conditions, markdown_table(head, rows), "\n".join(map(_costs, benches))]
    return "\n\n".join(parts)


def _costs(data: Any) -> str:
    tables = (data["costs"][key].items() for key in ("verify", "draft"))
    verify, draft = (", ".join(f"{k}: {v:.2f}" for k, v in table) for table in tables)
    (prefill,) = (row for row in data["rows"] if row["test"].startswith("pp"))
    return (
        f"- {_title(data)}: V(m) {verify}; c by exit layer {draft}; prompt of {prefill['test'][2:]} tokens at "
        f"{prefill['median']:.0f} tok/s; {_turns(data)}; {data['date'][:16]}, sha256 {data['artifact']['digest'][:12]}."
    )


def _turns(data: Any) -> str:
    return "turns: {used} used of {run} run, {disturbed} of the used disturbed".format(**data["turns"])


def beside(results: Results) -> str:
    """Native kernels beside ONNX Runtime's."""
    found = [data for name, data in results.items() if name.startswith("beside-")]
    machine = found[0]["machine"]
    about = f"{found[0]['settings']['kernels']}, {machine['date']}: {machine_sentence(machine)}"
    return f"{beside_ort.table([data['settings'] | data for data in found])}\n\n{about}."


def quality(results: Results) -> str:
    """What precision costs in text and saves in bytes."""
    found = results["quality"]
    rows = []
    for row in found["rows"]:
        size, kl = f"{row['weights_bytes'] / _MB:.0f} MB", f"{row['kl']:.4f}"
        rows.append([_stored(row), size, f"{row['agreement']:.1%}", kl, _resident(row, results)])
    head = ["", "weights.bin", "same best token", "KL divergence", "PSS, plain"]
    return f"Against fp32 on {found['rows'][0]['tokens']} tokens of its own answers:\n\n{markdown_table(head, rows)}"


def peers(results: Results) -> str:
    """A table a model and precision."""
    parts = []
    for found in _by_model(results):
        settings, machine = found["settings"], found["machine"]
        parts.append(
            f"{_TITLES[settings['model']]}, {settings['prompts']} prompts ({settings['prompt_file']}), greedy, at most "
            f"{settings['max_new_tokens']} new tokens, {settings['repeats']} runs in turns. {machine['date']}: "
            f"{machine_sentence(machine)}."
        )
        for precision, rows in found["precisions"].items():
            title = f"**{_TITLES[settings['model']]} {precision}**"
            parts.append(f"{title}\n\n{peer_results.table(_peer_rows(rows))}")
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
    return [results[name] for name in (f"peers-{model}" for model in _TITLES) if name in results]


def _peer_rows(rows: Iterable[Any]) -> list[peer_results.Row]:
    return [
        peer_results.Row(**row | {"interval": None if row["interval"] is None else Interval(**row["interval"])})
        for row in rows
    ]


def _resident(row: Any, results: Results) -> str:
    """PSS of plain decoding with that very artifact, where it was measured."""
    rows = [r for data in _benches(results) if data["artifact"]["digest"] == row["digest"] for r in data["rows"]]
    sizes = [r["pss_bytes"] for r in rows if r["test"].startswith("tg") and r["pss_bytes"]]
    return f"{sizes[0] / _MB:.0f} MB" if sizes else ""


def _detail(data: Any, row: Any) -> list[str]:
    rate, per_round, share = row["acceptance_rate"], row["tokens_per_round"], row["draft_share"]
    positions = " ".join(f"{kept:.2f}" for kept in row["acceptance_by_position"][:4])
    cells = [_title(data), row["draft"], f"{row['median']:.1f}", _speed_up(row), "" if rate is None else f"{rate:.2f}"]
    return [*cells, positions, f"{per_round:.2f}", f"{share:.3f}", f"{row['ttft_ms']:.0f}"]


def _groups(results: Results) -> dict[str, list[Any]]:
    """Conditions → what was measured under them, in the order in which it is shown."""
    groups: dict[str, list[Any]] = {}
    for data in sorted(_benches(results), key=_order):
        groups.setdefault(_conditions(data), []).append(data)
    return groups


def _benches(results: Results) -> list[Any]:
    return [data for name, data in results.items() if name.startswith("bench-")]


def _order(data: Any) -> tuple[int, int, str]:
    artifact = data["artifact"]
    precision = ("fp32", "int8", "int4").index(artifact["precision"])
    return list(_TITLES).index(artifact["name"]), precision, _title(data)


def _whole(data: Any) -> list[Any]:
    """The rows over all prompts, or over the only category."""
    last = data["rows"][-1]["category"]
    return [row for row in data["rows"] if row["category"] is not None and row["category"] == last]


def _title(data: Any) -> str:
    return f"{_TITLES[data['artifact']['name']]} {_stored(data['artifact'])}"


def _stored(artifact: Any) -> str:
    """Precision, and whose kernels multiply in it, where there is a choice."""
    native = artifact["kernels"].startswith("selfspec")
    return "fp32" if artifact["precision"] == "fp32" else f"{artifact['precision']} ({'native' if native else 'ort'})"


def _conditions(data: Any) -> str:
    (plain,) = (row for row in _whole(data) if row["draft"] == PLAIN)
    return (
        f"{plain['prompts']} prompts ({data['prompt_set']}), greedy, at most {data['new_tokens']} new tokens, "
        f"alternating runs. {data['date'][:10]}, selfspec {data['selfspec']}: {machine_sentence(data['machine'])}."
    )


def _speed_up(row: Any) -> str:
    if row["speed_up"] is None:
        return ""
    low, high = row["speed_up_low"], row["speed_up_high"]
    return f"{row['speed_up']:.2f}×" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _synthetic(results: Results) -> str:
    """Each run of benchmarks.synthetic that was kept."""
    return "\n\n".join(
        synthetic.markdown(data) for name, data in sorted(results.items()) if name.startswith("synthetic")
    )


_DRAFT_TITLES = {"none": "plain again (noise)"}

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
