"""The tables of what ``selfspec bench`` found. Knows no model and no clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from selfspec.bench.markdown import markdown_table
from selfspec.bench.rows import ALL, PLAIN

Results = Mapping[str, Any]
"""Name of a file without .json → what it holds."""

TITLES = {"smollm2-135m": "SmolLM2-135M", "gemma3-270m": "Gemma-3-270M"}
_DRAFT_TITLES = {"none": "plain again (noise)"}


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
        f"- {_title(data)}: V(m) {verify}; c by path {draft}; prompt of {prefill['test'][2:]} tokens at "
        f"{prefill['median']:.0f} tok/s; {_turns(data)}; {data['date'][:16]}, sha256 {data['artifact']['digest'][:12]}."
    )


def _turns(data: Any) -> str:
    return "turns: {used} used of {run} run, {disturbed} of the used disturbed".format(**data["turns"])


def _detail(data: Any, row: Any) -> list[str]:
    rate, per_round, share = row["acceptance_rate"], row["tokens_per_round"], row["draft_share"]
    positions = " ".join(f"{kept:.2f}" for kept in row["acceptance_by_position"][:4])
    cells = [_title(data), row["draft"], f"{row['median']:.1f}", _speed_up(row), "" if rate is None else f"{rate:.2f}"]
    return [*cells, positions, f"{per_round:.2f}", f"{share:.3f}", f"{row['ttft_ms']:.0f}"]


def _groups(results: Results) -> dict[str, list[Any]]:
    """Conditions → what was measured under them, in the order in which it is shown."""
    groups: dict[str, list[Any]] = {}
    for data in sorted(whole_runs(results), key=_order):
        groups.setdefault(_conditions(data), []).append(data)
    return groups


def whole_runs(results: Results) -> list[Any]:
    return [data for name, data in results.items() if name.startswith("bench-")]


def _order(data: Any) -> tuple[int, int, str]:
    artifact = data["artifact"]
    precision = ("fp32", "int8", "int4").index(artifact["precision"])
    return list(TITLES).index(artifact["name"]), precision, _title(data)


def _whole(data: Any) -> list[Any]:
    """The rows over all prompts, or over the only category."""
    last = data["rows"][-1]["category"]
    return [row for row in data["rows"] if row["category"] is not None and row["category"] == last]


def _title(data: Any) -> str:
    return f"{TITLES[data['artifact']['name']]} {stored(data['artifact'])}"


def stored(artifact: Any) -> str:
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
