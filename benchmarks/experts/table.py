"""The tables of benchmarks.experts, made of what it found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from selfspec.bench.markdown import markdown_table

from ..memory import table as memory


def of_all(results: Iterable[tuple[str, Any]]) -> str:
    """Every artifact's, in the order of the files' names."""
    return "\n\n".join(markdown(data) for name, data in sorted(results) if name.startswith("experts-"))


def markdown(data: Mapping[str, Any]) -> str:
    """Everything about one artifact."""
    settings, machine = data["settings"], data["machine"]
    about = (
        f"**{settings['model']} {settings['precision']}** ({settings['kernels']}): {settings['experts']} experts a "
        f"layer, {settings['experts_per_token']} a token; {machine['date']}, selfspec {machine['selfspec']}, "
        f"{machine['threads']} thread(s) of {machine['cpu']}, ONNX Runtime {machine['onnxruntime']}, sha256 "
        f"{settings['digest'][:12]}."
    )
    parts = [about, _passes(data), _ceilings(data)]
    if "beside" in data:
        parts.append(_beside(data["beside"]))
    if "drafts" in data:
        parts += [_drafts(data), _auto(data["auto"]), _memory(data)]
    return "\n\n".join(parts)


def _passes(data: Mapping[str, Any]) -> str:
    settings, passes = data["settings"], data["passes"]
    k = settings["experts_per_token"]
    kind = "greedy" if settings["temperature"] == 0 else f"temperature {settings['temperature']:g}"
    lines = [
        ["U(m), experts of a layer", *(_number(each["union"], 1) for each in passes)],
        ["U(m) ÷ k", *(_number(None if each["union"] is None else each["union"] / k) for each in passes)],
        ["random routing ÷ k", *(_number(each["random"] / k) for each in passes)],
        ["V(m), time of the pass", *(_number(each["cost"]) for each in passes)],
    ]
    head = ["rows m of its own text", *(str(each["rows"]) for each in passes)]
    under = f"Over {data['text_tokens']} tokens ({kind}); a pass over one takes {data['step_ms']:.2f} ms."
    return f"{markdown_table(head, lines)}\n\n{under}"


def _ceilings(data: Mapping[str, Any]) -> str:
    head = ["a draft that were always right", "c", "speed-up at best"]
    rows = [
        [_draft_name(each, data["settings"]), f"{each['step']:.2f}", f"{each['speed_up']:.2f}×"]
        for each in data["ceilings"]
    ]
    return markdown_table(head, rows)


def _draft_name(each: Mapping[str, Any], settings: Mapping[str, Any]) -> str:
    if each["experts"] < settings["experts_per_token"]:
        return f"{each['experts']} expert(s) a token"
    return f"the first {each['layers']} of {settings['layers']} layers, short head"


def _beside(found: Mapping[str, Any]) -> str:
    ratio, interval = found["sparse_ms"] / found["dense_ms"], ""
    if found["low"] is not None:
        interval = f" [{found['low']:.2f}, {found['high']:.2f}]"
    milliseconds = f"{found['sparse_ms']:.2f} / {found['dense_ms']:.2f} ms"
    weights = f"{found['sparse_bytes'] / 1e6:.0f} / {found['dense_bytes'] / 1e6:.0f} MB of weights a token"
    return (
        f"A plain step takes **{ratio:.2f}×**{interval} the time of {found['dense']}, which is dense and has as much "
        f"active ({milliseconds}; {weights}; {found['rounds']} turns of {found['steps']} steps over random tokens, "
        f"which touch {found['touched']:.0f} experts a layer)."
    )


def _drafts(data: Mapping[str, Any]) -> str:
    """A line an exit, a column a number of experts."""
    rows, settings = data["drafts"], data["settings"]
    counts = sorted({row["experts"] for row in rows})
    exits = list(dict.fromkeys(row["exit"] for row in rows))
    cells = {(row["exit"], row["experts"]): _draft(row) for row in rows}
    lines = [[_exit_name(e, settings["layers"]), *(cells.get((e, k), "") for k in counts)] for e in exits]
    head = ["drafted by", *(f"k' = {k}" for k in counts)]
    under = (
        "Accepted (of those drafted first in a round), tokens a round, speed-up over plain. What is drafted behind an "
        "end of sequence counts as not accepted. At most 3 drafted tokens, "
        f"none behind one that the draft gives less than 40 %; {rows[0]['prompts']} built-in prompts, greedy, at most "
        f"{settings['new_tokens']} new tokens; {_turns(data['turns'])}."
    )
    return f"{markdown_table(head, lines)}\n\n{under}"


def _exit_name(layer: int | None, layers: int) -> str:
    if layer is None:
        return "all layers, whole head"
    return "all layers, short head" if layer == layers else f"first {layer} layers, short head"


def _draft(row: Mapping[str, Any]) -> str:
    first = row["acceptance_by_position"][0] if row["acceptance_by_position"] else None
    accepted = f"{_number(row['acceptance_rate'])} ({_number(first)})"
    return f"{accepted}, {row['tokens_per_round']:.2f}, {_speed_up(row)}"


def _auto(auto: Mapping[str, Any]) -> str:
    found = {row["draft"]: row for row in auto["rows"]}
    own, again, rounds = found["auto"], found["none"], sum(auto["rounds"].values())
    shares = ", ".join(f"{title} {auto['rounds'].get(arm, 0) / rounds:.0%}" for arm, title in _ARMS.items())
    return (
        f"**auto: {_speed_up(own)}** over {own['prompts']} prompts, plain again {_speed_up(again)}. Its rounds: "
        f"{shares}. By the profile, {_promised(auto['promised'])} tokens a one-row pass; auto asks for 1.1. Texts "
        f"equal to plain's: {own['same_text']} of {own['prompts']}; {_turns(auto['turns'])}."
    )


_ARMS = {
    "none": "plain", "prompt-lookup": "prompt lookup", "early-exit": "early exit", "fewer-experts": "fewer experts"
}  # fmt: skip


def _promised(promised: Mapping[str, Any]) -> str:
    exit_, fewer = promised["exit"], promised["fewer"]
    parts = [] if exit_ is None else [f"the exit after layer {exit_['exit_layer']} promises {exit_['rate']:.2f}"]
    parts += [] if fewer is None else [f"{fewer['experts']} expert(s) a token {fewer['rate']:.2f}"]
    return " and ".join(parts) or "nothing promises any"


def _memory(data: Mapping[str, Any]) -> str:
    settings = data["settings"]
    artifact = {"name": settings["model"], "precision": settings["precision"]}
    return memory.markdown({"machine": data["machine"], "artifact": artifact, "rows": data["memory"]})


def _turns(turns: Mapping[str, int]) -> str:
    return "turns: {used} used of {run} run, {disturbed} of the used disturbed".format(**turns)


def _speed_up(row: Mapping[str, Any]) -> str:
    low, high = row["speed_up_low"], row["speed_up_high"]
    return f"{row['speed_up']:.2f}×" + ("" if low is None else f" [{low:.2f}, {high:.2f}]")


def _number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:.{digits}f}"
