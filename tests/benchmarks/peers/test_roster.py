"""The list of peers: what a row of it could get wrong without anything failing before a long run."""

from pathlib import Path

import pytest

from benchmarks.peers.roster import GEMMA, MODELS, PEERS, PLAIN, SMOLLM2, Peer

WORKERS = Path(__file__).resolve().parents[3] / "benchmarks" / "peers" / "workers"


def named(peer: Peer) -> str:
    return peer.name


def test_every_name_stands_once() -> None:
    """Results are listed by name, and a worker's folder is its own."""
    names = [peer.name for peer in PEERS]
    assert sorted(set(names)) == sorted(names)


def test_peers_of_one_environment_ask_for_the_same() -> None:
    """Else the environment would be made anew for each of them, in every run."""
    asked: dict[str, set[tuple[str, ...]]] = {}
    for peer in PEERS:
        asked.setdefault(peer.environment, set()).add(peer.install_options + peer.requirements)
    assert [name for name, requirements in asked.items() if len(requirements) > 1] == []


def test_llama_cpp_runs_both_models_and_the_file_as_it_is_only_where_that_is_q4_1() -> None:
    models = {peer.name.removeprefix("llama.cpp "): peer.models for peer in PEERS if peer.name.startswith("llama.cpp")}
    assert models == {"F32": MODELS, "Q8_0": MODELS, "Q4_0": MODELS, "Q4_1": (SMOLLM2,)}
    assert GEMMA in MODELS


@pytest.mark.parametrize("peer", PEERS, ids=named)
def test_worker_exists_and_versions_are_pinned(peer: Peer) -> None:
    assert (WORKERS / peer.worker).is_file()
    assert peer.precision in ("fp32", "int8", "int4")
    assert peer.arms[0] == PLAIN
    assert [requirement for requirement in peer.requirements if "==" not in requirement] == []


@pytest.mark.parametrize("peer", [p for p in PEERS if any(r.startswith("torch=") for r in p.requirements)], ids=named)
def test_torch_comes_first(peer: Peer) -> None:
    """What depends on torch would bring another one."""
    assert peer.requirements[0] == "torch==2.13.0"
