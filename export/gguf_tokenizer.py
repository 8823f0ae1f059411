"""The text side of a GGUF: its vocabulary as a tokenizer.json, its template, what its metadata say of generation."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers

from ..errors import CheckpointError, UnsupportedModelError, foreign_errors, unknown_name
from ..models.manifest import SPECIAL_TOKENS
from . import sentencepiece
from .pre_tokenizers import Splitting, splitting
from .sentencepiece import CONTROL, NORMAL, USER_DEFINED
from .tokenizer import special_ids
from .turn_ends import END_KEYS, no_ends, turn_ends

if TYPE_CHECKING:
    from .gguf_checkpoint import GGUFCheckpoint

_SAMPLING = {  # general.sampling.* → generation_config.json
    "temp": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p", "penalty_repeat": "repetition_penalty",
}  # fmt: skip


class GGUFTokenizer:
    """A byte-level BPE or SentencePiece vocabulary carried by a GGUF."""

    def __init__(self, checkpoint: GGUFCheckpoint) -> None:
        self._checkpoint = checkpoint

    def _field(self, key: str) -> Any:
        return self._checkpoint.field(f"tokenizer.ggml.{key}")

    def _list(self, key: str) -> list[Any]:
        found = self._field(key)
        return found if isinstance(found, list) else []

    @cached_property
    def _tokens(self) -> list[str]:
        return self._list("tokens")

    @cached_property
    def _stated_types(self) -> list[int]:
        """Of every token; normal where the file does not say."""
        types = self._list("token_type")
        return types + [NORMAL] * (len(self._tokens) - len(types))

    @cached_property
    def _ends(self) -> set[str]:
        """Texts of tokens that end generation, by key and by text."""
        keys = {key: special_ids(self._field(key)) for key in END_KEYS}
        found = turn_ends(self._tokens, {key for key, ids in keys.items() if ids})
        named = {self._tokens[i] for ids in keys.values() for i in ids if 0 <= i < len(self._tokens)}
        return (found | named) - no_ends(set(self._tokens))

    @cached_property
    def _types(self) -> list[int]:
        """As stated, but what ends generation by its text is a control token, which never shows."""
        ends = turn_ends(self._tokens)
        return [
            CONTROL if token in ends else kind for token, kind in zip(self._tokens, self._stated_types, strict=False)
        ]

    @cached_property
    def _splitting(self) -> Splitting:
        return splitting(self._field("pre") or "default")

    def warnings(self) -> tuple[str, ...]:
        """What was not taken as the file says it, or is missing in it."""
        found = [
            f"the token {token!r} ends generation and was no control token; it is one now, which never shows as text"
            for token, stated, kind in zip(self._tokens, self._stated_types, self._types, strict=False)
            if stated != kind
        ]
        if self._field("model") == "gpt2" and not self._field("pre"):
            found.append(
                "the GGUF does not say how its tokenizer splits text (tokenizer.ggml.pre); llama.cpp's default was "
                "taken, with which numbers and punctuation may become other tokens than the model knows"
            )
        return tuple(found)

    def tokenizer_json(self) -> str:
        """Raises: UnsupportedModelError for another kind of vocabulary, CheckpointError for an incomplete one."""
        known: dict[str, Callable[[list[str]], Tokenizer]] = {"gpt2": self._byte_level, "llama": self._sentencepiece}
        kind, tokens, path = self._field("model"), self._tokens, self._checkpoint.path
        if kind not in known:
            raise UnsupportedModelError(
                f"{path}: {unknown_name('tokenizer kind', str(kind), known)} Export the Hugging Face folder instead."
            )
        if not tokens:
            raise CheckpointError(f"{path} has no tokenizer vocabulary.")
        with foreign_errors(
            lambda words: CheckpointError(
                f"{path}: tokenizer vocabulary and merges do not fit ({words}); download it again."
            )
        ):
            tokenizer = known[kind](tokens)
            added = list(zip(tokens, self._types, strict=False))
            for token_type, special in ((CONTROL, True), (USER_DEFINED, False)):
                new = [AddedToken(t, special=special, normalized=False) for t, k in added if k == token_type]
                (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(new)
            return str(tokenizer.to_str())

    def _byte_level(self, tokens: list[str]) -> Tokenizer:
        merges, split = self._field("merges"), self._splitting
        if not merges:
            raise CheckpointError(f"{self._checkpoint.path} has no tokenizer merges.")
        tokenizer = Tokenizer(
            models.BPE(
                vocab={token: i for i, token in enumerate(tokens)},
                merges=[tuple(merge.split(" ", 1)) for merge in merges],
                ignore_merges=split.ignores_merges,
            )
        )
        if split.composes:
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = split.pre_tokenizer()
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self, tokens: list[str]) -> Tokenizer:
        scores, types = self._list("scores"), self._list("token_type")
        unknown = self._field("unknown_token_id")
        unknown = 0 if unknown is None else unknown
        prefix = self._field("add_space_prefix")
        if not len(tokens) == len(scores) == len(types) or not 0 <= unknown < len(tokens):
            raise CheckpointError(
                f"{self._checkpoint.path}: the tokenizer has {len(tokens)} tokens, {len(scores)} scores, {len(types)} "
                f"types and the unknown token {unknown}, which do not belong together; download it again."
            )
        if self._field("remove_extra_whitespaces"):
            raise UnsupportedModelError(
                f"{self._checkpoint.path}: a tokenizer that removes extra blanks is not supported."
            )
        return sentencepiece.tokenizer(
            sentencepiece.Vocabulary(tokens, scores, self._types, unknown, space_prefix=prefix is None or bool(prefix))
        )

    def chat_template(self) -> str | None:
        template = self._checkpoint.field("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def generation_config(self) -> dict[str, Any]:
        """As a folder's generation_config.json: where generation ends, and how the model's makers would sample."""
        found: dict[str, Any] = {"eos_token_id": list(self.eos_token_ids())}
        for key, name in _SAMPLING.items():
            value = self._checkpoint.field(f"general.sampling.{key}")
            if isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
                found[name] = value
        if "temperature" in found:
            found["do_sample"] = found["temperature"] > 0
        return found

    def eos_token_ids(self) -> tuple[int, ...]:
        ids = (i for i, token in enumerate(self._tokens) if token in self._ends)
        return tuple(i for i in ids if i < self._checkpoint.config.vocab_size)

    def bos_token_id(self) -> int | None:
        if self._field("add_eos_token"):
            raise UnsupportedModelError(
                f"{self._checkpoint.path}: the tokenizer ends every text with its end-of-sequence token, which is not "
                "supported."
            )
        ids, added = special_ids(self._field("bos_token_id")), self._field("add_bos_token")
        if added is None:  # llama.cpp's rule where the file does not say
            added = self._field("model") == "llama" or self._splitting.adds_bos
        return ids[0] if ids and added else None

    def special_tokens(self) -> dict[str, str]:
        """The texts of the ids that the file names."""
        keys = {"pad_token": "padding_token_id", "unk_token": "unknown_token_id"}
        ids = {name: special_ids(self._field(keys.get(name, f"{name}_id"))) for name in SPECIAL_TOKENS}
        return {
            name: self._tokens[found[0]] for name, found in ids.items() if found and 0 <= found[0] < len(self._tokens)
        }
