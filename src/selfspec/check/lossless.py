"""``make lossless``: drafted text against plain text, token for token, for every drafter and precision.

Exports the real model where need be, answers the same prompts with every drafter, and prints a row for each; the last
line says ``lossless: yes`` or ``lossless: NO``. The rules are in judge.py.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..bench.prompts import Prompt, built_in_prompts, chosen, load_prompts, spread
from ..bench.runs import Conditions, Contender
from ..cli.command import Parser, run_command
from ..errors import UsageError, unknown_name
from ..runtime.artifact import open_artifact
from ..runtime.model import Model, load, notify_stderr
from .artifacts import DEFAULT_FOLDER, MODEL, ensure_artifact
from .comparison import exits, with_fewer_experts
from .judge import Check, CheckRow, Group, identity, judge, never

PRECISIONS = ("fp32", "int8", "int4")

_PROG = "selfspec.check.lossless"
_QUANTISED_PROMPTS = 10
_FEW_PROMPTS = 6  # one a category: for sampling, the identity draft and the draft that is always wrong
_QUICK_TOKENS = 32
_BEYOND_WINDOW = 10_000_000  # a question id that no set has
_TEMPERATURE = 0.8
_SEED = 7
_HEADER = f"{'precision':9}  {'mode':11}  {'draft':13}  prompts  tokens  equal  near ties  accepted"


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``python -m selfspec.check.lossless``."""
    args = _parser().parse_args(argv)
    rows: list[CheckRow] = []
    started = time.perf_counter()
    code = run_command(lambda: rows.extend(_run(args)), _PROG)
    if code:
        return code
    notify_stderr(f"{time.perf_counter() - started:.0f} s in all")
    lossless = all(not row.failures for row in rows)
    print(f"lossless: {'yes' if lossless else 'NO'}")
    return 0 if lossless else 1


def _parser() -> Parser:
    parser = Parser(prog=_PROG, description="Compare drafted text with plain text, token for token. Takes a while.")
    parser.add_argument(
        "--model", default=MODEL, metavar="MODEL", help=f"installed weights or a folder (default: {MODEL})"
    )
    parser.add_argument(
        "--prompts", type=Path, metavar="FILE", help="Spec-Bench's jsonl, or a text a line (default: our own)"
    )
    parser.add_argument("--precision", default=",".join(PRECISIONS), metavar="P,P,...", help="default: fp32,int8,int4")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="default: 96, or 32 with --quick")
    parser.add_argument("--quick", action="store_true", help="one prompt a category and few tokens")
    parser.add_argument(
        "--artifacts", type=Path, default=DEFAULT_FOLDER, metavar="FOLDER", help="where exports are kept (artifacts)"
    )
    return parser


def _run(args: argparse.Namespace) -> Iterator[CheckRow]:
    precisions = _precisions(args.precision)
    tokens = _tokens(args)
    prompts = built_in_prompts() if args.prompts is None else chosen(load_prompts(args.prompts))
    if args.quick:
        prompts = spread(prompts, _FEW_PROMPTS)
    paths = {
        precision: ensure_artifact(args.artifacts, precision, notify_stderr, args.model) for precision in precisions
    }
    prompts = (*prompts, *beyond_window(open_artifact(paths[precisions[0]]).manifest.model.sliding_window))
    print(
        f"{args.model}: {len(prompts)} prompts, {tokens} new tokens at most, compared with plain decoding\n\n{_HEADER}"
    )
    for precision, path in paths.items():
        yield from check_model(load(path), precision, prompts, tokens)
    print()


def beyond_window(sliding_window: int | None) -> tuple[Prompt, ...]:
    """A prompt that the model's sliding layers cannot see whole: our own, one behind the other."""
    if sliding_window is None:
        return ()
    texts = [prompt.text for prompt in built_in_prompts()]
    characters = 8 * sliding_window  # more than any tokenizer needs for that many tokens of prose
    repeated = "\n\n".join(texts * (1 + characters // sum(map(len, texts))))
    return (Prompt(_BEYOND_WINDOW, "summarization", repeated[:characters]),)


def _precisions(text: str) -> list[str]:
    names = list(dict.fromkeys(part.strip() for part in text.split(",")))
    for name in names:
        if name not in PRECISIONS:
            raise UsageError(f"--precision: {unknown_name('precision', name, PRECISIONS)}")
    return names


def _tokens(args: argparse.Namespace) -> int:
    if args.max_new_tokens is None:
        return _QUICK_TOKENS if args.quick else 96
    if args.max_new_tokens < 2:
        raise UsageError(f"--max-new-tokens {args.max_new_tokens}: it must be 2 or more, or nothing is drafted.")
    return int(args.max_new_tokens)


def check_model(model: Model, precision: str, prompts: Sequence[Prompt], max_new_tokens: int) -> Iterator[CheckRow]:
    """Judge every drafter of one artifact; prints each row as soon as it is known."""
    for group in groups(model, precision, prompts, max_new_tokens):
        for row in judge(model, group, _progress):
            _progress("")
            _print_row(precision, group.mode, row)
            yield row


def groups(model: Model, precision: str, prompts: Sequence[Prompt], max_new_tokens: int) -> Iterator[Group]:
    """What is checked: greedy, at a temperature, and drafts that must always or never be accepted."""
    contenders = [*exits(model), *with_fewer_experts(model)]
    contenders += [Contender("prompt-lookup", "prompt-lookup"), Contender("auto", "auto")]
    equal = tuple(Check(contender) for contender in contenders)
    exact = Conditions(max_new_tokens, exact=True)
    if precision == "fp32":
        yield Group("exact", exact, tuple(prompts), equal)
        near = tuple(Check(contender, near_ties=True) for contender in contenders)
        yield Group("not exact", Conditions(max_new_tokens), tuple(prompts), near)
    elif model.sessions.kernels is not None:  # native: equal whether exact is asked for or not, and at no cost
        yield Group("not exact", Conditions(max_new_tokens), tuple(prompts), equal)
        yield Group("exact", exact, spread(prompts, _QUANTISED_PROMPTS), equal)
    else:
        fewer = spread(prompts, _QUANTISED_PROMPTS)
        beyond = (p for p in prompts if p.question_id == _BEYOND_WINDOW and p not in fewer)
        yield Group("exact", exact, (*fewer, *beyond), equal)
    few = spread(prompts, _FEW_PROMPTS)
    sampled = Conditions(max_new_tokens, exact=True, temperature=_TEMPERATURE, seed=_SEED)
    yield Group(f"exact T={_TEMPERATURE}", sampled, few, equal)
    yield Group("exact", exact, few, (identity(model), never(model)))


def _print_row(precision: str, mode: str, row: CheckRow) -> None:
    near_ties = "-" if row.near_ties is None else row.near_ties
    accepted = f"{row.accepted / row.judged:.1%}" if row.judged else "-"
    print(
        f"{precision:9}  {mode:11}  {row.draft:13}  {row.prompts:7}  {row.tokens:6}  {row.equal:5}  "
        f"{near_ties:>9}  {accepted:>8}{'  FAILED' if row.failures else ''}"
    )
    for failure in row.failures:
        print(f"  {failure}")
    sys.stdout.flush()


def _progress(text: str) -> None:
    """One line on a terminal's stderr that the next one replaces; nothing where stderr is a file."""
    if sys.stderr.isatty():
        print(f"\r{text:<60}\r", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
