"""Drafted text is plain text, token for token, on the real weights: some of the built-in prompts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from selfspec import Model
from selfspec.bench.prompts import Prompt, built_in_prompts
from selfspec.bench.runs import Conditions, Contender
from selfspec.check import lossless
from selfspec.check.comparison import exits
from selfspec.check.judge import Check, Group, identity, judge
from selfspec.runtime.stack import AS_THEY_COME

pytestmark = [pytest.mark.real, pytest.mark.slow]

NEW_TOKENS = 12

ArtifactOf = Callable[..., Path]
ModelOf = Callable[..., Model]


def _shortest(model: Model, count: int) -> tuple[Prompt, ...]:
    return tuple(sorted(built_in_prompts(), key=lambda p: len(model.codec.encode(p.text)))[:count])


@pytest.mark.parametrize(("precision", "count"), [("fp32", 2), ("int4", 3)])
def test_built_in_prompts_are_lossless_with_every_drafter(real_model: ModelOf, precision: str, count: int) -> None:
    model = real_model(precision)
    rows = list(lossless.check_model(model, precision, _shortest(model, count), NEW_TOKENS))
    assert [row.failures for row in rows] == [()] * len(rows)
    drafts = {row.draft for row in rows}
    assert drafts == {*(c.name for c in exits(model)), "prompt-lookup", "auto", "all layers", "always wrong"}
    assert all(row.prompts == count and row.tokens > NEW_TOKENS for row in rows)


@pytest.mark.usefixtures("native_kernels")
def test_native_kernels_need_no_exact_for_the_same_text(real_model: ModelOf) -> None:
    """Their promise on real weights: a row has the same bits in a pass of one as in one of several."""
    model = real_model("int4", "native")
    assert model.exact_passes() == AS_THEY_COME
    prompts = _shortest(model, 4)
    group = Group(
        "native", Conditions(NEW_TOKENS), prompts, (identity(model), Check(Contender("lookup", "prompt-lookup")))
    )
    rows = list(judge(model, group, lambda line: None))
    assert [row.failures for row in rows] == [(), ()]


def test_the_command_uses_the_artifact_that_is_there_and_says_yes(
    real_artifact: ArtifactOf, real_model: ModelOf, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (prompt,) = _shortest(real_model("int4"), 1)
    path = tmp_path / "one.jsonl"
    path.write_text(json.dumps({"question_id": 1, "category": prompt.category, "turns": [prompt.text]}))
    folder = real_artifact("int4", "auto").parent
    options = ["--precision", "int4", "--max-new-tokens", "8", "--artifacts", str(folder)]
    assert lossless.main(["--prompts", str(path), *options]) == 0
    captured = capsys.readouterr()
    assert captured.out.splitlines()[-1] == "lossless: yes"
    assert "used as it is" in captured.err
