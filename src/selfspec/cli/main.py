"""The command line: ``selfspec generate | chat | bench | info | profile | verify-artifact``. Text on stdout, all else
on stderr."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import __version__
from ..errors import ArtifactError, UsageError, one_line
from ..runtime.artifact import compare_files
from ..runtime.drafters.spec import grammar
from ..runtime.generation import TokenStream
from ..runtime.model import Model
from ..runtime.stats import peak_rss_bytes
from .command import Parser, run_command
from .options import (
    add_model,
    add_options,
    context_sentence,
    load_model,
    logprobs_of,
    options_of,
    statistics_line,
    template_arguments,
)
from .output import carried, print_json


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``selfspec``."""
    args = build_parser().parse_args(argv)
    return run_command(lambda: args.command(args), args.parser.prog, args.parser)


def build_parser() -> Parser:
    parser = Parser(prog="selfspec", description="Run a small language model that drafts for itself.")
    parser.add_argument("--version", action="version", version=f"selfspec {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    _add_generate(commands)
    _add_chat(commands)
    _add_bench(commands)
    for name, function, text in (
        ("info", _info, "Say what an artifact holds, which kernels it uses and why, and what was measured of it here."),
        ("profile", _profile, "Measure an artifact on this machine and keep the result."),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        add_model(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(command=function)
    text = "Compare every byte of an artifact with what was exported."
    sub = commands.add_parser("verify-artifact", help=text, description=text)
    sub.add_argument("artifact", metavar="ARTIFACT", help="folder made by selfspec-export")
    sub.set_defaults(command=_verify_artifact)
    for sub in commands.choices.values():
        sub.set_defaults(parser=sub)
    return parser


def _add_generate(commands: Any) -> None:
    text = "Generate text. Statistics go to stderr."
    sub = commands.add_parser("generate", help=text, description=text)
    add_model(sub)
    sub.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="the prompt; - reads it from stdin")
    add_options(sub, recommended=False)
    sub.add_argument(
        "--logprobs", type=int, metavar="N", help="tell every token's log-probability and the N best ones'"
    )
    sub.add_argument("--json", action="store_true", help="print text, token ids and statistics as one JSON object")
    sub.set_defaults(command=_generate)


def _add_chat(commands: Any) -> None:
    text = "Talk with a model: one line a message. /help names the commands."
    sub = commands.add_parser("chat", help=text, description=text)
    add_model(sub)
    add_options(sub, recommended=True)
    sub.add_argument("--system", metavar="TEXT", help="what the model is told before the conversation")
    sub.set_defaults(command=_chat)


def _add_bench(commands: Any) -> None:
    text = "Measure speed: prompt and generation apart, and with --draft drafts next to plain decoding."
    sub = commands.add_parser("bench", help=text, description=text)
    add_model(sub)
    for flags, default, words in (
        (("-p", "--prompt-tokens"), 512, "tokens of the prompt that is timed; 0: none"),
        (("-n", "--new-tokens"), 128, "tokens generated in a run, with --draft at most; 0: none"),
        (("-r", "--repeats"), 5, "runs of each kind that count; a disturbed machine runs up to twice as many"),
    ):
        sub.add_argument(*flags, type=int, default=default, metavar="N", help=f"{words} (default: {default})")
    sub.add_argument(
        "-o", "--output", choices=("md", "csv", "json", "jsonl"), default="md", help="form of the table (default: md)"
    )
    sub.add_argument(
        "--draft",
        metavar="D,D,...",
        help=f"compare these drafters with plain decoding, in turns: {grammar()}",
    )
    sub.add_argument(
        "--prompts",
        type=Path,
        metavar="FILE",
        help="for --draft: Spec-Bench's jsonl, or a text a line (default: our own)",
    )
    sub.add_argument("--exact", action="store_true", help="run everything as generate --exact does, plain too")
    sub.add_argument(
        "--predict",
        metavar="BANDWIDTH_GBS,INT8_GOPS",
        help="what to expect on a machine of this bandwidth and arithmetic, marked as predicted, with its error here",
    )
    sub.add_argument("--plot", type=Path, metavar="FILE", help="draw it too: .png, .svg or .pdf (needs selfspec[plot])")
    sub.set_defaults(command=_bench)


def _bench(args: argparse.Namespace) -> None:
    from ..bench import command

    command.main(args)


def _chat(args: argparse.Namespace) -> None:
    from . import chat

    chat.main(args)


def _generate(args: argparse.Namespace) -> None:
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    if not prompt:
        raise UsageError("the prompt is empty; give some text with -p, or on stdin with -p -.")
    model = load_model(args)
    chat = model.codec.has_chat_template and not args.raw
    stream = model.stream(
        None if chat else prompt,
        messages=[{"role": "user", "content": prompt}] if chat else None,
        **template_arguments(args, chat),
        **{**options_of(args, model), "logprobs": args.logprobs},
    )
    (_print_json if args.json else _print_text)(model, stream)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text ({error}).") from error


def _print_text(model: Model, stream: TokenStream) -> None:
    try:
        for token in stream:
            print(token.text, end="", flush=True)
    finally:
        print(flush=True)
        result = stream.result
        for entry in logprobs_of(result, model.codec):
            best = ", ".join(f"{_quoted(top['text'])} {top['logprob']:.3f}" for top in entry["top_logprobs"])
            print(f"{_quoted(entry['text'])} {entry['logprob']:.3f}{best and f' | {best}'}", file=sys.stderr)
        if result.finish_reason == "context":
            print(f"{context_sentence(model.artifact.manifest.model.context_length)}.", file=sys.stderr)
        print(statistics_line(result), file=sys.stderr)


def _quoted(text: str) -> str:
    return carried(json.dumps(text, ensure_ascii=False), sys.stderr)


def _print_json(model: Model, stream: TokenStream) -> None:
    for _ in stream:
        pass
    result = stream.result
    data: dict[str, Any] = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stop_string": result.stop_string,
        "seed": result.seed,
        "stats": result.stats.to_dict() | {"peak_rss_bytes": peak_rss_bytes()},
    }
    if result.logprobs is not None:
        data["logprobs"] = logprobs_of(result, model.codec)
    print_json(data)


def _info(args: argparse.Namespace) -> None:
    from . import info

    info.main(args)


def _profile(args: argparse.Namespace) -> None:
    from .info import print_profile

    model = load_model(args)
    profile = model.profile(refresh=True)
    if args.json:
        print_json(profile.to_dict())
    else:
        print_profile(profile, model.artifact.manifest)


def _verify_artifact(args: argparse.Namespace) -> None:
    wrong = 0
    for name, problem in compare_files(args.artifact):
        print(f"{name}: {one_line(problem) if problem else 'ok'}", flush=True)
        wrong += problem is not None
    if wrong:
        raise ArtifactError(f"{wrong} file(s) of {args.artifact} are not what was exported; see above.")
