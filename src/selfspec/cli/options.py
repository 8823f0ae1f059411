"""What ``selfspec generate`` and ``selfspec chat`` have in common: their options, and what they say of an answer."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, cast

from ..errors import UsageError
from ..runtime.drafters.spec import grammar
from ..runtime.generation import Generation
from ..runtime.model import DEFAULT_MAX_NEW_TOKENS, GenerationOptions, Model, load, notify_stderr
from ..runtime.recommended import applied, described
from ..runtime.sampling import Sampling, SamplingOptions
from ..runtime.stats import Stats, peak_rss_bytes
from ..runtime.text import TextCodec


def add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("artifact", metavar="ARTIFACT", help="folder made by selfspec-export")
    parser.add_argument(
        "-t", "--threads", type=int,
        help="threads of ONNX Runtime (default: the physical cores, or what a container's quota pays for)",
    )  # fmt: skip


def load_model(args: argparse.Namespace) -> Model:
    """What :func:`add_model` has read, loaded; its notices name flags."""
    return load(args.artifact, threads=args.threads, notify=lambda text: notify_stderr(args.parser.spelled(text)))


def add_options(parser: argparse.ArgumentParser, *, recommended: bool) -> None:
    """Everything that :class:`GenerationOptions` has a command-line word for.

    Args:
        recommended: whether the model's makers are followed unless told otherwise.
    """
    parser.add_argument("--raw", action="store_true", help="no chat template, even where the model has one")
    parser.add_argument(
        "--chat-template-kwargs", type=_json_object, metavar="JSON",
        help="what the model's chat template reads beside the messages, such as '{\"enable_thinking\": false}'",
    )  # fmt: skip
    parser.add_argument(
        "--tools", type=Path, metavar="FILE", help="functions that the model may call: a JSON list of their schemas"
    )
    parser.add_argument(
        "--draft", default="auto", metavar="NAME[:KEY=VALUE,...]", help=f"how to draft: {grammar()} (default: auto)"
    )
    parser.add_argument("--exit-layer", type=int, metavar="K", help="the same as --draft early-exit:layer=K")
    parser.add_argument("--draft-experts", type=int, metavar="N", help="the same as the key experts of --draft")
    parser.add_argument("--num-draft-tokens", type=int, metavar="N", help="the same as the key tokens of --draft")
    parser.add_argument(
        "--max-new-tokens", type=int, default=DEFAULT_MAX_NEW_TOKENS, metavar="N",
        help=f"how many tokens to generate at most (default: {DEFAULT_MAX_NEW_TOKENS})",
    )  # fmt: skip
    parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it; may be repeated")
    for flag, kind, default, text in (
        ("--temperature", float, 0.0, "0 is greedy"),
        ("--top-k", int, 0, "sample from the K most likely tokens; 0: from all"),
        ("--top-p", float, 1.0, "sample from the smallest set this likely"),
        ("--min-p", float, 0.0, "drop tokens less likely than this share of the best one's probability"),
        ("--repetition-penalty", float, 1.0, "weakens tokens of prompt and output; 1: off"),
        ("--presence-penalty", float, 0.0, "taken from the logits of tokens of the output; 0: off"),
    ):
        parser.add_argument(flag, type=kind, metavar="X", help=f"{text} (default: {default})")
    parser.add_argument(
        "--seed", type=int, metavar="N", help="draw the same tokens again (default: another each time, and printed)"
    )
    parser.add_argument(
        "--recommended", action=argparse.BooleanOptionalAction, default=recommended,
        help="sample as the model's makers recommend; flags that are given win "
        f"(default: {'yes' if recommended else 'no'})",
    )  # fmt: skip
    parser.add_argument(
        "--exact",
        action="store_true",
        help="the same output bit for bit whatever drafts, at the price of padded passes",
    )


def _json_object(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r} is no JSON ({error})") from error
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f'{text!r} is no JSON object, such as {{"enable_thinking": false}}')
    return value


def template_arguments(args: argparse.Namespace, chat: bool) -> dict[str, Any]:
    """What is for the chat template, as :meth:`Model.stream` takes it.

    Raises:
        UsageError: there is something, and no chat template is used; or the tools cannot be read.
    """
    found = {"tools": _read_tools(args.tools), "chat_template_kwargs": args.chat_template_kwargs}
    given = {name: value for name, value in found.items() if value is not None}
    for name in given:
        if not chat:
            raise UsageError(f"`{name}` is for the model's chat template, and none is used here.", name)
    return given


def _read_tools(path: Path | None) -> Any:
    if path is None:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:  # UnicodeDecodeError too
        raise UsageError(f"`tools` {path}: it is no JSON ({error}).", "tools") from error


def options_of(args: argparse.Namespace, model: Model) -> GenerationOptions:
    """What :func:`add_options` has read, with what the model's makers recommend beside it where that is wanted.

    Raises:
        UsageError: a setting cannot be.
        ArtifactError: what is recommended cannot be.
    """
    names = SamplingOptions.__optional_keys__
    given = cast(SamplingOptions, {name: value for name in names if (value := getattr(args, name)) is not None})
    followed = SamplingOptions()
    if args.recommended:
        followed = applied(model.recommended, given)
        _tell_recommended(args, model, followed)
    others: GenerationOptions = {
        "max_new_tokens": args.max_new_tokens,
        "draft": args.draft,
        "exit_layer": args.exit_layer,
        "num_draft_tokens": args.num_draft_tokens,
        "draft_experts": args.draft_experts,
        "stop": args.stop,
        "exact": args.exact,
    }
    return cast(GenerationOptions, {**others, **followed, **given})


def _tell_recommended(args: argparse.Namespace, model: Model, followed: SamplingOptions) -> None:
    if Sampling.of({**followed, "seed": 0}) != Sampling():
        notify_stderr(
            f"sampling as the model's makers recommend: {described(followed)}; --no-recommended turns that off."
        )
    elif not args.parser.get_default("recommended") and not model.recommended:
        notify_stderr("the model's makers recommend nothing, so --recommended has no effect.")


def statistics_line(result: Generation) -> str:
    """One generation in one line."""
    stats = result.stats
    experts = f", {stats.experts_per_round:.1f} experts per round" if stats.touched_experts else ""
    reused = f" ({stats.reused_prompt_tokens} reused)" if stats.reused_prompt_tokens else ""
    seed = "" if result.seed is None else f" | seed {result.seed}"
    return (
        f"prompt {stats.prompt_tokens} tokens{reused}, TTFT {1000 * stats.ttft_seconds:.0f} ms | "
        f"{stats.generated_tokens} tokens ({result.finish_reason}), {stats.tokens_per_second:.1f} tok/s | "
        f"{stats.rounds} rounds, {_acceptance(stats)}, {stats.tokens_per_round:.2f} tokens per round{experts}{seed} "
        f"| peak RSS {peak_rss_bytes() / 1e6:.0f} MB"
    )


def _acceptance(stats: Stats) -> str:
    if not stats.drafted_tokens:
        return "nothing drafted"
    return f"acceptance rate {stats.acceptance_rate:.2f} ({stats.accepted_tokens} of {stats.drafted_tokens})"


def context_sentence(context_length: int) -> str:
    return f"the text ends here because the model's context of {context_length} tokens is full"


def logprobs_of(result: Generation, codec: TextCodec) -> list[dict[str, Any]]:
    """One entry a token, for JSON; empty where none were asked for."""
    return [
        _named(token_id, entry.logprob, codec)
        | {"top_logprobs": [_named(top.id, top.logprob, codec) for top in entry.top]}
        for token_id, entry in zip(result.token_ids, result.logprobs or (), strict=False)
    ]


def _named(token_id: int, logprob: float, codec: TextCodec) -> dict[str, Any]:
    return {"id": token_id, "text": codec.decode([token_id]), "logprob": logprob}
