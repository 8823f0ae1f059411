"""Text files of a Hugging Face folder: tokenizer.json, chat template, and the facts that the manifest states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from ..errors import CheckpointError, UnsupportedModelError, foreign_errors
from ..models.manifest import SPECIAL_TOKENS
from .added_tokens import add_declared
from .checkpoint import read_json
from .turn_ends import turn_ends

_LARGEST_ID = 2**24


def special_ids(value: Any) -> tuple[int, ...]:
    """Token ids from a config value that may be absent, one id or a list. 0 is a valid id."""
    items = value if isinstance(value, list) else [value]
    return tuple(i for i in items if isinstance(i, int) and not isinstance(i, bool))


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8 text ({error}); download it again.") from error


def _serialised(tokenizer: Tokenizer, path: Path) -> str:
    """The library lists every id that is missing below the largest one, so one absurd id takes gigabytes. Of two tokens
    with one id it writes only one, and then cannot read what it has written."""
    largest = max(tokenizer.get_vocab().values(), default=0)
    if largest > _LARGEST_ID:
        raise CheckpointError(f"{path} has a token of id {largest}, more than any vocabulary has; download it again.")
    text = str(tokenizer.to_str())
    with foreign_errors(lambda words: CheckpointError(f"{path} contradicts itself ({words}); download it again.")):
        Tokenizer.from_str(text)
    return text


class FolderTokenizer:
    """The tokenizer files of a Hugging Face folder."""

    def __init__(self, folder: Path, vocab_size: int) -> None:
        self._folder = folder
        self._vocab_size = vocab_size
        config = folder / "tokenizer_config.json"
        self._config: dict[str, Any] = read_json(config) if config.exists() else {}
        self._plain_tokens: dict[str, Any] = {}
        if "added_tokens_decoder" not in self._config:  # as older versions of transformers wrote it
            self._config |= self._optional("special_tokens_map.json")
            self._plain_tokens = self._optional("added_tokens.json")
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
                self._json = _serialised(tokenizer, path)
            if add_declared(tokenizer, self._config, self._plain_tokens, self._folder):
                self._json = _serialised(tokenizer, path)
        return self._json

    def _optional(self, name: str) -> dict[str, Any]:
        path = self._folder / name
        return read_json(path) if path.is_file() else {}

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
        return self._optional("generation_config.json")

    def eos_token_ids(self) -> tuple[int, ...]:
        config = read_json(self._folder / "config.json")
        ids = {*special_ids(config.get("eos_token_id")), *special_ids(self.generation_config().get("eos_token_id"))}
        token = self._named("eos_token")
        named = None if token is None else self._tokenizer().token_to_id(token)
        found = ids | {named} | self._ends_of_turns()
        return tuple(sorted(i for i in found if i is not None and 0 <= i < self._vocab_size))

    def _ends_of_turns(self) -> set[int]:
        """Special tokens that look like an end and that the chat template writes: the model was trained to end its
        turns with them, whether or not a config says so."""
        template = self.chat_template()
        if template is None:
            return set()
        special = {t.content: i for i, t in self._tokenizer().get_added_tokens_decoder().items() if t.special}
        return {special[token] for token in turn_ends(special) if token in template}

    def warnings(self) -> tuple[str, ...]:
        return ()

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
