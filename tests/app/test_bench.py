"""``selfspec bench`` on a toy, end to end, and one sentence for what cannot work. No speeds."""

from __future__ import annotations

import csv
import io
import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from selfspec.bench.command import BenchSettings, bench
from selfspec.bench.prompts import Prompt
from selfspec.bench.runs import Conditions, Contender, Proposal, TimedDrafter, run_generation, run_prefill, run_prompt
from selfspec.cli.main import main
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft, NoDrafter, Prefix, Round
from selfspec.runtime.model import Model

TEXT = "It is not the wind that worries me, it is not the wind that"
SHORT = ["-t", "1", "-p", "16", "-n", "8", "-r", "2"]


@pytest.fixture
def prompts(tmp_path: Path) -> str:
    path = tmp_path / "prompts.txt"
    path.write_text(f"{TEXT}\n\nwhat comes after it, and what comes\n", encoding="utf-8")
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str, str]:
    try:
        code = main(["bench", *argv])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def rows_of(form: str, out: str) -> list[dict[str, Any]]:
    if form == "csv":
        return list(csv.DictReader(io.StringIO(out)))
    if form == "json":
        return list(json.loads(out)["rows"])
    return [json.loads(line) for line in out.splitlines()]


@pytest.mark.parametrize("form", ["csv", "json", "jsonl"])
def test_drafts_in_turn_next_to_plain(capsys: pytest.CaptureFixture[str], fp32: Any, prompts: str, form: str) -> None:
    code, out, err = run(capsys, str(fp32.folder), *SHORT, "--draft", "none,prompt-lookup", "--prompts", prompts,
                         "-o", form)  # fmt: skip
    assert code == 0
    rows = rows_of(form, out)
    assert [(r["test"], r["draft"]) for r in rows] == [
        ("pp16", "plain"), ("tg8", "plain"), ("prompts", "plain"), ("prompts", "none"), ("prompts", "prompt-lookup"),
    ]  # fmt: skip
    assert [int(r["tokens"]) for r in rows[:2]] == [32, 16]
    assert all(int(r["repeats"]) == 2 and float(r["mean"]) > 0 and int(r["peak_rss_bytes"]) > 0 for r in rows)
    assert float(rows[1]["roofline"]) > 0
    for row in rows[3:]:
        assert 0 < float(row["speed_up_low"]) <= float(row["speed_up"]) <= float(row["speed_up_high"])
        assert int(row["same_text"]) == int(row["prompts"]) == 2
        assert 0 < float(row["draft_share"]) < 1
        assert float(row["ttft_ms"]) > 0
    assert fp32.model.artifact.digest in out
    assert "NumPy max of int64" in out
    assert "2 prompts: turn 1 of" in err
    assert "turn 1 of" not in out


def test_markdown_has_both_tables_and_the_facts(capsys: pytest.CaptureFixture[str], fp32: Any, prompts: str) -> None:
    code, out, _ = run(capsys, str(fp32.folder), *SHORT, "--draft", "none,prompt-lookup", "--prompts", prompts)
    assert code == 0
    for word in ("| pp16 |", "| tg8 |", "| text | plain |", "| text | none |", "| text | prompt-lookup |",
                 "- CPU: ", "- ISA: ", "- read bandwidth: ", "- V(m): 1: 1.00", "- c by path: early-exit:layer=2: ",
                 fp32.model.artifact.digest):  # fmt: skip
        assert word in out


def test_exits_are_compared_by_their_layers_and_exactly(
    capsys: pytest.CaptureFixture[str], fp32: Any, prompts: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each in conversations made for ``exact``, plain and the timed prompt too."""
    made: list[bool] = []
    real = Model.conversation

    def conversation(self: Model, *, exact: bool = False) -> Conversation:
        made.append(exact)
        return real(self, exact=exact)

    monkeypatch.setattr(Model, "conversation", conversation)
    layers = fp32.model.artifact.manifest.model.num_layers
    code, out, _ = run(capsys, str(fp32.folder), *SHORT, "--draft", f"early-exit:2,early-exit:{layers}", "--exact",
                       "--prompts", prompts, "-o", "json")  # fmt: skip
    assert code == 0
    assert made
    assert all(made)
    data = json.loads(out)
    assert data["exact"] is True
    rows = {row["draft"]: row for row in data["rows"] if row["test"] == "prompts"}
    assert list(rows) == ["plain", "early-exit:layer=2", f"early-exit:layer={layers}"]
    assert all(rows[draft]["same_text"] == 2 for draft in list(rows)[1:])
    assert rows["early-exit:layer=2"]["acceptance_rate"] != rows[f"early-exit:layer={layers}"]["acceptance_rate"]


@pytest.mark.parametrize("drafts", ["prompt-lookup,early-exit:layer=2,auto", ""])
def test_another_machine_is_predicted_and_nothing_mixed(
    capsys: pytest.CaptureFixture[str], fp32: Any, prompts: str, drafts: str
) -> None:
    """Half of this machine's speeds or ten times: every time scales but the overhead's."""
    argv = [*SHORT, *(["--draft", drafts, "--prompts", prompts] if drafts else []), "-o", "json"]
    code, out, _ = run(capsys, str(fp32.folder), *argv, "--predict", "20,100")
    assert code == 0
    data = json.loads(out)
    assert not any(row["test"].startswith("predicted") for row in data["rows"])
    found = {row["test"]: row for row in data["prediction"]["rows"]}
    names = ["pp16 tok/s", "tg8 tok/s", "plain tok/s by the profile", "V(2)", "V(16)", "c of early-exit:layer=2"]
    names += [f"{draft} speed-up" for draft in drafts.split(",") if draft]
    assert {f"predicted {name}" for name in names} <= found.keys()
    for row in found.values():
        assert row["predicted_there"] > 0
        assert row["predicted_error"] == pytest.approx(row["predicted_here"] / row["measured_here"] - 1)
    assert found["predicted plain tok/s by the profile"]["measured_here"] == pytest.approx(
        1 / fp32.model.profile().step_seconds[1]
    )
    assert (data["prediction"]["there_bandwidth"], data["prediction"]["there_rate"]) == (20e9, 100e9)
    for draft in drafts.split(",") if drafts else []:
        (row,) = [r for r in data["rows"] if (r["test"], r["draft"]) == ("prompts", draft)]
        assert found[f"predicted {draft} speed-up"]["measured_here"] == pytest.approx(row["speed_up"])


@pytest.mark.parametrize("form", ["md", "csv", "jsonl"])
def test_predictions_are_in_every_form(capsys: pytest.CaptureFixture[str], fp32: Any, form: str) -> None:
    code, out, _ = run(capsys, str(fp32.folder), *SHORT, "--predict", "20,100", "-o", form)
    assert code == 0
    assert ("## Predicted, not measured: 20 GB/s, 100 GOPS" if form == "md" else "predicted tg8 tok/s") in out


def test_what_is_proposed_is_recorded(fp32: Any) -> None:
    """A dropped token is a step without a token; a plain step and a copy are none."""
    hidden = np.zeros((2, 4), dtype=np.float32)
    drafts = iter([Draft(), Draft((5, 6, 7)), Draft((5,), prefix=Prefix(4, hidden))])

    class Inner:
        def propose(self, conversation: Any, max_tokens: int) -> Draft:
            return next(drafts)

        def observe(self, result: Round) -> None:
            """Nothing to learn."""

    drafter = TimedDrafter(Inner())
    for _ in range(3):
        drafter.propose(fp32.model.conversation(), 4)
    assert drafter.proposals == [Proposal(None, 0, 0), Proposal(None, 0, 3), Proposal("early-exit:layer=2", 2, 1)]


def test_every_round_has_the_proposal_it_began_with(fp32: Any) -> None:
    for draft in ("none", "prompt-lookup", "early-exit:2", "auto"):
        found = run_prompt(fp32.model, Prompt(1, "qa", TEXT), Conditions(8), Contender(draft, draft))
        assert [p.tokens for p in found.proposals] == [r.num_drafted for r in found.rounds]
        paths = {p.path for p in found.proposals}
        assert draft != "early-exit:2" or "early-exit:layer=2" in paths
        assert draft not in ("none", "prompt-lookup") or paths == {None}


def test_a_picture_is_drawn_beside_the_table(
    capsys: pytest.CaptureFixture[str], fp32: Any, prompts: str, tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib")
    path = tmp_path / "bench.png"
    code, out, _ = run(capsys, str(fp32.folder), *SHORT, "--draft", "none,prompt-lookup", "--prompts", prompts,
                       "--plot", str(path))  # fmt: skip
    assert code == 0
    assert "| text | none |" in out
    assert path.read_bytes().startswith(b"\x89PNG")


def test_without_matplotlib_a_picture_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], fp32: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    code, out, err = run(capsys, str(fp32.folder), "--draft", "none", "--plot", str(tmp_path / "x.png"))
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'selfspec[plot]'" in err


def test_without_drafts_only_prompt_and_generation(capsys: pytest.CaptureFixture[str], fp32: Any) -> None:
    _, out, _ = run(capsys, str(fp32.folder), *SHORT, "-o", "json")
    assert [row["test"] for row in json.loads(out)["rows"]] == ["pp16", "tg8"]
    _, out, _ = run(capsys, str(fp32.folder), *SHORT, "-p", "0", "-o", "jsonl")
    assert [json.loads(line)["test"] for line in out.splitlines()] == ["tg8"]
    _, out, _ = run(capsys, str(fp32.folder), *SHORT, "-n", "0", "-o", "jsonl")
    assert [json.loads(line)["test"] for line in out.splitlines()] == ["pp16"]


@pytest.mark.parametrize(
    ("argv", "found"),
    [
        (["-p", "-1"], "-p -1: it must be 0 or more"),
        (["-n", "-1"], "-n -1: it must be 0 or more"),
        (["-r", "0"], "-r 0: it must be 1 or more"),
        (["-p", "0", "-n", "0"], "leave nothing to measure"),
        (["-p", "x"], "invalid int value"),
        (["-o", "xml"], "invalid choice"),
        (["-t", "0"], "--threads 0"),
        (["-p", "9999"], "-p 9999: the model's context holds 256 tokens; give at most 256"),
        (["-n", "255"], "-n 255: the model's context holds 256 tokens; give at most 254"),
        (["--draft", "lookup"], "unknown drafter 'lookup'"),
        (["--draft", "none,,auto"], "unknown drafter ''"),
        (["--draft", "early-exit:x"], "layer is 'x', where a whole number was expected"),
        (["--draft", "none:2"], "none:2: it takes no options"),
        (["--draft", "early-exit:9"], "exit_layer` 9: this artifact has exits"),
        (["--draft", "early-exit:2,early-exit:02"], "a drafter is named twice"),
        (["--predict", "20"], "--predict 20: it takes a machine's read bandwidth"),
        (["--predict=-20,5"], "--predict -20,5: it takes"),
        (["--predict", "20,100", "--exact"], "--predict goes by passes that are not padded"),
        (["--draft", "none,none"], "a drafter is named twice"),
        (["--draft", "none", "-n", "2"], "-n 2: with --draft it must be 3 or more"),
        (["--prompts", "x.txt"], "--prompts has no effect without --draft"),
        (["--draft", "none", "--prompts", "no/such/file"], "no/such/file cannot be read"),
        (["--plot", "x.png"], "--plot draws speed-ups, and there are none without --draft"),
        (["--draft", "none", "--plot", "x.gif"], "--plot x.gif: its name must end in .png, .svg, .pdf"),
        (["--draft", "none", "--plot", "no/such/x.png"], "there is no folder no/such"),
        (["--draft", "none"], "it does not fit the model's context of 256"),
    ],
)
def test_what_cannot_work_is_one_sentence(
    capsys: pytest.CaptureFixture[str], fp32: Any, argv: list[str], found: str
) -> None:
    """Before anything is measured: nothing but the sentence is said."""
    code, out, err = run(capsys, str(fp32.folder), *SHORT, *argv)
    assert (code, out) == (2, "")
    assert found in err
    assert err.count("\n") == 1


def test_a_missing_artifact_is_no_usage_error(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, err = run(capsys, str(tmp_path / "none"))
    assert (code, out) == (1, "")
    assert "there is no artifact" in err


def test_generation_goes_on_behind_an_end_of_sequence(make_toy: Any, tools: Any) -> None:
    """Else random weights, or a model at a loss without a prompt, would be timed over fewer steps than are said."""
    toy = make_toy(tools.spec(eos=list(range(320))), precision="fp32")
    conversation = toy.model.conversation()
    assert run_generation(conversation, 5, 8).tokens == 8
    assert len(conversation.tokens) == 1 + 1 + 8
    assert conversation.kv.length == 1 + 8


def test_a_prompt_is_run_from_nothing_each_time(fp32: Any) -> None:
    """Rows that are still there would make the second one free."""
    conversation = fp32.model.conversation()
    for _ in range(2):
        assert run_prefill(conversation, [5, 6, 7]).tokens == 3
        assert conversation.tokens == [5, 6, 7]


def test_answers_of_one_token_are_left_out_and_told(
    make_toy: Any, tools: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing divided by nothing."""
    toy = make_toy(tools.spec(eos=list(range(320))), precision="fp32")
    report = bench(toy.model, BenchSettings(0, 4, 1, ("none",), (Prompt(7, "qa", "hello"),)))
    assert [row.test for row in report.rows] == ["tg4"]
    assert "prompt 7 is left out" in capsys.readouterr().err


def test_time_of_drafting_is_summed(fp32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last proposal's alone would be a share of next to nothing. A clock that goes on by a second at each look."""
    looks = itertools.count()
    monkeypatch.setattr("selfspec.bench.runs.time", SimpleNamespace(perf_counter=lambda: float(next(looks))))
    drafter = TimedDrafter(NoDrafter())
    for _ in range(3):
        drafter.propose(fp32.model.conversation(), 4)
    assert drafter.seconds == 3.0


def test_time_of_drafting_is_what_propose_takes(fp32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter inside hears everything, and the answer is its own."""
    proposals, heard = [], []

    class Inner:
        def propose(self, conversation: Any, max_tokens: int) -> Draft:
            proposals.append(max_tokens)
            return Draft((5,)) if max_tokens else Draft()

        def observe(self, result: Round) -> None:
            heard.append(result)

    monkeypatch.setattr(fp32.model, "drafter", lambda *args: Inner())
    found = run_prompt(fp32.model, Prompt(1, "qa", TEXT), Conditions(8))
    assert list(found.rounds) == heard
    assert len(proposals) == len(heard) > 0
    assert 0 < found.draft_seconds < sum(r.seconds for r in found.rounds)
    assert found.tokens == len(found.token_ids) - 1 == sum(len(r.tokens) for r in found.rounds)
