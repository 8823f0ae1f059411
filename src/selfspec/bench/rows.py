"""The rows of a benchmark, made of its runs. Pure arithmetic: no model, no clock."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .bootstrap import ratio_interval

if TYPE_CHECKING:
    from ..runtime.drafters.base import Round
    from .runs import PromptRun, Run

PLAIN = "plain"
"""What all drafts are compared with. ``none`` in a list of drafts is plain decoding once more: it shows the noise."""
ALL = "all"


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``mean``, ``sd`` (None for one repeat) and ``median`` are tokens a second, over repeats.

    ``test``: 'pp512' is a prompt of 512 tokens, 'tg128' 128 plain steps behind one token, 'prompts' answers to
    ``prompts`` prompts of ``category``. ``tokens``: those of all repeats. ``roofline``: of the read bandwidth, the
    fraction that a plain step reaches. ``acceptance_by_position``: of the tokens drafted first, second, ... in a round,
    the share that was kept. ``draft_share``: of the rounds' time, that spent drafting. ``speed_up``: plain's time per
    token over this draft's, medians over repeats, prompts weighted by the length of plain's answer; ``speed_up_low``
    and ``speed_up_high`` bound it at 95 %, by bootstrap over prompts and repeats. ``same_text``: prompts of which every
    answer equals plain's, in turns that do not count too. Memory is the most that a run had, in bytes.
    """

    test: str
    draft: str
    category: str | None
    prompts: int | None
    repeats: int
    tokens: int
    mean: float
    sd: float | None
    median: float
    roofline: float | None = None
    speed_up: float | None = None
    speed_up_low: float | None = None
    speed_up_high: float | None = None
    acceptance_rate: float | None = None
    acceptance_by_position: tuple[float, ...] = ()
    tokens_per_round: float | None = None
    draft_share: float | None = None
    ttft_ms: float | None = None
    same_text: int | None = None
    peak_rss_bytes: int = 0
    pss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Answers:
    """One prompt: draft → its runs, one a repeat. The first draft is plain. ``unused``: runs whose time does not count,
    since something disturbed the machine; their text and their memory do."""

    category: str
    runs: Mapping[str, Sequence[PromptRun]]
    unused: Mapping[str, Sequence[PromptRun]] = field(default_factory=dict)

    def all_runs(self, draft: str) -> list[PromptRun]:
        return [*self.runs[draft], *self.unused.get(draft, ())]


@dataclass(frozen=True, slots=True)
class Sample:
    """One prompt, by its place among those that were kept, with one draft: seconds a token after the first, of each
    repeat that counts and of each that does not; ``tokens``: of plain's answer, after the first."""

    prompt: int
    category: str
    draft: str
    tokens: int
    seconds_per_token: tuple[float, ...]
    unused_seconds_per_token: tuple[float, ...] = ()


def samples(answers: Sequence[Answers]) -> tuple[Sample, ...]:
    """What the speed-ups are made of."""
    return tuple(
        Sample(
            prompt=number,
            category=found.category,
            draft=draft,
            tokens=found.runs[PLAIN][0].tokens,
            seconds_per_token=_paces(runs),
            unused_seconds_per_token=_paces(found.unused.get(draft, ())),
        )
        for number, found in enumerate(answers)
        for draft, runs in found.runs.items()
    )


def _paces(runs: Sequence[PromptRun]) -> tuple[float, ...]:
    return tuple(round(run.seconds_per_token, 7) for run in runs)


def speed_row(test: str, runs: Sequence[Run], roofline: float | None = None) -> Row:
    """The row of ``pp`` and ``tg``."""
    speeds = [tokens_per_second([run]) for run in runs]
    return Row(
        test=test,
        draft=PLAIN,
        category=None,
        prompts=None,
        repeats=len(runs),
        tokens=sum(run.tokens for run in runs),
        mean=statistics.fmean(speeds),
        sd=_deviation(speeds),
        median=statistics.median(speeds),
        roofline=roofline,
        peak_rss_bytes=max(run.peak_rss for run in runs),
        pss_bytes=_most_pss(runs),
    )


def prompt_rows(answers: Sequence[Answers], seed: int = 0) -> list[Row]:
    """A row for each category and draft, then those over all prompts, where that is another set."""
    categories = list(dict.fromkeys(found.category for found in answers))
    rows = [
        _prompt_row(c, d, [a for a in answers if a.category == c], seed) for c in categories for d in answers[0].runs
    ]
    if len(categories) > 1:
        rows += [_prompt_row(ALL, draft, answers, seed) for draft in answers[0].runs]
    return rows


def _prompt_row(category: str, draft: str, answers: Sequence[Answers], seed: int) -> Row:
    columns = [a.runs[draft] for a in answers]
    repeats = list(zip(*columns, strict=True))
    runs = [run for column in columns for run in column]
    all_runs = [run for a in answers for run in a.all_runs(draft)]
    speeds = [tokens_per_second(repeat) for repeat in repeats]
    rounds = [r for run in runs for r in run.rounds]
    drafted, seconds = sum(r.num_drafted for r in rounds), sum(r.seconds for r in rounds)
    compared = None if draft == PLAIN else speed_up(answers, draft)
    interval = None if compared is None else ratio_interval(*_times(answers, draft), seed)
    return Row(
        test="prompts",
        draft=draft,
        category=category,
        prompts=len(answers),
        repeats=len(repeats),
        tokens=sum(run.tokens for run in runs),
        mean=statistics.fmean(speeds),
        sd=_deviation(speeds),
        median=statistics.median(speeds),
        speed_up=compared,
        speed_up_low=None if interval is None else interval.low,
        speed_up_high=None if interval is None else interval.high,
        acceptance_rate=sum(r.num_accepted for r in rounds) / drafted if drafted else None,
        acceptance_by_position=acceptance_by_position(rounds),
        tokens_per_round=sum(run.tokens for run in runs) / len(rounds) if rounds else None,
        draft_share=sum(run.draft_seconds for run in runs) / seconds if seconds else None,
        ttft_ms=1000 * statistics.median(run.ttft_seconds for run in runs),
        same_text=None if draft == PLAIN else sum(_same(a, draft) for a in answers),
        peak_rss_bytes=max(run.peak_rss for run in all_runs),
        pss_bytes=_most_pss(all_runs),
    )


def speed_up(answers: Sequence[Answers], draft: str) -> float:
    """Plain's time per token over the draft's, as :class:`Row` says."""
    plain, own = (sum(map(statistics.median, times)) for times in _times(answers, draft))
    return plain / own


def _times(answers: Sequence[Answers], draft: str) -> tuple[list[list[float]], list[list[float]]]:
    """(plain's, the draft's) [prompt][repeat]: seconds that the tokens of plain's first answer take at the time per
    token of each run. Without ``exact`` the texts may differ."""

    def scaled(found: Answers, name: str) -> list[float]:
        tokens = found.runs[PLAIN][0].tokens
        return [tokens * run.seconds_per_token for run in found.runs[name]]

    return [scaled(found, PLAIN) for found in answers], [scaled(found, draft) for found in answers]


def acceptance_by_position(rounds: Iterable[Round]) -> tuple[float, ...]:
    """Of the tokens drafted at position 0, 1, ... of a round, the share that was kept."""
    drafted: list[int] = []
    kept: list[int] = []
    for found in rounds:
        missing = max(0, found.num_drafted - len(drafted))
        drafted += [0] * missing
        kept += [0] * missing
        for position in range(found.num_drafted):
            drafted[position] += 1
            kept[position] += position < found.num_accepted
    return tuple(k / d for k, d in zip(kept, drafted, strict=True))


def tokens_per_second(runs: Sequence[Run]) -> float:
    """Of several runs together."""
    return sum(run.tokens for run in runs) / sum(run.seconds for run in runs)


def _deviation(values: Sequence[float]) -> float | None:
    return statistics.stdev(values) if len(values) > 1 else None


def _most_pss(runs: Sequence[Run]) -> int | None:
    return max((run.pss for run in runs if run.pss is not None), default=None)


def _same(answers: Answers, draft: str) -> bool:
    return {run.token_ids for run in answers.all_runs(draft)} == {answers.runs[PLAIN][0].token_ids}
