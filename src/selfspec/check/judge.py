"""What an answer must be next to plain's: equal token for token, or parted by a near tie where that is allowed.

Also two drafts whose fate is known beforehand: one that the full model always accepts, and one that it never does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ..bench.prompts import Prompt
from ..bench.runs import PLAIN_DECODING, Conditions, Contender, PromptRun, run_prompt
from ..runtime.conversation import Conversation
from ..runtime.drafters.base import Draft, Drafter, Round
from ..runtime.drafters.model_path import PathDrafter, Threshold
from ..runtime.model import Model
from ..runtime.paths import FULL, draft_path
from ..runtime.stack import Plan
from .comparison import best_gap, judged_tokens, parting

NEAR_TIE = 1e-3
"""Plain's two best logits are closer than this: fp32 attention at one row may then choose the other."""

_DRAFT_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Check:
    """A contender and what must hold of it.

    ``near_ties``: its text may part from plain's at a near tie. ``acceptance``: the only rate allowed, 0 or 1.
    """

    contender: Contender
    near_ties: bool = False
    acceptance: int | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """Checks on the same prompts, under the same conditions. ``mode`` says in a word or two what those are."""

    mode: str
    conditions: Conditions
    prompts: tuple[Prompt, ...]
    checks: tuple[Check, ...]


@dataclass(frozen=True, slots=True)
class CheckRow:
    """How one check went. ``failures`` is empty where everything held."""

    draft: str
    prompts: int
    tokens: int
    equal: int
    near_ties: int | None
    judged: int
    accepted: int
    failures: tuple[str, ...]


def identity(model: Model) -> Check:
    """A draft by all layers and the whole head: the full model itself, so it must always be right."""

    def make(plain: PromptRun) -> Drafter:
        manifest = model.artifact.manifest
        whole = draft_path("all layers", Plan.layers(0, manifest.model.num_layers), FULL, manifest)
        return PathDrafter(whole, _DRAFT_TOKENS, rule=Threshold(0.0))

    return Check(Contender("all layers", make), acceptance=1)


def never(model: Model) -> Check:
    """A draft that must always be wrong."""

    def make(plain: PromptRun) -> Drafter:
        return WrongGuess(plain, model.artifact.manifest.model.vocab_size)

    return Check(Contender("always wrong", make), acceptance=0)


class WrongGuess:
    """Knows plain's answer and drafts anything but that."""

    def __init__(self, plain: PromptRun, vocab_size: int) -> None:
        self._plain = plain
        self._vocab_size = vocab_size

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        start = len(conversation.tokens) - self._plain.prompt_tokens
        right = self._plain.token_ids[start : start + min(max_tokens, _DRAFT_TOKENS)]
        return Draft(tuple((token + 1) % self._vocab_size for token in right))

    def observe(self, result: Round) -> None:
        """It stays wrong whatever happens."""


def judge(model: Model, group: Group, progress: Callable[[str], None]) -> Iterator[CheckRow]:
    """A row for every check of ``group``.

    Args:
        progress: told what is being answered, now and then.
    """

    def answers(contender: Contender, plains: Sequence[PromptRun | None]) -> list[PromptRun]:
        found = []
        for i, (prompt, plain) in enumerate(zip(group.prompts, plains, strict=True), start=1):
            progress(f"{group.mode} {contender.name}: {i} of {len(group.prompts)}")
            found.append(run_prompt(model, prompt, group.conditions, contender, plain))
        return found

    plains = answers(PLAIN_DECODING, [None] * len(group.prompts))
    for check in group.checks:
        yield _row(model, check, group.prompts, plains, answers(check.contender, plains))


def _row(
    model: Model, check: Check, prompts: Sequence[Prompt], plains: Sequence[PromptRun], others: Sequence[PromptRun]
) -> CheckRow:
    failures: list[str] = []
    near_ties = 0
    for prompt, plain, other in zip(prompts, plains, others, strict=True):
        position = parting(plain, other)
        if position is None:
            continue
        gap = best_gap(model, prompt, plain, position) if check.near_ties else None
        if gap is not None and gap < NEAR_TIE:
            near_ties += 1
        else:
            failures.append(_parted(prompt, position, gap))
    equal = len(plains) - near_ties - len(failures)
    judged = sum(map(judged_tokens, others))
    accepted = sum(found.num_accepted for other in others for found in other.rounds)
    if check.acceptance is not None and (not judged or accepted != check.acceptance * judged):
        wanted = "all" if check.acceptance else "none"
        failures.append(f"{accepted} of {judged} drafted tokens were accepted, where {wanted} should be")
    return CheckRow(
        draft=check.contender.name,
        prompts=len(plains),
        tokens=sum(len(other.token_ids) for other in others),
        equal=equal,
        near_ties=near_ties if check.near_ties else None,
        judged=judged,
        accepted=accepted,
        failures=tuple(failures),
    )


def _parted(prompt: Prompt, position: int, gap: float | None) -> str:
    where = f"prompt {prompt.question_id} ({prompt.category}) parts from plain at token {position}"
    return where if gap is None else f"{where}, where plain's two best logits are {gap:.2g} apart"
