"""benchmarks.commits: its ratio with hand-written numbers, and a toy decoded by two processes of this checkout."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks import commits
from benchmarks.peers.process import PeerProcess
from benchmarks.peers.turns import PeerArm
from benchmarks.peers.workers.protocol import Answer
from selfspec.errors import SelfSpecError

if TYPE_CHECKING:
    from tests.conftest import ToyMaker

ROOT = Path(__file__).resolve().parents[2]


def _side(seconds: list[list[float]], ids: tuple[int, ...] = (7, 8, 9)) -> PeerArm:
    """``seconds``: of all tokens after the first, [prompt][repeat]."""
    side = PeerArm("a commit", "none", PeerProcess([], {}, Path()))
    side.answers = {n: [Answer(list(ids), 0.1, s) for s in repeats] for n, repeats in enumerate(seconds)}
    return side


def test_a_new_commit_that_takes_half_the_time_is_twice_as_fast() -> None:
    found = commits.compare(_side([[2.0, 2.0, 9.0], [4.0, 4.0, 4.0]]), _side([[1.0, 1.0, 1.0], [2.0, 2.0, 0.1]]))
    assert found.ratio == pytest.approx(2.0)  # of medians: the disturbed 9.0 and 0.1 do not count
    assert (found.prompts, found.pairs, found.same_text) == (2, 6, 2)
    assert found.old_tokens_per_second == pytest.approx(2 / 3)  # two prompts in 1 s and 2 s a token
    assert found.new_tokens_per_second == pytest.approx(4 / 3)
    assert found.interval is not None
    assert found.interval.low <= 2.0 <= found.interval.high


def test_equal_commits_give_exactly_one() -> None:
    seconds = [[1.0, 1.1], [2.0, 2.2]]
    found = commits.compare(_side(seconds), _side(seconds))
    assert found.ratio == 1.0
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == (1.0, 1.0)


def test_other_text_is_counted() -> None:
    assert commits.compare(_side([[1.0], [1.0]]), _side([[1.0], [1.0]], ids=(7, 8, 6))).same_text == 0


def test_answers_of_one_token_have_no_speed() -> None:
    with pytest.raises(SelfSpecError, match="no speed"):
        commits.compare(_side([[1.0]], ids=(7,)), _side([[1.0]], ids=(7,)))


@pytest.mark.slow
def test_a_checkout_against_itself(make_toy: ToyMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two processes, each with the checkout's own selfspec; the same code gives the same text."""
    artifact, output = make_toy(exit_layers=(2, 4, 5), hot_vocab=256).folder, tmp_path / "found.json"
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("a b a b\nb c b\n", encoding="utf-8")
    arguments = ["--drafts", "none,prompt-lookup", "--prompts", str(prompts), "--repeats", "2", "--max-new-tokens", "6"]
    assert commits.main([str(ROOT), str(ROOT), str(artifact), *arguments, "-t", "1", "-o", str(output)]) == 0
    rows = json.loads(output.read_text(encoding="utf-8"))["rows"]
    assert [(row["draft"], row["prompts"], row["pairs"], row["same_text"]) for row in rows] == [
        ("none", 2, 4, 2),
        ("prompt-lookup", 2, 4, 2),
    ]
    assert "| prompt-lookup | 2" in capsys.readouterr().out


@pytest.mark.slow
def test_a_folder_that_is_no_checkout_is_refused(
    make_toy: ToyMaker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Would catch a comparison of the installed selfspec with itself."""
    artifact = make_toy(exit_layers=(2, 4, 5), hot_vocab=256).folder
    assert commits.main([str(tmp_path), str(ROOT), str(artifact), "-t", "1"]) == 1
    assert "is no checkout" in capsys.readouterr().err
