"""Speed of drafts next to plain decoding: alternating runs in one process, medians of time per token."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ..check.comparison import Answer, Conditions, Contender, answer
from ..runtime.model import Model
from .prompts import Prompt

C = TypeVar("C")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Timing:
    """One or more prompts with one draft. ``seconds`` is what ``tokens`` tokens take, by the time per token measured.

    ``tokens`` is the length of plain's answer for every draft: without ``exact`` the answers themselves may differ.
    """

    draft: str
    tokens: int
    seconds: float
    rounds: int
    decoded_tokens: int
    drafted_tokens: int
    accepted_tokens: int

    @property
    def tokens_per_second(self) -> float:
        return self.tokens / self.seconds if self.seconds else 0.0

    @property
    def acceptance_rate(self) -> float:
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def tokens_per_round(self) -> float:
        return self.decoded_tokens / self.rounds if self.rounds else 0.0


def alternate(
    model: Model, prompt: Prompt, conditions: Conditions, contenders: Sequence[Contender], repeats: int
) -> list[Timing]:
    """A timing for each contender, of which the first is plain decoding; they take turns."""
    answers = take_turns(contenders, repeats, lambda contender: answer(model, prompt, conditions, contender))
    tokens = max(0, len(answers[0][0].token_ids) - 1)
    return [_timing(contender, tokens, runs) for contender, runs in zip(contenders, answers, strict=True)]


def take_turns(contenders: Sequence[C], repeats: int, run: Callable[[C], T]) -> list[list[T]]:
    """What ``run`` gives for each contender, ``repeats`` times.

    They take turns, so that a noisy moment of the machine hits all alike.
    """
    results: list[list[T]] = [[] for _ in contenders]
    for repeat in range(repeats):
        for index in turns(len(contenders), repeat):
            results[index].append(run(contenders[index]))
    return results


def turns(contenders: int, round_number: int) -> list[int]:
    """Who comes when. Every other round goes backwards, and then another one begins: each comes first as often, and
    behind each of its neighbours."""
    order = [(round_number // 2 + turn) % contenders for turn in range(contenders)]
    return order[::-1] if round_number % 2 else order


def _timing(contender: Contender, tokens: int, runs: Sequence[Answer]) -> Timing:
    stats = [run.stats for run in runs]
    return Timing(
        draft=contender.name,
        tokens=tokens,
        seconds=tokens * statistics.median(run.seconds_per_token for run in runs),
        rounds=sum(s.rounds for s in stats),
        decoded_tokens=sum(s.generated_tokens - 1 for s in stats),
        drafted_tokens=sum(s.drafted_tokens for s in stats),
        accepted_tokens=sum(s.accepted_tokens for s in stats),
    )


def total(timings: Sequence[Timing]) -> Timing:
    """The same draft over several prompts."""
    return Timing(
        draft=timings[0].draft,
        tokens=sum(t.tokens for t in timings),
        seconds=sum(t.seconds for t in timings),
        rounds=sum(t.rounds for t in timings),
        decoded_tokens=sum(t.decoded_tokens for t in timings),
        drafted_tokens=sum(t.drafted_tokens for t in timings),
        accepted_tokens=sum(t.accepted_tokens for t in timings),
    )
