"""Seeds and recommended sampling on the command line: what is used, what is printed, and what wins."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfspec.cli.chat import Chat, Dialogue
from selfspec.cli.main import main
from selfspec.runtime.stats import Stats

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
CONFIG = {"do_sample": True, "temperature": 1.5, "top_k": 7}
Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def toy(make_toy: Callable[..., Any], fp32: Any) -> Any:
    return make_toy(type(fp32.spec)(layers=2, eos=None), precision="fp32", chat_template=TEMPLATE)


@pytest.fixture
def folder(tools: Any, toy: Any, tmp_path: Path) -> str:
    data = json.dumps(CONFIG).encode()
    return str(tools.changed_copy(toy.folder, tmp_path / "copy", "generation_config.json", data))


def generated(capsys: Capture, folder: Any, *flags: str) -> tuple[dict[str, Any], str]:
    argv = ["generate", str(folder), "-p", "hi", "-t", "1", "--draft", "none", "--max-new-tokens", "12"]
    assert main([*argv, "--json", *flags]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out), captured.err


def test_a_seed_that_is_not_given_is_another_each_time_and_makes_the_same_text_again(capsys: Capture, toy: Any) -> None:
    """A fixed one made 'sampling' say the same for ever; an unknown one could not be told to anyone."""
    warm = ["--temperature", "1.5"]
    found = [generated(capsys, toy.folder, *warm)[0] for _ in range(4)]
    assert len({data["seed"] for data in found}) == len({tuple(data["token_ids"]) for data in found}) == 4
    again, _ = generated(capsys, toy.folder, *warm, "--seed", str(found[0]["seed"]))
    assert (again["token_ids"], again["seed"]) == (found[0]["token_ids"], found[0]["seed"])


def test_python_tells_the_seed_too(toy: Any) -> None:
    options: dict[str, Any] = {"draft": "none", "max_new_tokens": 8, "temperature": 1.5, "exact": True}
    first, second = (toy.model.generate("hi", seed=None, **options) for _ in range(2))
    assert first.seed != second.seed
    for draft in ("none", "prompt-lookup"):
        again = toy.model.generate("hi", **{**options, "draft": draft, "seed": first.seed})
        assert (again.token_ids, again.seed) == (first.token_ids, first.seed)


def test_greedy_text_has_no_seed(capsys: Capture, toy: Any) -> None:
    data, _ = generated(capsys, toy.folder)
    assert data["seed"] is None
    assert data["token_ids"] == generated(capsys, toy.folder, "--seed", "7")[0]["token_ids"]


def test_the_line_of_statistics_has_the_seed_where_there_is_one(capsys: Capture, toy: Any) -> None:
    argv = ["generate", str(toy.folder), "-p", "hi", "-t", "1", "--draft", "none", "--max-new-tokens", "4"]
    assert main([*argv, "--temperature", "1", "--seed", "123"]) == 0
    assert "| seed 123 |" in capsys.readouterr().err
    assert main(argv) == 0
    assert "seed" not in capsys.readouterr().err


def test_where_nothing_was_drafted_no_acceptance_rate_is_told() -> None:
    """'0.00 (0 of 0)' reads like a failure."""
    from selfspec.cli.options import statistics_line
    from selfspec.runtime.generation import Generation

    stats = Stats(prompt_tokens=3, generated_tokens=5, ttft_seconds=0.1, decode_seconds=0.4, rounds=4,
                  drafted_tokens=0, accepted_tokens=0)  # fmt: skip
    assert "4 rounds, nothing drafted, 1.00 tokens per round" in statistics_line(Generation("x", (1,), "length", stats))
    stats = Stats(3, 5, 0.1, 0.4, 4, 4, 1)
    assert "acceptance rate 0.25 (1 of 4)" in statistics_line(Generation("x", (1,), "length", stats))


def test_generate_follows_a_recommendation_where_asked(capsys: Capture, toy: Any, folder: str) -> None:
    plain, err = generated(capsys, folder)
    assert (plain["seed"], err) == (None, "")
    followed, err = generated(capsys, folder, "--recommended", "--seed", "3")
    assert err == (
        "sampling as the model's makers recommend: temperature 1.5, top_k 7; --no-recommended turns that off.\n"
    )
    by_hand, _ = generated(capsys, toy.folder, "--temperature", "1.5", "--top-k", "7", "--seed", "3")
    assert followed["token_ids"] == by_hand["token_ids"]
    cooler, err = generated(capsys, folder, "--recommended", "--seed", "3", "--temperature", "0.5")
    assert "recommend: top_k 7;" in err
    assert cooler["token_ids"] != followed["token_ids"]
    greedy, err = generated(capsys, folder, "--recommended", "--temperature", "0")
    assert (greedy["token_ids"], err) == (plain["token_ids"], "")


def test_a_recommendation_that_is_not_there_is_said(capsys: Capture, toy: Any) -> None:
    assert "--recommended has no effect" in generated(capsys, toy.folder, "--recommended")[1]


def chat(capsys: Capture, monkeypatch: pytest.MonkeyPatch, folder: Any, *flags: str) -> tuple[str, str]:
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\n/stats\n"))
    argv = ["chat", str(folder), "-t", "1", "--draft", "none", "--max-new-tokens", "12", *flags]
    assert main(argv) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_chat_follows_a_recommendation_by_itself(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, toy: Any, folder: str
) -> None:
    """Small models that chat greedily say one sentence for ever."""
    out, err = chat(capsys, monkeypatch, folder, "--seed", "3")
    assert err.startswith("sampling as the model's makers recommend: temperature 1.5, top_k 7; --no-recommended")
    assert "seed 3" in err
    by_hand = ("--temperature", "1.5", "--top-k", "7", "--seed", "3")
    assert out == chat(capsys, monkeypatch, toy.folder, *by_hand)[0]
    greedy, err = chat(capsys, monkeypatch, folder, "--no-recommended")
    assert "recommend" not in err
    assert greedy == chat(capsys, monkeypatch, toy.folder)[0] != out
    assert "recommend" not in chat(capsys, monkeypatch, toy.folder)[1]


def test_a_recommendation_that_cannot_be_is_one_sentence(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch, tools: Any, toy: Any, tmp_path: Path
) -> None:
    folder = str(tools.changed_copy(toy.folder, tmp_path / "copy", "generation_config.json", b'{"top_p": 7}'))
    assert main(["chat", folder, "-t", "1"]) == 1
    err = capsys.readouterr().err
    assert "top_p 7" in err
    assert len(err.splitlines()) == 1
    assert chat(capsys, monkeypatch, folder, "--no-recommended")[0]
    assert main(["info", folder, "-t", "1"]) == 0
    assert "top_p 7" in capsys.readouterr().out
    assert main(["info", folder, "-t", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["recommended"] is None
    assert "top_p 7" in found["recommended_problem"]


def test_info_tells_what_is_recommended(capsys: Capture, toy: Any, folder: str) -> None:
    assert main(["info", folder, "-t", "1"]) == 0
    assert "recommended    temperature 1.5, top_k 7 (--recommended" in capsys.readouterr().out
    assert main(["info", folder, "-t", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["recommended"] == {"temperature": 1.5, "top_k": 7}
    assert main(["info", str(toy.folder), "-t", "1"]) == 0
    assert "recommended    nothing\n" in capsys.readouterr().out


def test_a_chat_without_seed_draws_another_each_turn(toy: Any) -> None:
    lines, seen = iter(["hi", "/stats", "hi", "/stats"]), io.StringIO()

    def read() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    options: Any = {"temperature": 1.0, "draft": "none", "max_new_tokens": 4}
    Chat(toy.model, Dialogue(), options, read, io.StringIO(), seen).run()
    seeds = [line.split("seed ")[1].split(" ")[0] for line in seen.getvalue().splitlines() if "seed " in line]
    assert len(seeds) == len(set(seeds)) == 2
