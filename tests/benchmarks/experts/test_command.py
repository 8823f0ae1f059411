"""benchmarks.experts on a toy, whole; its table, its grid, and what may stand beside a sparse model."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.experts import command as experts
from benchmarks.experts.table import markdown, of_all
from benchmarks.synthetic.checkpoints import CONFIGS
from selfspec.errors import UsageError
from selfspec.models.hf_config import from_hf

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy, ToyMaker

SPARSE, DENSE = (from_hf(CONFIGS[name]) for name in ("wide-moe", "wide-dense"))
SETTINGS: dict[str, Any] = {
    "model": "toy", "precision": "int4", "kernels": "some", "digest": "0123456789abcdef", "layers": 6, "experts": 8,
    "experts_per_token": 4, "temperature": 0.0, "new_tokens": 48,
}  # fmt: skip
DATA: dict[str, Any] = {
    "machine": {"date": "2026-01-02", "selfspec": "9.9", "threads": 2, "cpu": "Fast", "onnxruntime": "1.2"},
    "settings": SETTINGS,
    "text_tokens": 100,
    "step_ms": 2.5,
    "passes": [
        {"rows": 1, "union": 4.0, "random": 4.0, "cost": 1.0},
        {"rows": 2, "union": None, "random": 6.0, "cost": 1.25},
    ],
    "ceilings": [
        {"layers": 3, "experts": 4, "step": 0.5, "speed_up": 1.5},
        {"layers": 6, "experts": 1, "step": 0.75, "speed_up": 0.94},
    ],
}
ROW: dict[str, Any] = {
    "draft": "auto", "prompts": 12, "repeats": 2, "median": 10.0, "speed_up": 1.25, "speed_up_low": 1.2,
    "speed_up_high": 1.3, "acceptance_rate": 0.5, "acceptance_by_position": [0.6, 0.4], "tokens_per_round": 2.0,
    "same_text": 11,
}  # fmt: skip
TURNS = {"run": 9, "used": 8, "disturbed": 1}


@pytest.fixture(scope="module")
def sparse(make_toy: ToyMaker, tools: Tools) -> Toy:
    spec = tools.spec("qwen3_moe", context=4096, config={"decoder_sparse_step": 1})
    return make_toy(spec, precision="fp32", exit_layers=(3,), hot_vocab=256)


@pytest.fixture(scope="module")
def dense(make_toy: ToyMaker, tools: Tools) -> Toy:
    return make_toy(tools.spec("qwen3", ff=256, context=4096), precision="fp32", exit_layers=(3,), hot_vocab=256)


@pytest.mark.slow
def test_a_toy_is_measured_beside_a_dense_one(
    sparse: Toy, dense: Toy, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(experts, "_GRID_REPEATS", 1)
    monkeypatch.setattr(experts, "_AUTO_REPEATS", 1)
    output = tmp_path / "experts.json"
    arguments = ["--dense", str(dense.folder), "--prompts", "1", "--threads", "1", "-o", str(output)]
    assert experts.main([str(sparse.folder), *arguments]) == 0
    data = json.loads(output.read_text())
    assert data["passes"][0]["union"] == 4.0
    assert 4.0 < data["passes"][7]["union"] <= 8.0
    assert 4.0 < data["beside"]["touched"] <= 8.0
    assert {(row["exit"], row["experts"]) for row in data["drafts"]} == {
        (layer, k) for layer in (None, 3, 6) for k in (1, 2, 4)
    }
    (same,) = (row for row in data["drafts"] if row["draft"] == "fewer-experts:4")
    assert same["acceptance_rate"] > 0.9  # all experts: right but for near ties, since this is not under exact
    assert set(data["auto"]["rounds"]) <= {"none", "prompt-lookup", "early-exit", "fewer-experts"}
    assert [row["arm"] for row in data["memory"]][2:] == ["fewer-experts, 1 a token", "early-exit 3, 1 a token", "auto"]
    told = capfd.readouterr().out
    assert told.startswith("**checkpoint fp32** (ONNX Runtime's): 8 experts a layer, 4 a token;")
    assert told == markdown(data) + "\n"


def test_the_grid_has_every_number_of_experts_at_every_exit() -> None:
    """All of them is the exit as it is, whose rows verification goes on from."""
    found = experts.grid(SPARSE, (2,))
    assert [name for name, facts in found.items() if facts["exit"] is None] == [
        "fewer-experts:1", "fewer-experts:2", "fewer-experts:4", "fewer-experts:8",
    ]  # fmt: skip
    assert found["early-exit:2:2"] == {"exit": 2, "experts": 2}
    assert found["early-exit:4"] == {"exit": 4, "experts": 8}
    assert len(found) == 12


def test_the_wide_models_have_the_same_active_size() -> None:
    experts.check_dense(SPARSE, DENSE)
    assert DENSE.intermediate_size == 8 * 512


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (replace(DENSE, intermediate_size=2048), "4096 wide, .* 2048 wide.$"),
        (replace(DENSE, num_layers=7), "differs in num_layers"),
        (SPARSE, "without experts"),
    ],
)
def test_another_dense_model_is_refused(other: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        experts.check_dense(SPARSE, other)


def test_a_model_without_experts_is_refused(dense: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert experts.main([str(dense.folder)]) == 2
    assert "checkpoint has no experts" in capsys.readouterr().err


def test_the_table_of_passes() -> None:
    lines = markdown(DATA).splitlines()
    assert lines[0] == (
        "**toy int4** (some): 8 experts a layer, 4 a token; 2026-01-02, selfspec 9.9, 2 thread(s) of Fast, ONNX "
        "Runtime 1.2, sha256 0123456789ab."
    )
    assert lines[2] == "| rows m of its own text | 1 | 2 |"
    assert lines[4:8] == [
        "| U(m), experts of a layer | 4.0 | - |",
        "| U(m) ÷ k | 1.00 | - |",
        "| random routing ÷ k | 1.00 | 1.50 |",
        "| V(m), time of the pass | 1.00 | 1.25 |",
    ]
    assert lines[9] == "Over 100 tokens (greedy); a pass over one takes 2.50 ms."
    assert lines[13:] == [
        "| the first 3 of 6 layers, short head | 0.50 | 1.50× |",
        "| 1 expert(s) a token | 0.75 | 0.94× |",
    ]


def test_the_dense_model_is_a_sentence() -> None:
    beside = {
        "sparse_ms": 2.5, "dense_ms": 2.0, "sparse_bytes": 83e6, "dense_bytes": 81e6, "low": 1.2, "high": 1.3,
        "dense": "d", "rounds": 40, "steps": 16, "touched": 55.6,
    }  # fmt: skip
    assert markdown(DATA | {"beside": beside}).splitlines()[-1] == (
        "A plain step takes **1.25×** [1.20, 1.30] the time of d, which is dense and has as much active (2.50 / 2.00 "
        "ms; 83 / 81 MB of weights a token; 40 turns of 16 steps over random tokens, which touch 56 experts a layer)."
    )


def test_drafts_are_a_line_an_exit_and_auto_tells_what_it_chose() -> None:
    drafts = [ROW | {"exit": layer, "experts": k} for layer in (None, 3, 6) for k in (1, 4)][:-1]
    auto = {
        "rows": [ROW, ROW | {"draft": "none", "speed_up": 1.0, "speed_up_low": None}], "turns": TURNS,
        "rounds": {"none": 3, "prompt-lookup": 1},
        "promised": {"exit": {"exit_layer": 3, "rate": 1.02}, "fewer": {"experts": 1, "rate": 0.9}},
    }  # fmt: skip
    arm = {
        "arm": "plain", "new_tokens": 8, "prompt_tokens": 4, "drafted_tokens": 0, "pss_bytes": None, "pss_ratio": None,
        "rss_anon_bytes": None, "rss_anon_ratio": None, "peak_rss_bytes": 1e6,
    }  # fmt: skip
    told = markdown(DATA | {"drafts": drafts, "turns": TURNS, "auto": auto, "memory": [arm]})
    cell = "0.50 (0.60), 2.00, 1.25× [1.20, 1.30]"
    assert f"| all layers, whole head | {cell} | {cell} |\n| first 3 layers, short head | {cell} | {cell} |\n" in told
    assert f"| all layers, short head | {cell} |  |\n" in told
    assert (
        "**auto: 1.25× [1.20, 1.30]** over 12 prompts, plain again 1.00×. Its rounds: plain 75%, prompt lookup 25%"
        in told
    )
    assert "the exit after layer 3 promises 1.02 and 1 expert(s) a token 0.90 tokens" in told
    assert "| plain | 8 | 0 | - |" in told


def test_all_artifacts_are_shown_and_nothing_else() -> None:
    other = DATA | {"settings": SETTINGS | {"model": "another"}}
    told = of_all({"memory": {}, "experts-toy": DATA, "experts-another": other}.items())
    assert told == f"{markdown(other)}\n\n{markdown(DATA)}"
