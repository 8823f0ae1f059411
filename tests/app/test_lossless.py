"""The losslessness check says NO to what is broken on purpose. Toy models; tests/real has the real one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from selfspec import Model
from selfspec.bench.prompts import Prompt, prompt_ids
from selfspec.bench.runs import Conditions, Contender, PromptRun, run_prompt
from selfspec.check import lossless
from selfspec.check.comparison import best_gap, exits, parting
from selfspec.check.judge import NEAR_TIE, Check, CheckRow, Group, identity, judge, never
from selfspec.runtime import engine
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft, Drafter
from selfspec.runtime.drafters.model_path import PathDrafter
from selfspec.runtime.paths import exit_path
from selfspec.runtime.sampling import Floats, Sampling, choose
from selfspec.runtime.verify import Verdict

PROMPTS = (Prompt(1, "qa", "It is not the wind that"), Prompt(2, "rag", "what comes after it, and what comes"))
EXACT = Conditions(24, exact=True)


@pytest.fixture(scope="module")
def model(make_toy: Callable[..., Any]) -> Model:
    """The usual toy with the plainest of chat templates."""
    toy = make_toy(
        precision="fp32", exit_layers=(2, 4, 5), hot_vocab=256, chat_template="{{ messages[0].content }}"
    )  # fmt: skip
    assert toy.passes  # skips where exactness is not possible
    found: Model = toy.model
    return found


def _judge(model: Model, *checks: Check, conditions: Conditions = EXACT) -> list[CheckRow]:
    return list(judge(model, Group("test", conditions, PROMPTS, checks), lambda line: None))


def accept_everything(draft: Sequence[int], logits: Floats, sampling: Sampling, position: int, _: object) -> Verdict:
    """A verifier that believes the draft."""
    return Verdict((*draft, choose(logits[len(draft)], sampling, position + len(draft))), len(draft))


class WrongHiddenStates(PathDrafter):
    """Hands over hidden states that are not the target's."""

    def propose(self, conversation: Any, max_tokens: int) -> Draft:
        draft = super().propose(conversation, max_tokens)
        if draft.prefix is None:  # the last token is never drafted for
            return draft
        return replace(draft, prefix=replace(draft.prefix, hidden=-draft.prefix.hidden))


def _broken(plain: PromptRun) -> Drafter:
    return WrongHiddenStates(exit_path(2))


BROKEN = Contender("broken", _broken)


def test_every_check_of_a_sound_model_holds(model: Model) -> None:
    rows = list(lossless.check_model(model, "fp32", PROMPTS, EXACT.max_new_tokens))
    assert [row.failures for row in rows] == [()] * len(rows)
    assert {row.draft for row in rows} == {
        *(contender.name for contender in exits(model)), "prompt-lookup", "auto", "all layers", "always wrong",
    }  # fmt: skip


def test_drafts_that_are_all_right_or_all_wrong_leave_the_text_alone(model: Model) -> None:
    right, wrong = _judge(model, identity(model), never(model))
    assert (right.equal, wrong.equal) == (2, 2)
    assert right.accepted == right.judged > 0
    assert wrong.accepted == 0 < wrong.judged


def test_a_verifier_that_believes_the_draft_is_noticed(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "verify_matching", accept_everything)
    row, wrong = _judge(model, Check(exits(model)[0]), never(model))
    assert row.failures
    assert len(wrong.failures) == 3
    assert "where none should be" in wrong.failures[-1]


@pytest.mark.parametrize("near_ties", [False, True])
def test_a_drafter_with_wrong_hidden_states_is_noticed(model: Model, near_ties: bool) -> None:
    """Near ties are no excuse where plain was sure."""
    (row,) = _judge(model, Check(BROKEN, near_ties), conditions=replace(EXACT, exact=not near_ties))
    assert (row.equal, row.near_ties) == (0, 0 if near_ties else None)
    assert row.failures[0].startswith("prompt 1 (qa) parts from plain at token ")
    assert ("best logits" in row.failures[0]) == near_ties


def test_a_near_tie_is_counted_and_no_failure(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec.check.judge.best_gap", lambda model, prompt, plain, position: NEAR_TIE / 2)
    (row,) = _judge(model, Check(BROKEN, near_ties=True), conditions=Conditions(24))
    assert (row.equal, row.near_ties, row.failures) == (0, 2, ())


def test_acceptance_that_must_be_all_or_nothing_is_held_to_it(model: Model) -> None:
    shallow = Check(exits(model)[0], acceptance=1)
    rows = _judge(model, replace(identity(model), acceptance=0), replace(never(model), acceptance=1), shallow)
    assert [row.equal for row in rows] == [2, 2, 2]
    assert all("drafted tokens were accepted" in row.failures[0] for row in rows)


def test_the_gap_is_that_of_the_logits_that_plain_decoding_saw(model: Model) -> None:
    """At every position the token that plain chose is the best there, so the gap is measured from it."""
    plain = run_prompt(model, PROMPTS[0], Conditions(6))
    ids = prompt_ids(model.codec, PROMPTS[0])
    for position, token in enumerate(plain.token_ids):
        fresh = run_prompt(model, PROMPTS[0], Conditions(position + 1))
        assert fresh.token_ids[position] == token
        logits = _prefilled(model, [*ids, *plain.token_ids[:position]])
        others = [value for i, value in enumerate(logits.tolist()) if i != token]
        gap = float(logits[token]) - max(others)
        assert best_gap(model, PROMPTS[0], plain, position) == pytest.approx(gap, abs=1e-4)


def _prefilled(model: Model, ids: Sequence[int]) -> Floats:
    return Conversation(model.sessions).prefill(ids)


def test_answers_part_where_the_first_token_differs(model: Model) -> None:
    plain = run_prompt(model, PROMPTS[0], EXACT)
    other = replace(plain, token_ids=(*plain.token_ids[:3], -1, *plain.token_ids[4:]))
    assert parting(plain, plain) is None
    assert parting(plain, other) == 3
    assert parting(plain, replace(plain, token_ids=plain.token_ids[:4])) == 4


def test_the_last_line_says_no_and_so_does_the_exit_code(
    model: Model, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(engine, "verify_matching", accept_everything)
    monkeypatch.setattr(lossless, "ensure_artifact", lambda folder, precision, say, name: model.artifact.path)
    monkeypatch.setattr(lossless, "built_in_prompts", lambda: PROMPTS)
    assert lossless.main(["--precision", "int8", "--max-new-tokens", "12"]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[-1] == "lossless: NO"
    assert "FAILED" in out


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        (["--precision", "int3"], "--precision: unknown precision 'int3'"),
        (["--max-new-tokens", "1"], "--max-new-tokens 1"),
        (["--prompts", "nowhere.jsonl"], "nowhere.jsonl cannot be read"),
    ],
)
def test_usage_mistakes_are_one_sentence(
    arguments: list[str], found: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lossless.main([*arguments, "--artifacts", str(tmp_path)]) == 2
    err = capsys.readouterr().err
    assert found in err
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_a_prompt_beyond_the_window_is_added_where_there_is_a_window() -> None:
    assert lossless.beyond_window(None) == ()
    (prompt,) = lossless.beyond_window(512)
    assert len(prompt.text) == 8 * 512
    assert len(prompt.text.split()) > 512
