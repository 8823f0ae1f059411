"""The command line: ``selfspec generate | info | profile``. Text on stdout, all else on stderr."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from . import __version__
from .errors import SelfSpecError, UsageError
from .runtime.drafting import DRAFTERS
from .runtime.generation import TokenStream
from .runtime.model import DEFAULT_MAX_NEW_TOKENS, Model, load
from .runtime.stats import Stats, peak_rss_bytes

_INTERRUPTED = 130


class Parser(argparse.ArgumentParser):
    """argparse, but a mistake is one sentence and not the whole usage."""

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message}. See {self.prog} --help.", file=sys.stderr)
        raise SystemExit(UsageError.exit_code)


def run_command(command: Callable[[], None], prog: str) -> int:
    """Run ``command``; library errors become one sentence and their exit code."""
    try:
        command()
        sys.stdout.flush()
    except SelfSpecError as error:
        print(f"{prog}: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print(f"\n{prog}: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except BrokenPipeError:  # the reader (head, less) has gone; keep Python from complaining at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``selfspec``."""
    args = _parser().parse_args(argv)
    return run_command(lambda: args.command(args), f"selfspec {args.name}")


def export_main(argv: Sequence[str] | None = None) -> int:
    """Entry point of ``selfspec-export``."""
    from . import export_cli

    return export_cli.main(argv)


def _parser() -> Parser:
    parser = Parser(prog="selfspec", description="Run a small language model that drafts for itself.")
    parser.add_argument("--version", action="version", version=f"selfspec {__version__}")
    commands = parser.add_subparsers(dest="name", required=True, metavar="COMMAND")
    _add_generate(commands)
    for name, function, text in (
        ("info", _info, "Say what an artifact holds, and what was measured of it on this machine."),
        ("profile", _profile, "Measure an artifact on this machine and keep the result."),
    ):
        sub = commands.add_parser(name, help=text, description=text)
        _add_model(sub)
        sub.add_argument("--json", action="store_true", help="print one JSON object")
        sub.set_defaults(command=function)
    return parser


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="ARTIFACT", help="folder made by selfspec-export")
    parser.add_argument("--threads", type=int, help="threads of ONNX Runtime (default: the physical cores)")


def _add_generate(commands: Any) -> None:
    text = "Generate text. Statistics go to stderr."
    sub = commands.add_parser("generate", help=text, description=text)
    _add_model(sub)
    sub.add_argument("-p", "--prompt", required=True, metavar="TEXT", help="the prompt; - reads it from stdin")
    sub.add_argument("--raw", action="store_true", help="no chat template, even where the model has one")
    sub.add_argument("--draft", choices=DRAFTERS, default="auto", help="how to draft (default: auto)")
    sub.add_argument("--exit-layer", type=int, metavar="K", help="draft with the first K layers (with early-exit)")
    sub.add_argument("--num-draft-tokens", type=int, metavar="N", help="longest draft of a round")
    sub.add_argument(
        "--max-new-tokens", type=int, default=DEFAULT_MAX_NEW_TOKENS, metavar="N",
        help=f"how many tokens to generate at most (default: {DEFAULT_MAX_NEW_TOKENS})",
    )  # fmt: skip
    sub.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default: 0)")
    sub.add_argument("--top-p", type=float, default=1.0, help="sample from the smallest set this likely (default: 1)")
    sub.add_argument("--seed", type=int, default=0, help="of sampling (default: 0)")
    sub.add_argument(
        "--exact",
        action="store_true",
        help="the same output bit for bit whatever drafts, at the price of padded passes",
    )
    sub.add_argument("--json", action="store_true", help="print text, token ids and statistics as one JSON object")
    sub.set_defaults(command=_generate)


def _generate(args: argparse.Namespace) -> None:
    prompt = _read_stdin() if args.prompt == "-" else args.prompt
    if not prompt:
        raise UsageError("the prompt is empty; give some text with -p, or on stdin with -p -.")
    model = load(args.artifact, threads=args.threads)
    chat = model.codec.has_chat_template and not args.raw
    stream = model.stream(
        None if chat else prompt,
        messages=[{"role": "user", "content": prompt}] if chat else None,
        max_new_tokens=args.max_new_tokens,
        draft=args.draft,
        exit_layer=args.exit_layer,
        num_draft_tokens=args.num_draft_tokens,
        temperature=args.temperature,
        top_p=args.top_p,
        seed=args.seed,
        exact=args.exact,
    )
    (_print_json if args.json else _print_text)(stream)


def _read_stdin() -> str:
    try:
        return sys.stdin.buffer.read().decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not UTF-8 text ({error}).") from error


def _print_text(stream: TokenStream) -> None:
    try:
        for token in stream:
            print(token.text, end="", flush=True)
    finally:
        print(flush=True)
        result = stream.result
        print(statistics_line(result.stats, result.finish_reason), file=sys.stderr)


def _print_json(stream: TokenStream) -> None:
    for _ in stream:
        pass
    result = stream.result
    data = {
        "text": result.text,
        "token_ids": result.token_ids,
        "finish_reason": result.finish_reason,
        "stats": result.stats.to_dict() | {"peak_rss_bytes": peak_rss_bytes()},
    }
    print(json.dumps(data, ensure_ascii=False))


def statistics_line(stats: Stats, finish_reason: str) -> str:
    """One generation in one line."""
    return (
        f"prompt {stats.prompt_tokens} tokens, TTFT {1000 * stats.ttft_seconds:.0f} ms | "
        f"{stats.generated_tokens} tokens ({finish_reason}), {stats.tokens_per_second:.1f} tok/s | "
        f"{stats.rounds} rounds, acceptance rate {stats.acceptance_rate:.2f} "
        f"({stats.accepted_tokens} of {stats.drafted_tokens}), {stats.tokens_per_round:.2f} tokens per round | "
        f"peak RSS {peak_rss_bytes() / 1e6:.0f} MB"
    )


def _info(args: argparse.Namespace) -> None:
    model = load(args.artifact, threads=args.threads)
    manifest, profile = model.artifact.manifest, model.stored_profile()
    if args.json:
        data = asdict(manifest) | {"profile": None if profile is None else profile.to_dict()}
        print(json.dumps(data, ensure_ascii=False))
        return
    config, quantization = manifest.model, manifest.quantization
    size = sum(facts.size for facts in manifest.files.values())
    hot = sum(stop - start for start, stop in manifest.head.hot_ranges)
    stored = "float32" if quantization.bits == 32 else (
        f"{quantization.bits} bit, embedding and head {quantization.head_bits} bit, blocks of {quantization.block_size}"
    )  # fmt: skip
    rows = {
        "name": f"{manifest.name} ({config.model_type}), {size / 1e6:.0f} MB",
        "layers": f"{config.num_layers} of width {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.num_kv_heads} key/value heads",
        "vocabulary": f"{config.vocab_size} tokens, {hot} of them hot",
        "context": f"{config.context_length} tokens",
        "weights": f"{stored}; from {quantization.source}",
        "exit layers": ", ".join(map(str, manifest.exit_layers)) or "none",
        "graphs": f"{len(manifest.units)} blocks, for {manifest.target}",
        "chat template": "yes" if model.codec.has_chat_template else "no",
        "made by": ", ".join(f"{k} {v}" for k, v in manifest.producer.items()),
        "profile": "none yet on this machine; selfspec profile makes one" if profile is None else "measured, see below",
    }
    for key, value in rows.items():
        print(f"{key:14} {value}")
    if profile is not None:
        _print_profile(model)


def _profile(args: argparse.Namespace) -> None:
    model = load(args.artifact, threads=args.threads)
    model.profile(refresh=True)
    if args.json:
        print(json.dumps(model.profile().to_dict()))
    else:
        _print_profile(model)


def _print_profile(model: Model) -> None:
    profile = model.profile()
    print(f"one-row pass   {1000 * profile.step_seconds[1]:.2f} ms ({1 / profile.step_seconds[1]:.1f} tok/s plain)")
    print("V(m)           " + "  ".join(f"{m}: {profile.verify_cost(m):.2f}" for m in profile.step_seconds))
    for k, agreement in profile.exit_agreement.items():
        print(
            f"exit {k:<9} costs {profile.draft_cost(k):.2f} of a pass, predicts {agreement:.2f} of the model's tokens"
        )
    rows = profile.invariant_rows
    print(f"exact          {'not possible here' if rows is None else f'passes padded to {rows} row(s)'}")
