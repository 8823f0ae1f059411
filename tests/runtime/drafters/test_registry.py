"""A drafter is one module and one line: its name then works in every command and in Python, and in auto."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from selfspec.cli.main import main
from selfspec.errors import UsageError
from selfspec.models.manifest import Manifest
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.costs import Profile
from selfspec.runtime.drafters import registry
from selfspec.runtime.drafters.auto import AutoDrafter
from selfspec.runtime.drafters.base import Draft, Drafter, Round
from selfspec.runtime.drafters.free_arm import FreeArm
from selfspec.runtime.drafters.kind import Arm, DraftContext, DrafterKind
from selfspec.runtime.drafters.spec import parse
from selfspec.runtime.paths import FULL, DraftPath, draft_path
from selfspec.runtime.rates import CostModel
from selfspec.runtime.stack import Plan

if TYPE_CHECKING:
    from tests.conftest import Toy

THREADS = ("--threads", "1")


# The whole of a drafter that repeats the last token. It has an option, and an arm for auto.


@dataclass(frozen=True, slots=True)
class Options:
    tokens: int | None = None


class Repeat:
    def __init__(self, count: int) -> None:
        self._count = count

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        return Draft((conversation.tokens[-1],) * min(self._count, max_tokens))

    def observe(self, result: Round) -> None:
        pass


def _make(options: Options, context: DraftContext) -> Drafter:
    return Repeat(options.tokens or 2)


def _arms(context: DraftContext, costs: CostModel) -> Sequence[Arm]:
    return (FreeArm("repeat", Repeat(2), costs),)


KIND = DrafterKind("repeat", "repeats the last token", Options, _make, arms=_arms)


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """The drafter above is registered for one test."""
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    registry.register(KIND)


@pytest.fixture
def artifact(fp32: Toy) -> str:
    return str(fp32.folder)


@pytest.mark.usefixtures("known")
def test_it_drafts_from_python(fp32: Toy) -> None:
    plain = fp32.model.generate("The wind", max_new_tokens=12, draft="none", exact=True)
    found = fp32.model.generate("The wind", max_new_tokens=12, draft="repeat:tokens=3", exact=True)
    again = fp32.model.generate("The wind", max_new_tokens=12, draft="repeat", num_draft_tokens=3, exact=True)
    assert found.token_ids == again.token_ids == plain.token_ids
    assert found.stats.drafted_tokens == again.stats.drafted_tokens >= 9


@pytest.mark.usefixtures("known")
def test_it_drafts_from_the_command_line(capsys: pytest.CaptureFixture[str], artifact: str) -> None:
    argv = ["generate", artifact, "-p", "The wind", "--raw", "--json", "--max-new-tokens", "8", *THREADS]
    for spelling in (
        ["--draft", "repeat:tokens=3"],
        ["--draft", "repeat:3"],
        ["--draft=repeat", "--num-draft-tokens=3"],
    ):
        assert main([*argv, *spelling]) == 0
        assert json.loads(capsys.readouterr().out)["stats"]["drafted_tokens"] > 0
    with pytest.raises(SystemExit):
        main(["generate", "--help"])
    assert "repeat[:tokens=…]" in " ".join(capsys.readouterr().out.split())


@pytest.mark.usefixtures("known")
def test_it_is_compared_by_bench(capsys: pytest.CaptureFixture[str], artifact: str, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("The wind and the sea\n", encoding="utf-8")
    argv = [
        "bench",
        artifact,
        "-p",
        "0",
        "-n",
        "6",
        "-r",
        "1",
        "-o",
        "json",
        "--prompts",
        str(tmp_path / "prompts.txt"),
    ]
    assert main([*argv, "--draft", "repeat:tokens=3,prompt-lookup", *THREADS]) == 0
    drafts = {row["draft"] for row in json.loads(capsys.readouterr().out)["rows"]}
    assert {"repeat:tokens=3", "prompt-lookup"} <= drafts


@pytest.mark.usefixtures("known")
def test_it_drafts_in_chat(capsys: pytest.CaptureFixture[str], artifact: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"The wind\n/stats\n"), encoding="utf-8"))
    assert main(["chat", artifact, "--raw", "--draft", "repeat", "--max-new-tokens", "8", *THREADS]) == 0
    assert "acceptance" in "".join(capsys.readouterr())


@pytest.mark.usefixtures("known")
def test_auto_weighs_it(fp32: Toy) -> None:
    """It promises nothing at first; that auto holds it, and tries it where drafts cost nothing, is what counts."""
    steps = {1: 1.0, 2: 1.0001, 16: 1.0002}
    names = [path.name for path in registry.candidates(fp32.model.artifact.manifest)]
    measured = Profile(steps, dict.fromkeys(names, fp32.model.profile().paths[names[0]]), None)
    context = DraftContext(fp32.model.artifact.manifest, lambda: measured, 1, registry.kinds())
    auto = parse("auto").make(context)
    assert isinstance(auto, AutoDrafter)
    conversation = fp32.conversation()
    conversation.tokens[:] = [7]
    assert auto.propose(conversation, 4) == Draft((7, 7))
    assert auto.arm == "repeat"


def test_a_drafters_own_paths_are_measured(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stored profile that lacks them is measured again; no other file names the new path."""

    def whole(manifest: Manifest) -> tuple[DraftPath, ...]:
        return (draft_path("whole", Plan.layers(0, manifest.model.num_layers), FULL, manifest),)

    before = fp32.model.profile(refresh=True)
    assert fp32.model.stored_profile() == before
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    registry.register(DrafterKind("repeat", "all layers", Options, _make, candidates=whole))
    assert fp32.model.stored_profile() is None
    found = fp32.model.profile().paths["whole"]
    assert found.agreement == 1.0


def test_a_name_is_registered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    registry.register(KIND)
    with pytest.raises(UsageError, match="there is a drafter repeat already"):
        registry.register(KIND)
    for name in ("", "Repeat", "re:peat", "a=b", "a,b", "ä", "3skip", "-x"):
        with pytest.raises(UsageError, match="lower-case letters"):
            registry.register(DrafterKind(name, "", Options, _make))


def test_two_paths_of_one_name_are_refused(fp32: Toy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their measurements would be mixed. The same path from two drafters is measured once."""
    manifest = fp32.model.artifact.manifest
    before = registry.candidates(manifest)
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    registry.register(DrafterKind("again", "", Options, _make, candidates=lambda _: before[:1]))
    assert registry.candidates(manifest) == before
    other = draft_path(before[0].name, Plan.layers(0, 1), FULL, manifest)
    registry.register(DrafterKind("clash", "", Options, _make, candidates=lambda _: (other,)))
    with pytest.raises(UsageError, match="two drafters call different paths early-exit:layer=2"):
        registry.candidates(manifest)
