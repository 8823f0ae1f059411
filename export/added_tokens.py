"""Tokens that a model folder names outside of tokenizer.json, and tokens for which the model has no row."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from ..errors import CheckpointError, foreign_errors

# In the order in which transformers adds them.
_NAMES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_LISTS = ("extra_special_tokens", "additional_special_tokens")
_SHOWN = 5  # names in a sentence


def add_declared(tokenizer: Tokenizer, config: Mapping[str, Any], plain: Mapping[str, Any], where: Path) -> bool:
    """Add the tokens that ``tokenizer`` lacks, in transformers' order and so with its ids; returns whether any was.

    Args:
        config: tokenizer_config.json, with what special_tokens_map.json adds to it.
        plain: added_tokens.json, token → id.

    Raises:
        CheckpointError: a declared token is no token.
    """
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    missing: dict[str, AddedToken] = {}
    for token in _declared(config, plain, where):
        if token.content and token.content not in known:
            missing.setdefault(token.content, token)
    if not missing:
        return False
    with foreign_errors(lambda words: CheckpointError(f"{where}: its added tokens cannot be added ({words}).")):
        tokenizer.add_tokens(list(missing.values()))
    return True


def _declared(config: Mapping[str, Any], plain: Mapping[str, Any], where: Path) -> Iterator[AddedToken]:
    named = [config[name] for name in _NAMES if config.get(name)]
    extra = [token for name in _LISTS if isinstance(config.get(name), list) for token in config[name]]
    if "added_tokens_decoder" in config:
        special = {_token(token, True, where).content for token in named}
        for _, token in _by_id(config["added_tokens_decoder"], where):
            yield _token(token, isinstance(token, dict) and token.get("content") in special, where)
    else:
        special = {_token(token, True, where).content for token in (*named, *extra)}
        for _, text in _by_id({i: text for text, i in plain.items()}, where):
            yield AddedToken(text, special=text in special, normalized=text not in special)
    for token in (*named, *extra):
        yield _token(token, True, where)


def _by_id(tokens: Any, where: Path) -> list[tuple[int, Any]]:
    try:
        return sorted(((int(index), token) for index, token in tokens.items()), key=lambda pair: pair[0])
    except (AttributeError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{where}: its added tokens are not ids with tokens ({error}); download it again."
        ) from error


def _token(value: Any, special: bool, where: Path) -> AddedToken:
    """``value`` is an object with a content and flags. ``special``: it is one whatever it says, and may be a text."""
    if isinstance(value, str) and special:
        return AddedToken(value, special=True, normalized=False)
    if not isinstance(value, dict) or not isinstance(value.get("content"), str):
        raise CheckpointError(f"{where}: the added token {value!r} is no token; download it again.")
    marked = bool(special or value.get("special"))
    flags = {name: bool(value.get(name)) for name in ("lstrip", "rstrip", "single_word")}
    return AddedToken(value["content"], special=marked, normalized=bool(value.get("normalized", not marked)), **flags)


def without_rows(tokenizer: Tokenizer, rows: int, template: str | None) -> tuple[str, ...]:
    """A warning where ``tokenizer`` has ids at and above ``rows``, for which the model has no embedding.

    Raises:
        CheckpointError: the chat template writes such a token, so no conversation could run.
    """
    beyond = {text: i for text, i in tokenizer.get_vocab().items() if i >= rows}
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    written = {text: i for text, i in beyond.items() if text in added and text in (template or "")}
    if written:
        raise CheckpointError(
            f"{_facts(written, rows)}, and the chat template writes it: it was added to the tokenizer, and the model "
            "was never resized for it. Take the tokenizer that the model was trained with."
        )
    if beyond:
        return (f"{_facts(beyond, rows)}; text in which it stands cannot be run",)
    return ()


def _facts(tokens: Mapping[str, int], rows: int) -> str:
    found = sorted((i, text) for text, i in tokens.items())
    shown = ", ".join(f"{text!r} as {i}" for i, text in found[:_SHOWN])
    more = f" and {len(found) - _SHOWN} more such tokens" if len(found) > _SHOWN else ""
    return f"the tokenizer has {shown}{more}, and the model's vocabulary ends at {rows - 1}"
