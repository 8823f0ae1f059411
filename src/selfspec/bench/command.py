"""``selfspec bench``: prompt processing and generation apart, as llama-bench has them, and drafts next to plain
decoding, alternating in one process. Progress goes to stderr, the report alone to stdout."""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from .. import __version__
from ..cli.options import load_model
from ..cli.output import carried, print_csv
from ..errors import UsageError
from ..models.manifest import WEIGHTS_NAME, Manifest
from ..runtime.costs import Profile
from ..runtime.drafters.early_exit import exits
from ..runtime.drafters.spec import parse, parse_list
from ..runtime.model import Model, notify_stderr
from ..runtime.path_policy import best_path
from .calm import Calm, used
from .contest import answer_in_turns, warm_up
from .machine import machine
from .plot import check_plot, write_plot
from .prediction import Measured, Speeds, parse_speeds, predict, prompt_operations
from .prompts import Prompt, built_in_prompts, chosen, load_prompts, prompt_ids
from .report import ArtifactFacts, Costs, Report
from .roofline import COUNTED, roofline_fraction
from .rows import Answers, Row, prompt_rows, samples, speed_row, tokens_per_second
from .runs import (
    Conditions,
    Contender,
    Run,
    random_ids,
    run_generation,
    run_prefill,
    step_probe,
    time_prompt,
)
from .table import WRITERS
from .work import works

_BANDWIDTHS = 3  # of which the best is the machine's: nothing reads faster than it can


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """``prompt_tokens`` and ``new_tokens``: 0 leaves the test out. ``drafts``: next to plain, over ``prompts``, each as
    ``--draft`` has it. ``exact``: everything is run so, plain too. ``predict``: the machine to predict for."""

    prompt_tokens: int
    new_tokens: int
    repeats: int
    drafts: tuple[str, ...] = ()
    prompts: tuple[Prompt, ...] = ()
    exact: bool = False
    predict: Speeds | None = None


def main(args: argparse.Namespace) -> None:
    """Measure and print what the command line asks for.

    Raises:
        UsageError: a setting cannot work; nothing was measured.
    """
    settings = settings_of(args)
    if args.plot is not None:
        check_plot(args.plot)
    print(end="", flush=True)  # an output that is closed is found out now and not after minutes
    report = bench(load_model(args), settings)
    print_table(WRITERS[args.output](report), args.output)
    if args.plot is not None:
        write_plot(report, args.plot)


def print_table(text: str, form: str) -> None:
    """Writes one of the ``WRITERS``' texts to standard output, where machines read it without a character lost."""
    if form == "csv":
        print_csv(text)
    else:
        print(text if form == "md" else carried(text, sys.stdout), end="", flush=True)


def settings_of(args: argparse.Namespace) -> BenchSettings:
    """What the arguments say, as far as it can be checked without a model.

    Raises:
        UsageError: they cannot work.
    """
    for flag, value, least in (("-p", args.prompt_tokens, 0), ("-n", args.new_tokens, 0), ("-r", args.repeats, 1)):
        if value < least:
            raise UsageError(f"{flag} {value}: it must be {least} or more.")
    drafts = _drafts(args.draft)
    if not args.prompt_tokens and not args.new_tokens:
        raise UsageError("-p 0 and -n 0 leave nothing to measure; give one of them.")
    if drafts and args.new_tokens < 3:
        raise UsageError(f"-n {args.new_tokens}: with --draft it must be 3 or more, or nothing is drafted.")
    if args.prompts is not None and not drafts:
        raise UsageError("--prompts has no effect without --draft; say what to compare, for instance --draft auto.")
    if args.plot is not None and not drafts:
        raise UsageError("--plot draws speed-ups, and there are none without --draft; say what to compare.")
    predict = None if args.predict is None else parse_speeds(args.predict)
    if predict is not None and args.exact:
        raise UsageError("--predict goes by passes that are not padded, and --exact pads them; leave one of them out.")
    prompts: tuple[Prompt, ...] = ()
    if drafts:
        prompts = built_in_prompts() if args.prompts is None else chosen(load_prompts(args.prompts))
    return BenchSettings(args.prompt_tokens, args.new_tokens, args.repeats, drafts, prompts, args.exact, predict)


def _drafts(text: str | None) -> tuple[str, ...]:
    specs = () if text is None else parse_list(text)
    if len(set(specs)) != len(specs):
        raise UsageError(f"--draft {text}: a drafter is named twice; plain decoding is always there to compare with.")
    return tuple(map(str, specs))


def bench(model: Model, settings: BenchSettings) -> Report:
    """Everything that ``settings`` ask for; then the machine, so that its buffer is in no figure of memory.

    Raises:
        UsageError: it does not fit the model's context, or there is no such exit.
        RuntimeSetupError: ``exact`` cannot be had here.
    """
    for draft in settings.drafts:
        parse(draft).check(model.artifact.manifest)
    if settings.predict is not None and model.artifact.manifest.model.moe is not None:
        raise UsageError("--predict knows no experts: how many a pass reads depends on the text. Leave it out.")
    _check_fits(model, settings)
    passes = works(model.artifact)
    read_bytes = passes.step.weight_bytes
    profile = model.profile() if settings.drafts or settings.predict else model.stored_profile()
    calm = Calm(step_probe(model, exact=settings.exact), notify_stderr)
    prefill, generation = _speed_runs(model, settings, calm)
    answers = _answers(model, settings, calm)
    wide = time_prompt(model) if settings.predict else None
    (tried,) = calm.turns("read bandwidth", 1, _BANDWIDTHS, lambda *_: machine(model.sessions.threads))
    found = max((turn.result for turn in tried), key=lambda facts: facts.bandwidth)
    rows: list[Row] = []
    if prefill:
        rows.append(speed_row(f"pp{settings.prompt_tokens}", prefill))
    if generation:
        step = statistics.median(run.seconds / run.tokens for run in generation)
        fraction = roofline_fraction(read_bytes, step, found.bandwidth)
        rows.append(speed_row(f"tg{settings.new_tokens}", generation, fraction))
    if answers:
        rows += prompt_rows(answers)
    manifest = model.artifact.manifest
    facts = ArtifactFacts(
        name=manifest.name,
        precision=manifest.precision,
        kernels=model.sessions.kernels_name,
        digest=model.artifact.digest,
        weights_bytes=manifest.files[WEIGHTS_NAME].size,
        step_bytes=read_bytes,
        step_bytes_counted=COUNTED,
    )
    costs = None if profile is None else _costs(profile, manifest)
    prediction = None
    if settings.predict is not None and profile is not None and wide is not None:
        here = Speeds(found.bandwidth, prompt_operations(passes, wide[0]) / wide[1])
        speeds = _speed(settings.prompt_tokens, prefill), _speed(settings.new_tokens, generation)
        measured = Measured(profile, *speeds, answers)
        prediction = predict(measured, passes, here, settings.predict)
    return Report(
        __version__,
        datetime.now(UTC).isoformat(timespec="seconds"),
        settings.exact,
        facts,
        found,
        costs,
        tuple(rows),
        calm.facts(),
        prediction,
        samples(answers),
    )


def _speed(tokens: int, runs: Sequence[Run]) -> tuple[int, float] | None:
    """(tokens, tokens a second) of a test that was run; the median of its repeats."""
    return (tokens, statistics.median(tokens_per_second([run]) for run in runs)) if runs else None


def _check_fits(model: Model, settings: BenchSettings) -> None:
    context = model.artifact.manifest.model.context_length
    for flag, value, most in (("-p", settings.prompt_tokens, context), ("-n", settings.new_tokens, context - 2)):
        if value > most:
            raise UsageError(f"{flag} {value}: the model's context holds {context} tokens; give at most {most}.")
    for prompt in settings.prompts:
        count = len(prompt_ids(model.codec, prompt))
        if count + settings.new_tokens > context:
            raise UsageError(
                f"prompt {prompt.question_id} ({prompt.category}) has {count} tokens, and with -n "
                f"{settings.new_tokens} more it does not fit the model's context of {context}; leave it out of the "
                "file, or give a smaller -n."
            )


def _speed_runs(model: Model, settings: BenchSettings, calm: Calm) -> tuple[list[Run], list[Run]]:
    """(prompts, generations), after one of each that does not count."""
    prefill: list[Run] = []
    generation: list[Run] = []
    conversation = model.conversation(exact=settings.exact)
    if settings.prompt_tokens:
        ids = random_ids(model, settings.prompt_tokens)
        run_prefill(conversation, ids)
        name = f"pp{settings.prompt_tokens}"
        (turns,) = calm.turns(name, 1, settings.repeats, lambda *_: run_prefill(conversation, ids))
        prefill = used(turns)
    if settings.new_tokens:
        (first,) = random_ids(model, 1)
        run_generation(conversation, first, 1)
        name, count = f"tg{settings.new_tokens}", settings.new_tokens
        (turns,) = calm.turns(name, 1, settings.repeats, lambda *_: run_generation(conversation, first, count))
        generation = used(turns)
    return prefill, generation


def _answers(model: Model, settings: BenchSettings, calm: Calm) -> list[Answers]:
    """Every prompt with every draft."""
    if not settings.prompts:
        return []
    conditions = Conditions(settings.new_tokens, exact=settings.exact)
    contenders = [Contender(draft, draft) for draft in settings.drafts]
    warm_up(model, settings.prompts[0], conditions, contenders)
    return answer_in_turns(model, settings.prompts, conditions, contenders, settings.repeats, calm, notify_stderr)


def _costs(profile: Profile, manifest: Manifest) -> Costs:
    best = best_path(profile, [path.name for path in exits(manifest)])
    return Costs(
        verify={rows: profile.verify_cost(rows) for rows in profile.step_seconds},
        draft={name: profile.draft_cost(name) for name in profile.paths},
        best_exit=None if best is None else best.path,
    )
