"""Streamed text equals the full decode, for SentencePiece-style tokenizers too: byte tokens, ▁, a stripped space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.text import StreamDecoder, TextCodec

if TYPE_CHECKING:
    from tests.conftest import Tools

SPECIAL = ("<unk>", "<s>", "</s>")
WORDS = ("▁", "▁▁", "▁a", "a", "b", "▁the", "é", "\ufffd", "x\ufffd", "日", "\u200d", "😀", "\u0301", " ", ",", "▁a▁")
FIRST_BYTE, FIRST_WORD = len(SPECIAL), len(SPECIAL) + 256
SIZE = FIRST_WORD + len(WORDS)
FAMILY = "👩\u200d👩\u200d👧\u200d👦"
TEXTS = ["hello a the", "two  spaces ", "日本語、漢字", f"family {FAMILY}!", "e\u0301 \u0928\u093f", "😀😀", "naïve"]


def sentencepiece(decoder: decoders.Decoder, *, prepend: bool) -> Tokenizer:
    tokens = [*SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL])
    spaces = normalizers.Replace(" ", "▁")
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces]) if prepend else spaces
    tokenizer.decoder = decoder
    return tokenizer


def llama() -> Tokenizer:
    """Llama 2's: a space is put in front of every text, and taken away again."""
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    return sentencepiece(decoders.Sequence(parts), prepend=True)


def gemma() -> Tokenizer:
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    return sentencepiece(decoders.Sequence(parts), prepend=False)


def metaspace() -> Tokenizer:
    tokenizer = sentencepiece(decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]), prepend=False)
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


@pytest.fixture(scope="module", params=[llama, gemma, metaspace], ids=lambda f: str(f.__name__))
def codec(request: pytest.FixtureRequest, tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> TextCodec:
    return exported(tools, request.param, tmp_path_factory.mktemp("sp"))


def exported(tools: Tools, make: Callable[[], Tokenizer], root: Path) -> TextCodec:
    source = tools.write(root / "checkpoint", tools.spec(vocab=SIZE, hidden=32, ff=32, layers=1))
    make().save(str(source / "tokenizer.json"))
    return TextCodec(open_artifact(tools.export(source, root / "artifact", precision="fp32")))


def pieces(codec: TextCodec, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(codec)
    return [*(decoder.push(i) for i in ids), decoder.finish()]


def byte_ids(text: str) -> list[int]:
    return [FIRST_BYTE + byte for byte in text.encode()]


def word(token: str) -> int:
    return FIRST_WORD + WORDS.index(token)


@pytest.mark.parametrize("text", TEXTS)
def test_texts_stream_to_themselves(codec: TextCodec, text: str) -> None:
    """A space lost between pieces, or three replacement characters before each emoji."""
    ids = codec.encode(text)
    found = pieces(codec, ids)
    assert "".join(found) == text == codec.decode(ids)
    assert not any("\ufffd" in piece for piece in found)


def test_byte_tokens_wait_for_the_end_of_their_run(codec: TextCodec) -> None:
    """The decoder reads a run of byte tokens as a whole: one bad byte at its end makes all of it replacements."""
    a, bad = word("a"), FIRST_BYTE + 0xE2
    assert pieces(codec, [a, *byte_ids("é"), a]) == ["a", "", "", "éa", ""]
    assert pieces(codec, [a, *byte_ids("é"), bad, a]) == ["a", "", "", "", "\ufffd\ufffd\ufffda", ""]
    assert pieces(codec, [a, *byte_ids("é")]) == ["a", "", "", "é"]


def test_a_special_token_does_not_end_a_run_of_byte_tokens(codec: TextCodec) -> None:
    """It is left out before bytes are joined: what stands on both sides of it is one run."""
    first, second = byte_ids("é")
    ids = [word("a"), first, 2, second, word("b")]
    assert "".join(pieces(codec, ids)) == codec.decode(ids) == "aéb"


def test_a_genuine_replacement_character_waits_for_one_token_only(codec: TextCodec) -> None:
    """Taken for half a character, it would silence the stream for good."""
    sign, a = word("\ufffd"), word("a")
    assert pieces(codec, [a, sign, sign, sign, a]) == ["a", "", "\ufffd", "\ufffd", "\ufffda", ""]
    assert pieces(codec, [a, sign]) == ["a", "", "\ufffd"]
    assert pieces(codec, [word("x\ufffd"), a]) == ["x", "\ufffda", ""]


IDS = st.lists(
    st.one_of(
        st.integers(0, SIZE - 1),
        st.integers(FIRST_WORD, SIZE - 1),
        st.integers(0, 2),
        st.sampled_from([FIRST_BYTE + byte for byte in "é😀日A".encode()]),
    ),
    max_size=24,
)


@settings(max_examples=300)
@given(IDS, st.sampled_from(["", "é", "😀👩", "日本"]))
def test_any_ids_stream_to_their_full_decode(codec: TextCodec, ids: list[int], begin: str) -> None:
    """Whatever a model says, what was shown adds up to the result's text."""
    ids = byte_ids(begin) + ids
    assert "".join(pieces(codec, ids)) == codec.decode(ids)
