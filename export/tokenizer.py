"""Text files of an artifact: tokenizer.json from a folder or from GGUF metadata, and the facts the manifest states."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from ..errors import CheckpointError, UnsupportedModelError, foreign_errors, unknown_name
from ..models.manifest import SPECIAL_TOKENS
from . import sentencepiece
from .checkpoint import read_json
from .sentencepiece import CONTROL, USER_DEFINED

if TYPE_CHECKING:
    from .gguf_checkpoint import GGUFCheckpoint


def _split(digits: str) -> pre_tokenizers.PreTokenizer:
    """Llama 3's and Qwen 2's way, which differ in how many digits stay together."""
    pattern = (
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|" + digits + "|"
        r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"), _byte_level(use_regex=False)])


def _single_digits() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), _byte_level(use_regex=True)])


# Control tokens that end a turn, which a file may not name as such: as in llama.cpp, they are known by their text.
_TURN_ENDS = frozenset(("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"))


def _byte_level(*, use_regex: bool) -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=True, use_regex=use_regex)


def _pre_tokenizer(kind: str) -> pre_tokenizers.PreTokenizer:
    """How text is split before merging, by llama.cpp's name for it (tokenizer.ggml.pre)."""
    gpt2, llama3 = partial(_byte_level, use_regex=True), partial(_split, r"\p{N}{1,3}")
    known: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
        "gpt-2": gpt2, "default": gpt2,
        "smollm": _single_digits, "starcoder": _single_digits, "refact": _single_digits,
        "llama-bpe": llama3, "dbrx": llama3, "smaug-bpe": llama3,
        "qwen2": partial(_split, r"\p{N}"),
    }  # fmt: skip
    if kind not in known:
        raise UnsupportedModelError(f"the GGUF's tokenizer.ggml.pre: {unknown_name('pre-tokenizer', kind, known)}")
    return known[kind]()


def special_ids(value: Any) -> tuple[int, ...]:
    """Token ids from a config value that may be absent, one id or a list. 0 is a valid id."""
    items = value if isinstance(value, list) else [value]
    return tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text ({error}); download it again.") from error


class FolderTokenizer:
    """The tokenizer files of a Hugging Face folder."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        config = folder / "tokenizer_config.json"
        self._config: dict[str, Any] = read_json(config) if config.exists() else {}
        self._json: str | None = None

    def tokenizer_json(self) -> str:
        if self._json is None:
            path = self._folder / "tokenizer.json"
            if not path.is_file():
                raise CheckpointError(
                    f"{path} is missing; only models with a fast tokenizer (tokenizer.json) can be exported."
                )
            self._json = _read_text(path)
            tokenizer = self._tokenizer()
            if tokenizer.truncation is not None or tokenizer.padding is not None:  # left over from training
                tokenizer.no_truncation()
                tokenizer.no_padding()
                self._json = str(tokenizer.to_str())
        return self._json

    def _tokenizer(self) -> Tokenizer:
        path = self._folder / "tokenizer.json"
        with foreign_errors(
            lambda words: CheckpointError(f"{path} cannot be read by tokenizers ({words}); download it again.")
        ):
            return Tokenizer.from_str(self.tokenizer_json())

    def chat_template(self) -> str | None:
        path = self._folder / "chat_template.jinja"
        if path.is_file():
            return _read_text(path)
        template = self._config.get("chat_template")
        if isinstance(template, list):  # several named templates
            template = {t.get("name"): t.get("template") for t in template if isinstance(t, dict)}.get("default")
        return template if isinstance(template, str) else None

    def generation_config(self) -> dict[str, Any]:
        path = self._folder / "generation_config.json"
        return read_json(path) if path.is_file() else {}

    def eos_token_ids(self) -> tuple[int, ...]:
        config = read_json(self._folder / "config.json")
        ids = {*special_ids(config.get("eos_token_id")), *special_ids(self.generation_config().get("eos_token_id"))}
        token = self._named("eos_token")
        named = None if token is None else self._tokenizer().token_to_id(token)
        return tuple(sorted(i for i in ids | {named} if i is not None and 0 <= i < self._vocab_size))

    def bos_token_id(self) -> int | None:
        """What the tokenizer itself puts in front of a text."""
        tokenizer = self._tokenizer()
        with foreign_errors(
            lambda words: CheckpointError(f"the model's tokenizer cannot encode text ({words}); it is incomplete.")
        ):
            with_special, without = tokenizer.encode("a").ids, tokenizer.encode("a", add_special_tokens=False).ids
        if with_special == without:
            return None
        if with_special[1:] != without:
            raise UnsupportedModelError(
                f"the model's tokenizer puts more around a text than one token in front of it ({without} becomes "
                f"{with_special}), which is not supported."
            )
        return with_special[0]

    def special_tokens(self) -> dict[str, str]:
        """By name, as tokenizer_config.json has them; one it does not mention goes by its id in config.json."""
        config, tokenizer = read_json(self._folder / "config.json"), self._tokenizer()
        found = {name: self._named(name) for name in SPECIAL_TOKENS}
        for name in set(SPECIAL_TOKENS) - self._config.keys():
            ids = [i for i in special_ids(config.get(f"{name}_id")) if 0 <= i < self._vocab_size]
            found[name] = tokenizer.id_to_token(ids[0]) if ids else None
        return {name: token for name, token in found.items() if token}

    def _named(self, name: str) -> str | None:
        token = self._config.get(name)
        token = token.get("content") if isinstance(token, dict) else token
        return token if isinstance(token, str) else None


class GGUFTokenizer:
    """A byte-level BPE or SentencePiece vocabulary carried by a GGUF."""

    def __init__(self, checkpoint: GGUFCheckpoint) -> None:
        self._checkpoint = checkpoint

    def _field(self, key: str) -> Any:
        return self._checkpoint.field(f"tokenizer.ggml.{key}")

    def tokenizer_json(self) -> str:
        """Raises: UnsupportedModelError for another kind of vocabulary, CheckpointError for an incomplete one."""
        known: dict[str, Callable[[list[str]], Tokenizer]] = {"gpt2": self._byte_level, "llama": self._sentencepiece}
        kind, tokens = self._field("model"), self._field("tokens")
        if kind not in known:
            raise UnsupportedModelError(
                f"{self._checkpoint.path}: {unknown_name('tokenizer kind', str(kind), known)} "
                "Export the Hugging Face folder instead."
            )
        if not tokens:
            raise CheckpointError(f"{self._checkpoint.path} has no tokenizer vocabulary.")
        path = self._checkpoint.path
        with foreign_errors(
            lambda words: CheckpointError(
                f"{path}: tokenizer vocabulary and merges do not fit ({words}); download it again."
            )
        ):
            tokenizer = known[kind](tokens)
            added = list(zip(tokens, self._field("token_type") or [], strict=False))
            for token_type, special in ((CONTROL, True), (USER_DEFINED, False)):
                new = [AddedToken(t, special=special, normalized=False) for t, k in added if k == token_type]
                (tokenizer.add_special_tokens if special else tokenizer.add_tokens)(new)
            return str(tokenizer.to_str())

    def _byte_level(self, tokens: list[str]) -> Tokenizer:
        merges, split = self._field("merges"), self._field("pre") or "default"
        if not merges:
            raise CheckpointError(f"{self._checkpoint.path} has no tokenizer merges.")
        tokenizer = Tokenizer(
            models.BPE(
                vocab={token: i for i, token in enumerate(tokens)},
                merges=[tuple(merge.split(" ", 1)) for merge in merges],
                ignore_merges=split == "llama-bpe",  # Llama 3 takes a word that is a token as it is
            )
        )
        if split == "qwen2":
            tokenizer.normalizer = normalizers.NFC()
        tokenizer.pre_tokenizer = _pre_tokenizer(split)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer

    def _sentencepiece(self, tokens: list[str]) -> Tokenizer:
        scores, types = self._field("scores") or [], self._field("token_type") or []
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
            sentencepiece.Vocabulary(tokens, scores, types, unknown, space_prefix=prefix is None or bool(prefix))
        )

    def chat_template(self) -> str | None:
        template = self._checkpoint.field("tokenizer.chat_template")
        return template if isinstance(template, str) else None

    def generation_config(self) -> dict[str, Any]:
        return {"eos_token_id": list(self.eos_token_ids())}

    def eos_token_ids(self) -> tuple[int, ...]:
        ids = {i for key in ("eos_token_id", "eot_token_id", "eom_token_id") for i in special_ids(self._field(key))}
        types = self._field("token_type") or []
        for i, (token, kind) in enumerate(zip(self._field("tokens") or [], types, strict=False)):
            if kind == CONTROL and token in _TURN_ENDS:
                ids.add(i)
        return tuple(sorted(i for i in ids if 0 <= i < self._checkpoint.config.vocab_size))

    def bos_token_id(self) -> int | None:
        if self._field("add_eos_token"):
            raise UnsupportedModelError(
                f"{self._checkpoint.path}: the tokenizer ends every text with its end-of-sequence token, which is not "
                "supported."
            )
        ids, added = special_ids(self._field("bos_token_id")), self._field("add_bos_token")
        if added is None:  # llama.cpp's rule where the file does not say
            added = self._field("model") == "llama" or self._field("pre") == "llama-bpe"
        return ids[0] if ids and added else None

    def special_tokens(self) -> dict[str, str]:
        """The texts of the ids that the file names."""
        keys = {"pad_token": "padding_token_id", "unk_token": "unknown_token_id"}
        tokens = self._field("tokens") or []
        ids = {name: special_ids(self._field(keys.get(name, f"{name}_id"))) for name in SPECIAL_TOKENS}
        return {name: str(tokens[found[0]]) for name, found in ids.items() if found and 0 <= found[0] < len(tokens)}
