"""Token ids ↔ text: tokenizer, chat template, and decoding that never shows half a character."""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer

from ..errors import ArtifactError, UsageError, foreign_errors
from .artifact import Artifact
from .chat_template import ChatTemplate
from .messages import Message

_REPLACEMENT = "\ufffd"
_TEMPLATE = "chat_template.jinja"


class TextCodec:
    """Everything about text that an artifact carries."""

    def __init__(self, artifact: Artifact) -> None:
        """Raises: ArtifactError when tokenizer or template cannot be read."""
        facts = artifact.manifest.tokenizer
        self.eos_token_ids = frozenset(facts.eos_token_ids)
        self._bos = facts.bos_token_id
        self._vocab_size = artifact.manifest.model.vocab_size
        with foreign_errors(
            lambda words: ArtifactError(f"{artifact.path}: tokenizer.json cannot be read ({words}); export again.")
        ):
            self._tokenizer = Tokenizer.from_str(artifact.read("tokenizer.json").decode("utf-8"))
            self._tokenizer.no_truncation()  # left over from training: every prompt would be cut and padded by them
            self._tokenizer.no_padding()
        self._special_ids = frozenset(i for i, t in self._tokenizer.get_added_tokens_decoder().items() if t.special)
        self._byte_ids = _byte_fallback(self._tokenizer)
        self._template = self._chat_template(artifact) if artifact.has(_TEMPLATE) else None

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Raw text → ids, with the beginning-of-sequence token once where the model wants one.

        Special tokens that stand in the text, such as <|im_end|>, become those tokens, as with Hugging Face: keep them
        out of text by strangers.

        Raises:
            UsageError: not text, or not encodable as UTF-8.
            ArtifactError: the tokenizer has a token for it that the model lacks.
        """
        if not isinstance(text, str):
            raise UsageError(f"the prompt is {type(text).__name__}, where text was expected.")
        try:
            text.encode("utf-8")
        except UnicodeEncodeError as error:
            raise UsageError(f"the prompt is not valid Unicode text ({error}); give it as UTF-8.") from error
        with foreign_errors(lambda words: ArtifactError(f"the model's tokenizer cannot read this text ({words}).")):
            ids = list(self._tokenizer.encode(text, add_special_tokens=False).ids)
        for token in ids:
            if token >= self._vocab_size:
                raise ArtifactError(
                    f"the model's tokenizer makes {self._tokenizer.id_to_token(token)!r} of this text, token {token}, "
                    f"and the model's vocabulary ends at {self._vocab_size - 1}; the model was not resized for it."
                )
        if self._bos is not None and ids[:1] != [self._bos]:
            ids.insert(0, self._bos)
        return ids

    def encode_chat(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Messages → ids, through the model's chat template, ending where the assistant's answer begins.

        Args:
            tools, variables: see :meth:`ChatTemplate.render`.

        Raises:
            UsageError: the model has no template, or it cannot take these messages, tools or variables.
        """
        if self._template is None:
            raise UsageError("this model has no chat template; give `prompt`, raw text, and no `messages`.", "messages")
        return self.encode(self._template.render(messages, tools, variables))

    @staticmethod
    def _chat_template(artifact: Artifact) -> ChatTemplate:
        name = str(artifact.path / _TEMPLATE)
        try:
            source = artifact.read(_TEMPLATE).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ArtifactError(f"{name} is not UTF-8 text ({error}); export again.") from error
        return ChatTemplate(source, artifact.manifest.tokenizer.special_tokens, name)

    def byte(self, token_id: int) -> int | None:
        """What a byte token, such as <0xE2>, stands for; None for any other token."""
        token = self._tokenizer.id_to_token(token_id) if token_id in self._byte_ids else None
        return None if token is None else int(token[3:5], 16)

    @property
    def has_byte_tokens(self) -> bool:
        return bool(self._byte_ids)

    def is_special(self, token_id: int) -> bool:
        """Whether a token never shows as text."""
        return token_id in self._special_ids

    def any_text(self) -> list[int]:
        """A byte token that is a character by itself; none where there are no byte tokens."""
        return next(([i] for i in sorted(self._byte_ids) if 0x21 <= (self.byte(i) or 0) < 0x7F), [])

    def special_id(self, text: str) -> int | None:
        """The id of a special token, which never shows as text; None where ``text`` is none."""
        token_id = self._tokenizer.token_to_id(text)
        return token_id if token_id in self._special_ids else None

    def decode(self, ids: Sequence[int]) -> str:
        """Ids → text without special tokens."""
        with foreign_errors(lambda words: ArtifactError(f"the model's tokenizer cannot decode its tokens ({words}).")):
            return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))


def _byte_fallback(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids of SentencePiece's byte tokens, where the tokenizer's decoder makes bytes of them."""
    found = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    ids = [i for i in found if i is not None]
    pair = [i for byte in "\u00e9".encode() if (i := found[byte]) is not None]
    joined = tokenizer.decode(pair, skip_special_tokens=False) == "\u00e9"
    return frozenset(ids if joined else ())


class StreamDecoder:
    """Turns ids into text as they come: a character appears with the token that completes it.

    Joined, the pieces equal the full decode, with one exception. ``tokenizers`` turns a run of byte tokens that has a
    bad byte anywhere wholly into replacement characters, which nobody can know before the run ends. Here such a run is
    read by UTF-8's own rules: its whole characters are shown as they come, and each longest beginning of a character
    that does not go on as one becomes one replacement character, as ``bytes.decode(errors="replace")`` has it.

    Held back are the bytes of a character that is not whole yet: byte tokens, or with byte-level tokenizers ids whose
    text ends in a replacement character. Each piece is decoded together with the ids of a piece before, because a
    tokenizer may treat the first token of a text differently.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._context: list[int] = []
        self._pending: list[int] = []
        self._bytes = b""  # of the pending ids' last character, which is not whole
        self._shown = 0  # characters of the pending ids that are out already

    def push(self, token_id: int) -> str:
        """The text that ``token_id`` completes; often its own, sometimes none."""
        if self._codec.is_special(token_id):
            return ""
        byte = self._codec.byte(token_id)
        broken = self._broken_off() if byte is None else ""
        self._pending.append(token_id)
        if byte is not None:
            return self._take_byte(byte)
        return broken + self._take(final=self._codec.has_byte_tokens)

    def finish(self) -> str:
        """What is still held back, as it is."""
        return self._broken_off() + self._take(final=True)

    def _take_byte(self, byte: int) -> str:
        self._bytes += bytes([byte])
        bad = ""
        while self._bytes:
            try:
                whole, _ = codecs.utf_8_decode(self._bytes, "strict", False)
            except UnicodeDecodeError as error:
                bad += self._drop(error.end)
                continue
            if whole:
                self._bytes = b""
                return bad + self._take(final=True)
            break
        return bad

    def _broken_off(self) -> str:
        return self._drop(len(self._bytes)) if self._bytes else ""

    def _drop(self, count: int) -> str:
        """Of the bytes held back, the first ``count`` are no character and never will be."""
        self._pending = self._pending[len(self._pending) - len(self._bytes) + count :]
        self._bytes = self._bytes[count:]
        if not self._context:
            self._context = self._codec.any_text()
        return _REPLACEMENT

    def _take(self, *, final: bool) -> str:
        text = self._codec.decode(self._context + self._pending)[len(self._codec.decode(self._context)) :]
        whole = final or not text.endswith(_REPLACEMENT)
        stable = text if whole else text[:-1]
        piece = stable[self._shown :]
        self._shown += len(piece)
        if whole and text:
            if not self._context or self._ends_in_bytes(self._context) or not self._ends_in_bytes(self._pending):
                self._context = self._pending  # else the context stays in front of the run, which is read by characters
            self._pending, self._shown = [], 0
        return piece

    def _ends_in_bytes(self, ids: list[int]) -> bool:
        return self._codec.byte(ids[-1]) is not None
