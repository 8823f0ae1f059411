"""Prompts answered by several drafters in turns: how bench and the demo measure speed beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..runtime.model import Model
from .calm import Calm, in_turn
from .prompts import Prompt
from .rows import Answers
from .runs import PLAIN_DECODING, Conditions, Contender, PromptRun, run_prompt


def warm_up(model: Model, prompt: Prompt, conditions: Conditions, contenders: Sequence[Contender]) -> None:
    """An answer by each that does not count."""
    for contender in (PLAIN_DECODING, *contenders):
        run_prompt(model, prompt, conditions, contender)


def answer_in_turns(
    model: Model,
    prompts: Sequence[Prompt],
    conditions: Conditions,
    contenders: Sequence[Contender],
    repeats: int,
    calm: Calm,
    say: Callable[[str], None],
) -> list[Answers]:
    """Every prompt, answered plainly and by every contender until ``repeats`` turns were undisturbed.

    Args:
        contenders: beside plain decoding, each with a name of its own.
        say: told which prompts are left out, since an answer of theirs has nothing to time.
    """
    rivals = [PLAIN_DECODING, *contenders]

    def turn(number: int, repeat: int) -> dict[str, PromptRun]:
        order = [rivals[index] for index in in_turn(len(rivals), repeat + number)]
        return {rival.name: run_prompt(model, prompts[number], conditions, rival) for rival in order}

    kept: list[Answers] = []
    found = calm.turns(f"{len(prompts)} prompts", len(prompts), repeats, turn)
    for prompt, all_turns in zip(prompts, found, strict=True):
        if all(answer.tokens > 0 for own in all_turns for answer in own.result.values()):
            runs, unused = (
                {rival.name: [own.result[rival.name] for own in all_turns if own.used is which] for rival in rivals}
                for which in (True, False)
            )
            kept.append(Answers(prompt.category, runs, unused))
        else:
            say(f"prompt {prompt.question_id} is left out: an answer of one token has no speed.")
    return kept
