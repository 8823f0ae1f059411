"""A peer's process as the driver sees it, with a worker that really runs and computes nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.command import measure
from benchmarks.peers.environment import (
    PeerError,
    environment,
    install_groups,
    last_words,
    make_environment,
    prepare,
    without_folders,
)
from benchmarks.peers.process import Limits, PeerProcess, Ready
from benchmarks.peers.roster import Peer
from benchmarks.peers.turns import PeerArm, Schedule, rounds, take_turns
from benchmarks.peers.workers.protocol import Answer, Question

WORKER = Path(__file__).with_name("fake_worker.py")
PLAN = Schedule([[1, 2], [7]], [0], 3, 2, 0.0, [5])


def _command(**spec: object) -> list[str]:
    return [sys.executable, str(WORKER), "serve", json.dumps(spec)]


def _request(arm: str = "plain") -> Question:
    return Question(arm, [1, 2], 3, [0])


@pytest.fixture
def process(tmp_path: Path) -> Iterator[PeerProcess]:
    found = PeerProcess(_command(), environment(1), tmp_path / "log.txt", Limits(30, 30))
    yield found
    found.close()


def test_a_worker_says_what_it_is_and_answers(process: PeerProcess) -> None:
    assert process.ask(_request()) == Answer([3, 4, 5], 0.5, 1.0)
    assert process.ready == Ready({"fake": "1"}, "counts")


@pytest.mark.parametrize(
    ("arm", "reason"),
    [
        ("dies", "its process ended with exit code 3: out of luck"),
        ("fails", "ValueError: no such arm"),
        (
            "babbles",
            (
                "said '{\"answer\": {\"ids\": null, \"ttft_seconds\": 0.5, \"decode_seconds\": 1.0}}\\n'"
                " where its answer was expected"
            ),
        ),
    ],
)  # fmt: skip
def test_a_failed_answer_gives_its_reason_and_the_next_one_a_new_process(
    process: PeerProcess, arm: str, reason: str
) -> None:
    """Would catch a peer whose one bad arm takes its other arms with it, and a late reply read as the next answer."""
    with pytest.raises(PeerError) as failure:
        process.ask(_request(arm))
    assert str(failure.value) == reason
    assert process.ask(_request()).ids == [3, 4, 5]


def test_a_worker_that_hangs_is_ended_and_another_one_loads(tmp_path: Path) -> None:
    process = PeerProcess(_command(), environment(1), tmp_path / "log.txt", Limits(30, 0.5))
    with pytest.raises(PeerError, match=r"did not answer in 0\.5 s"):
        process.ask(_request("hangs"))
    process.ready = None
    process.start()
    assert process.ready == Ready({"fake": "1"}, "counts")
    process.close()


def test_a_worker_that_cannot_load_is_tried_once(tmp_path: Path) -> None:
    process = PeerProcess(_command(load="hangs"), environment(1), tmp_path / "log.txt", Limits(0.5, 30))
    for _ in range(2):
        with pytest.raises(PeerError, match=r"did not load in 0\.5 s"):
            process.ask(_request())


def test_a_peer_that_breaks_is_listed_and_the_others_go_on(tmp_path: Path) -> None:
    good = Peer("good", "fp32", "", "", (), ("plain", "fails"))
    commands: dict[Peer, list[str] | str] = {
        good: _command(),
        Peer("broken", "fp32", "", "", ()): _command(load="dies"),
        Peer("absent", "fp32", "", "", ()): "the installation failed",
    }
    found = measure(commands, PLAN, environment(1), tmp_path)
    assert [(row.peer, row.arm, row.prompts, row.reason) for row in found] == [
        ("good", "plain", 2, ""),
        ("good", "fails", 0, "ValueError: no such arm"),
        ("broken", "plain", 0, "its process ended with exit code 3: out of luck"),
        ("absent", "plain", 0, "the installation failed"),
    ]
    assert found[0].tokens_per_second == pytest.approx(2.0)


class Scripted:
    """Answering with a pace of its own, and remembers who asked."""

    def __init__(self, seconds: float, asked: list[float]) -> None:
        self._seconds, self._asked = seconds, asked

    def ask(self, request: Question) -> Answer:
        self._asked.append(self._seconds)
        return Answer([1, 2], 0.1, self._seconds)


def test_a_slow_arm_answers_once_and_a_very_slow_one_every_fourth_prompt_only() -> None:
    asked: list[float] = []
    paces = {"plain": 1.0, "quick": 0.5, "slow": 4.5, "slower": 8.5}
    contenders = [PeerArm("p", arm, Scripted(seconds, asked)) for arm, seconds in paces.items()]
    take_turns(contenders, Schedule([[1]] * 5, [0], 2, 3, 0.0, [2]), lambda _: None)
    counts = {c.arm: {prompt: len(answers) for prompt, answers in c.answers.items()} for c in contenders}
    every = dict.fromkeys(range(5), 3)
    assert counts == {"plain": every, "quick": every, "slow": dict.fromkeys(range(5), 1), "slower": {0: 1, 4: 1}}
    assert len(asked) == 4 + 15 + 15 + 5 + 2  # a warm-up each


def test_everyone_begins_equally_often_and_every_other_round_goes_backwards() -> None:
    found = list(rounds(3, 2, 3))
    assert [(prompt, repeat) for prompt, repeat, _ in found] == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert [order for *_, order in found] == [[0, 1, 2], [2, 1, 0], [1, 2, 0], [0, 2, 1], [2, 0, 1], [1, 0, 2]]


def _peer(*requirements: str) -> Peer:
    return Peer("fake", "fp32", str(WORKER), "fake", requirements)


def test_a_model_is_prepared_once_until_what_it_is_made_with_changes(tmp_path: Path) -> None:
    spec = {"folder": str(tmp_path / "own"), "threads": 1}
    made = tmp_path / "own" / "model"
    seen = []
    for requirements, threads in ((("a==1",), 1), (("a==1",), 2), (("a==2",), 1)):
        prepare(_peer(*requirements), Path(sys.executable), spec | {"threads": threads})
        seen.append(made.read_text(encoding="utf-8"))
    assert seen == ["0", "0", "1"]


def test_a_failed_preparation_tells_the_workers_reason_and_leaves_nothing(tmp_path: Path) -> None:
    spec = {"folder": str(tmp_path / "own"), "threads": 1, "prepare": "fails"}
    with pytest.raises(PeerError, match="the conversion failed: ValueError: no such arm"):
        prepare(_peer(), Path(sys.executable), spec)
    assert not (tmp_path / "own").exists()


@pytest.mark.slow
def test_an_environment_is_made_once_and_a_failed_installation_is_a_reason(tmp_path: Path) -> None:
    """Without a network: nothing to install, and a requirement that no index is asked for."""
    python = make_environment(tmp_path, _peer())
    written = python.stat().st_mtime_ns
    assert make_environment(tmp_path, _peer()).stat().st_mtime_ns == written
    offline = Peer("fake", "fp32", "", "fake", ("no-such-package==1",), install_options=("--no-index",))
    with pytest.raises(PeerError, match="the installation failed: ERROR: No matching distribution"):
        make_environment(tmp_path, offline)
    with pytest.raises(PeerError):  # not taken for complete afterwards
        make_environment(tmp_path, offline)


def test_the_first_answer_to_a_prompt_is_to_one_not_seen_before() -> None:
    """Would catch a warm-up with a measured prompt, whose time to the first token a runtime that keeps it makes up."""
    seen: list[list[int]] = []

    class Listening:
        def ask(self, request: Question) -> Answer:
            seen.append(request.ids)
            return Answer([1, 2], 0.1, 1.0)

    take_turns([PeerArm("p", "plain", Listening())], PLAN, lambda _: None)
    assert seen == [[5], [1, 2], [1, 2], [7], [7]]


def test_folders_are_not_named_in_what_is_published() -> None:
    text = "no /home/me/cache/peers/a nor /home/me/b; /home/me2 stays"
    assert without_folders(text, Path("/home/me"), Path("/home/me/cache"), Path("/")) == (
        "no ~/peers/a nor ~/b; /home/me2 stays"
    )


def test_torch_is_installed_first_and_alone() -> None:
    assert install_groups(["a==1", "torch==2.13.0", "torchao==1"]) == [["torch==2.13.0"], ["a==1", "torchao==1"]]
    assert install_groups(["a==1"]) == [["a==1"]]
    assert install_groups([]) == []


def test_last_words_prefer_the_workers_error_to_pips_to_the_last_line() -> None:
    assert last_words('noise\n{"error": "KeyError: rope_type"}\n') == "KeyError: rope_type"
    assert last_words("ERROR: first\nERROR: second\nhint\n") == "ERROR: second"
    assert last_words("one\ntwo\n\n") == "two"
    assert last_words("") == ""
    assert last_words('{"error": "half a li') == '{"error": "half a li'
