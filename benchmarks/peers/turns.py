"""Who answers when: every arm of every peer in turn, so that a noisy moment of the machine hits all alike."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from selfspec.bench.calm import in_turn

from .environment import PeerError
from .roster import PLAIN
from .workers.protocol import Answer, Question

_ONE_REPEAT = 4  # times slower than the fastest plain: one repeat, which is as long as all of that one's
_FEW_PROMPTS = 8  # times slower: one prompt of _EACH too
_EACH = 4


class Answering(Protocol):
    def ask(self, request: Question) -> Answer: ...


@dataclass
class PeerArm:
    """An arm of a peer, and what it answered: prompt number → answers, in time; or ``reason``, why it does not."""

    peer: str
    arm: str
    process: Answering
    answers: dict[int, list[Answer]] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Schedule:
    """``prompts``: token ids; ``warm_up``: another prompt, so that the first answer to each of them is one to a prompt
    not seen before, whatever a runtime keeps. ``pause``: seconds between answers, in which the last one's threads stop
    spinning."""

    prompts: Sequence[Sequence[int]]
    eos: Sequence[int]
    max_new_tokens: int
    repeats: int
    pause: float
    warm_up: Sequence[int]


def seconds_per_token(answer: Answer) -> float | None:
    """After the first token; None where there is no other."""
    return answer.decode_seconds / (len(answer.ids) - 1) if len(answer.ids) > 1 else None


def take_turns(contenders: Sequence[PeerArm], plan: Schedule, say: Callable[[str], None]) -> None:
    """Fills in ``answers`` or ``reason``. The answer to the warm-up is not counted; it shows which arms
    are slow."""
    pace = {}
    for number, contender in enumerate(contenders):
        answer = _ask(contender, plan, plan.warm_up)
        if answer is not None:
            pace[number] = seconds_per_token(answer) or 0.0
        say(f"{contender.peer}, {contender.arm}: {contender.reason or 'ready'}")
    fastest = min((s for n, s in pace.items() if contenders[n].arm == PLAIN), default=0.0)
    once = {number for number, seconds in pace.items() if seconds > _ONE_REPEAT * fastest > 0}
    few = {number for number, seconds in pace.items() if seconds > _FEW_PROMPTS * fastest > 0}
    for prompt, repeat, order in rounds(len(contenders), len(plan.prompts), plan.repeats):
        if repeat == 0:
            say(f"prompt {prompt + 1} of {len(plan.prompts)}")
        for number in order:
            if (repeat and number in once) or (prompt % _EACH and number in few):
                continue
            answer = _ask(contenders[number], plan, plan.prompts[prompt])
            if answer is not None:
                contenders[number].answers.setdefault(prompt, []).append(answer)


def rounds(contenders: int, prompts: int, repeats: int) -> Iterator[tuple[int, int, list[int]]]:
    """(prompt, repeat, order of the contenders)."""
    for number in range(prompts * repeats):
        yield number // repeats, number % repeats, in_turn(contenders, number)


def _ask(contender: PeerArm, plan: Schedule, prompt: Sequence[int]) -> Answer | None:
    if contender.reason:
        return None
    time.sleep(plan.pause)
    request = Question(contender.arm, list(prompt), plan.max_new_tokens, list(plan.eos))
    try:
        return contender.process.ask(request)
    except PeerError as failure:
        contender.reason = str(failure)
        contender.answers.clear()
        return None
