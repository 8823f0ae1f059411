"""Streamed text equals the full decode, for SentencePiece-style tokenizers too: byte tokens, ▁, a stripped space."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers

from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.stop_strings import StopFilter, StopStrings
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


def test_a_character_in_byte_tokens_appears_with_its_last_byte(codec: TextCodec) -> None:
    """Held back to the end of the run, an answer in a script that the vocabulary lacks appears all at once."""
    text = "日本語のテキスト😀は"
    expected = [piece for character in text for piece in [*[""] * (len(character.encode()) - 1), character]]
    a = word("a")
    assert pieces(codec, byte_ids(text)) == [*expected, ""]
    assert pieces(codec, [a, *byte_ids(text), a, *byte_ids("é")]) == ["a", *expected, "a", "", "é", ""]
    assert pieces(codec, byte_ids("a\n é")) == ["a", "\n", " ", "", "é", ""]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (b"\xc3\xa9\xe2a", ["", "é", "", "\ufffda"]),
        (b"\xc3\xa9\xff\xc3\xa9", ["", "é", "\ufffd", "", "é"]),
        (b"\xf0\x9f\x98\xc3\xa9", ["", "", "", "\ufffd", "é"]),
        (b"\xf0\x9f\x98\x98\x98", ["", "", "", "😘", "\ufffd"]),
        (b"\xed\xa0\x80", ["", "", 3 * "\ufffd"]),
        (b"\xc0\xaf/", ["\ufffd", "\ufffd", "/"]),
        (b"\xef\xbf\xbd", ["", "", "\ufffd"]),
    ],
)
def test_bytes_that_are_no_character_are_read_by_utf8s_own_rules(
    codec: TextCodec, given: bytes, expected: list[str]
) -> None:
    """`tokenizers` makes all of the run replacement characters; what was shown before the bad byte was right."""
    a, ids = word("a"), [FIRST_BYTE + byte for byte in given]
    assert pieces(codec, [a, *ids, a]) == ["a", *expected, "a", ""]
    assert pieces(codec, [*ids, word("▁the")]) == [*expected, " the", ""]
    assert "".join(expected) == given.decode("utf-8", "replace")


def test_what_is_cut_off_within_a_character_is_given_out_at_the_end(codec: TextCodec) -> None:
    a, half = word("a"), FIRST_BYTE + 0xE2
    assert pieces(codec, [a, *byte_ids("é"), half, half]) == ["a", "", "é", "", "\ufffd", "\ufffd"]
    assert pieces(codec, [*byte_ids("日"), *byte_ids("😀")[:3]]) == ["", "", "日", "", "", "", "\ufffd"]
    assert pieces(codec, [half, a]) == ["", "\ufffda", ""]
    assert pieces(codec, [half, 2, a]) == ["", "", "\ufffda", ""]


def test_a_stop_string_in_byte_tokens_is_noticed_with_its_last_byte(codec: TextCodec) -> None:
    """Llama 2 writes a line break as <0x0A>: noticed a token late, the token after it was computed for nothing."""
    for text, matches in (("\n", [None, "\n"]), ("語", [None, None, None, "語"])):
        decoder, stop, found = StreamDecoder(codec), StopFilter(StopStrings([text])), []
        for token in [word("a"), *byte_ids(text)]:
            stop.push(decoder.push(token))
            found.append(stop.match)
        assert found == matches


def test_a_special_token_does_not_end_a_run_of_byte_tokens(codec: TextCodec) -> None:
    """It is left out before bytes are joined: what stands on both sides of it is one run."""
    first, second = byte_ids("é")
    ids = [word("a"), first, 2, second, word("b")]
    assert "".join(pieces(codec, ids)) == codec.decode(ids) == "aéb"


def test_a_genuine_replacement_character_does_not_wait(codec: TextCodec) -> None:
    """Where half a character is always byte tokens, it is a character like any other."""
    sign, a = word("\ufffd"), word("a")
    assert pieces(codec, [a, sign, sign, a]) == ["a", "\ufffd", "\ufffd", "a", ""]
    assert pieces(codec, [word("x\ufffd"), a]) == ["x\ufffd", "a", ""]


IDS = st.lists(
    st.one_of(
        st.integers(0, SIZE - 1),
        st.integers(FIRST_WORD, SIZE - 1),
        st.integers(0, 2),
        st.sampled_from([FIRST_BYTE + byte for byte in "é😀日A".encode()]),
    ),
    max_size=24,
)


def mended(ids: list[int]) -> list[int]:
    """Every run of byte tokens read by UTF-8's rules, and written in byte tokens again: now it is a valid run."""
    found: list[int] = []
    run = b""
    for token in [i for i in ids if i not in range(len(SPECIAL))] + [FIRST_WORD]:
        if FIRST_BYTE <= token < FIRST_WORD:
            run += bytes([token - FIRST_BYTE])
        else:
            found += [*byte_ids(run.decode("utf-8", "replace")), token]
            run = b""
    return found[:-1]


@settings(max_examples=300)
@given(IDS, st.sampled_from(["", "é", "😀👩", "日本"]))
def test_any_ids_stream_to_their_full_decode(codec: TextCodec, ids: list[int], begin: str) -> None:
    """Whatever a model says, what was shown adds up to the full decode, of which bad runs of bytes were mended."""
    ids = byte_ids(begin) + ids
    assert "".join(pieces(codec, ids)) == codec.decode(mended(ids))
    if mended(ids) == [i for i in ids if i not in range(len(SPECIAL))]:
        assert codec.decode(mended(ids)) == codec.decode(ids)


@pytest.mark.reference
def test_no_text_comes_later_than_in_transformers(codec: TextCodec) -> None:
    """TextStreamer shows Chinese characters at once and words at their end."""
    from transformers import PreTrainedTokenizerFast, TextStreamer

    shown: list[str] = []

    class Streamer(TextStreamer):  # type: ignore[misc]  # transformers has no types
        def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
            shown.append(text)

    tokenizer: Any = PreTrainedTokenizerFast(tokenizer_object=codec._tokenizer)
    decoder, streamer, ours = StreamDecoder(codec), Streamer(tokenizer), ""
    for token in [word("a"), word("▁the"), *byte_ids("日本語のテキスト😀は"), word("▁a"), word(","), *byte_ids("\n")]:
        streamer.put(np.array([token]))
        ours += decoder.push(token)
        assert ours.startswith("".join(shown))
    streamer.end()
    assert ours + decoder.finish() == "".join(shown)
