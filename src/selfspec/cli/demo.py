"""``make demo``: a real model exported into blocks, then the same prompts decoded plainly and self-speculatively.

Prints for people: machine, export, one answer as it comes, a table of speeds per precision, and whether the drafted
text is the plain text.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import onnxruntime as ort

from ..bench.calm import Calm
from ..bench.contest import answer_in_turns
from ..bench.prompts import Prompt, built_in_prompts, messages, spread
from ..bench.rows import ALL, Answers, Row, prompt_rows
from ..bench.runs import Conditions, Contender, run_prompt, step_probe
from ..check.artifacts import DEFAULT_FOLDER, ensure_artifact
from ..check.comparison import parting
from ..runtime.costs import Profile
from ..runtime.drafters.early_exit import exits
from ..runtime.machine_key import cpu_name
from ..runtime.model import Model, load
from ..runtime.path_policy import PathChoice, best_path
from ..runtime.stack import AS_THEY_COME
from ..runtime.threads import use_threads
from .command import Parser, run_command

PRECISIONS = ("fp32", "int4")

_PROG = "selfspec.cli.demo"
_WIDTH = 88
_NUM_PROMPTS = 6  # one a category
_NEW_TOKENS = 64
_REPEATS = 3
_FIRST_QUESTION = 7  # shown whole, before anything is timed
_WHAT = f"""
selfspec demo: a small language model drafts for itself. SmolLM2-135M is exported into blocks of
layers, as {" and as ".join(PRECISIONS)}; then the same prompts are answered plainly, one token a pass, and with
drafts: cheap guesses of several tokens that one pass of the full model checks at once.
""".strip()

_READING = """
speed-up is plain's time per token divided by the draft's; accepted is the share of drafted tokens
that were right. prompt-lookup copies what followed the same words earlier: free, but it needs
repetition. early-exit runs only the first layers of the same weights, which pays for models trained
to exit early; SmolLM2-135M was not. auto weighs the costs measured here and drafts only what
promises to pay. The tables are made without --exact. ONNX Runtime's kernels may then round a row
differently beside other rows, so that drafted texts may differ from plain ones; with --exact they
must not. Native kernels treat every row alike, so that --exact changes nothing there.
""".strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m selfspec.cli.demo``."""
    parser = Parser(prog=_PROG, description="Export a real model, then decode plainly and self-speculatively.")
    parser.add_argument(
        "--artifacts", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="where exports are kept (artifacts)"
    )
    args = parser.parse_args(argv)
    identical: list[bool] = []
    code = run_command(lambda: identical.extend(_run(args)), _PROG)
    return code or (0 if all(identical) else 1)


def _run(args: argparse.Namespace) -> Iterator[bool]:
    started = time.perf_counter()
    _say(f"{_WHAT}\nmachine: {_machine()}")
    _title("Export, and what a pass costs here")
    models = {precision: _ready(args.artifacts, precision) for precision in PRECISIONS}
    prompts = built_in_prompts()
    _title(f"One answer, as it comes ({PRECISIONS[0]}, draft auto)")
    _show_answer(models[PRECISIONS[0]], next(p for p in prompts if p.question_id == _FIRST_QUESTION))
    for precision, model in models.items():
        yield _compare(model, precision, spread(prompts, _NUM_PROMPTS))
    _title("Reading the tables")
    _say(_READING)
    _title("What next")
    _say(_next_steps(models[PRECISIONS[-1]].artifact.path, time.perf_counter() - started))


def _ready(folder: Path, precision: str) -> Model:
    """Exported, loaded and measured."""
    model = load(ensure_artifact(folder, precision, _say), notify=lambda text: _say(textwrap.fill(text, _WIDTH)))
    profile = model.profile()
    _say(textwrap.indent(_costs(model, profile), "  "))
    return model


def _compare(model: Model, precision: str, prompts: Sequence[Prompt]) -> bool:
    _title(
        f"{precision}: {len(prompts)} prompts, {_NEW_TOKENS} new tokens at most, medians of {_REPEATS} alternating runs"
    )
    contenders = _drafts(model)
    _table(model, prompts, contenders)
    return _report_identical(model, precision, prompts, contenders)


def _best_exit(model: Model) -> PathChoice | None:
    return best_path(model.profile(), [path.name for path in exits(model.artifact.manifest)])


def _drafts(model: Model) -> list[Contender]:
    drafts = [Contender("prompt-lookup", "prompt-lookup"), Contender("auto", "auto")]
    if _best_exit(model) is not None:
        drafts.append(Contender("early-exit", "early-exit"))
    return drafts


def _costs(model: Model, profile: Profile) -> str:
    text = (
        f"kernels: {model.sessions.kernels_name}; a pass over one token takes {1000 * profile.step_seconds[1]:.1f} ms, "
        f"over four tokens "
        f"{profile.verify_cost(4):.2f} times as long"
    )
    found = _best_exit(model)
    if found is not None:
        layers = model.artifact.manifest.model.num_layers
        cost = profile.draft_cost(found.path)
        text += f"; a draft by {found.path} of {layers} layers costs {cost:.2f} of a pass"
    return textwrap.fill(text, _WIDTH)


def _table(model: Model, prompts: Sequence[Prompt], contenders: Sequence[Contender]) -> None:
    """A prompt's rows as soon as it is answered, then those over all."""
    _say(f"{'prompt':15} {'draft':14} {'tok/s':>7} {'speed-up':>9} {'accepted':>9} {'tokens per round':>17}")
    conditions, answers = Conditions(_NEW_TOKENS), list[Answers]()
    calm = Calm(step_probe(model), lambda text: None)
    for prompt in prompts:
        found = answer_in_turns(model, [prompt], conditions, contenders, _REPEATS, calm, _say)
        _print_rows(prompt.category, prompt_rows(found))
        answers += found
    _say("")
    _print_rows("all prompts", prompt_rows([replace(found, category=ALL) for found in answers]))


def _print_rows(label: str, rows: Sequence[Row]) -> None:
    for i, row in enumerate(rows):
        speed_up = 1.0 if row.speed_up is None else row.speed_up
        accepted = "-" if row.acceptance_rate is None else f"{row.acceptance_rate:.0%}"
        _say(
            f"{label if i == 0 else '':15} {row.draft:14} {row.median:7.1f} {speed_up:8.2f}x "
            f"{accepted:>9} {row.tokens_per_round or 0.0:17.2f}"
        )


def _report_identical(model: Model, precision: str, prompts: Sequence[Prompt], contenders: Sequence[Contender]) -> bool:
    """Where rows have the same bits whatever stands beside them, equal text can be demanded: under ``exact``, or in any
    case where the kernels are so by themselves."""
    alike = model.exact_passes() == AS_THEY_COME
    conditions = Conditions(_NEW_TOKENS, exact=not alike)
    parted = []
    for prompt in prompts:
        plain = run_prompt(model, prompt, conditions)
        drafted = [(c.name, parting(plain, run_prompt(model, prompt, conditions, c))) for c in contenders]
        parted += [f"{prompt.category}, {name}: token {at}" for name, at in drafted if at is not None]
    count = len(prompts) * len(contenders)
    how = "without --exact" if alike else "with --exact"
    _say(f"\n{precision} {how}: {count - len(parted)} of {count} drafted answers equal plain's, token for token")
    for where in parted:
        _say(f"  parts from plain: {where}")
    _say(f"identical: {'NO' if parted else 'yes'}")
    return not parted


def _show_answer(model: Model, prompt: Prompt) -> None:
    lines = [wrapped for line in prompt.text.split("\n") for wrapped in textwrap.wrap(line, _WIDTH - 2) or [""]]
    _say("\n".join(f"> {line}".rstrip() for line in lines) + "\n")
    stream = model.stream(messages=messages(prompt), draft="auto")
    column = 0
    for token in stream:
        text = token.text
        if column + len(text) > _WIDTH and text.startswith(" "):
            text = f"\n{text[1:]}"
        column = len(text) - text.rfind("\n") - 1 if "\n" in text else column + len(text)
        print(text, end="", flush=True)
    stats = stream.result.stats
    _say(
        f"\n\n{stats.generated_tokens} tokens in {stats.rounds} passes, {stats.tokens_per_second:.1f} tok/s; "
        f"{stats.accepted_tokens} of {stats.drafted_tokens} drafted tokens were right"
    )


def _next_steps(artifact: Path, seconds: float) -> str:
    program = Path(sys.executable).with_name("selfspec")
    command = os.path.relpath(program) if program.exists() else "selfspec"
    return (
        f"  {command} generate {artifact} -p 'Give me three tips for staying healthy.'\n"
        f"  {command} profile {artifact}\n\n"
        f"Done in {seconds:.0f} s."
    )


def _machine() -> str:
    name = re.split(r" (?=avx|amx|asimd|sve|i8mm)", cpu_name())[0]
    return f"{name}, {use_threads(None)} threads, ONNX Runtime {ort.__version__}"


def _title(text: str) -> None:
    _say(f"\n{text}\n{'-' * len(text)}")


def _say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
