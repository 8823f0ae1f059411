"""Ids and text: no half characters while streaming, one beginning-of-sequence token, templates in a sandbox."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from selfspec.errors import ArtifactError, UsageError
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.text import StreamDecoder, TextCodec

if TYPE_CHECKING:
    from tests.conftest import Toy

REPLACEMENT = "\ufffd"
TEXTS = [
    "plain English, and two  spaces",
    " a leading space",
    "日本語のテキスト、漢字とかな",
    "smile 😀 and a family 👩‍👩‍👧‍👦!",
    "e\u0301 and \u0928\u093f: combining marks",
    "Привет, мир",
    "tab\tand\nlines\r\n\n",
    "flag 🇩🇪, skin 👍🏽, Hangul \u1112\u1161\u11ab, Devanagari क्षि",
    "mixed: naïve 中 🙂 \u202eright to left\u202c",
    "😀",
    "ends in the middle of nothing: é",
]
CHAT = (
    "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m['content'] }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)


@pytest.fixture(scope="module")
def codec(fp32: Toy) -> TextCodec:
    return fp32.model.codec


def pieces(codec: TextCodec, ids: list[int]) -> list[str]:
    decoder = StreamDecoder(codec)
    return [*(decoder.push(i) for i in ids), decoder.finish()]


@pytest.mark.parametrize("text", TEXTS)
def test_streamed_pieces_join_to_the_text_and_never_show_half_a_character(codec: TextCodec, text: str) -> None:
    """Bytes of one character spread over tokens: printed one by one they are replacement characters."""
    ids = codec.encode(text)
    found = pieces(codec, ids)
    assert "".join(found) == text == codec.decode(ids)
    assert not any(REPLACEMENT in piece for piece in found)


def test_a_character_appears_with_its_last_byte(codec: TextCodec) -> None:
    """Held back longer than needed, a text in Chinese would come in bursts."""
    ids = codec.encode("é😀z")
    assert len(ids) == 7
    assert pieces(codec, ids) == ["", "é", "", "", "", "😀", "z", ""]


def test_half_a_character_at_the_end_is_given_out_by_finish(codec: TextCodec) -> None:
    """A text cut by max_new_tokens: what was held back must not vanish from the result."""
    ids = codec.encode("ok 😀")[:-1]
    found = pieces(codec, ids)
    assert "".join(found) == codec.decode(ids) == "ok " + REPLACEMENT
    assert found[-1] == REPLACEMENT
    assert not any(REPLACEMENT in piece for piece in found[:-1])


def test_bytes_that_are_no_text_do_not_block_what_follows(codec: TextCodec) -> None:
    """A lone continuation byte from a model gone astray: held for ever, it would silence the stream."""
    byte = {codec.decode([i]): i for i in range(2, 258)}
    lone = next(i for i in range(2, 258) if codec.decode([i]) == REPLACEMENT)
    found = pieces(codec, [byte["a"], lone, byte["b"], byte["c"]])
    assert found == ["a", "", REPLACEMENT + "b", "c", ""]


def test_replacement_characters_one_after_another_do_not_block_the_stream(codec: TextCodec) -> None:
    """A model that says lone bytes for ever: only the last of them may still become a character."""
    lone = next(i for i in range(2, 258) if codec.decode([i]) == REPLACEMENT)
    assert pieces(codec, [lone] * 5) == ["", *[REPLACEMENT] * 5]


def test_special_tokens_have_no_text(codec: TextCodec) -> None:
    """The end-of-sequence token printed into the user's terminal, or a character broken by one in its middle."""
    ids = [*codec.encode("ab"), 1, *codec.encode("c"), 0, 1]
    assert "".join(pieces(codec, ids)) == "abc"


@given(st.lists(st.one_of(st.integers(0, 319), st.integers(120, 260)), max_size=40))
def test_any_ids_stream_to_their_full_decode(fp32: Toy, ids: list[int]) -> None:
    """Random models say anything. Whatever is shown while streaming must add up to the result's text."""
    codec = fp32.model.codec
    assert "".join(pieces(codec, ids)) == codec.decode(ids)


@given(st.text(max_size=30))
def test_any_text_survives_a_byte_level_round_trip(fp32: Toy, text: str) -> None:
    """Normalisation, prefix spaces or cleaned-up punctuation in the decoder."""
    codec = fp32.model.codec
    ids = codec.encode(text.replace("<|", "<"))
    assert codec.decode(ids) == "".join(pieces(codec, ids)) == text.replace("<|", "<")


@pytest.fixture(scope="module")
def with_bos(make_toy: Callable[..., Toy], fp32: Toy) -> Toy:
    return make_toy(type(fp32.spec)(bos=True, layers=2), chat_template=CHAT, precision="int4")


def test_the_beginning_of_sequence_token_stands_once_in_front(with_bos: Toy, codec: TextCodec) -> None:
    """Twice where text or template already has it: models degrade, and nothing crashes."""
    assert with_bos.model.artifact.manifest.tokenizer.bos_token_id == 0
    encode = with_bos.model.codec.encode
    plain = codec.encode("hello")
    assert 0 not in plain
    assert encode("hello") == [0, *plain]
    assert encode("<|bos|>hello") == [0, *plain]
    assert with_bos.model.codec.encode_chat([{"role": "user", "content": "hi"}]).count(0) == 1


def test_no_beginning_of_sequence_token_where_the_tokenizer_adds_none(codec: TextCodec) -> None:
    """Taken from config.json's bos_token_id, it would be added to models that never saw one there."""
    assert codec.encode("hello")[0] != 0


def test_a_chat_goes_through_the_template_to_where_the_answer_begins(with_bos: Toy) -> None:
    """Without the generation prompt the model continues the user's message."""
    codec = with_bos.model.codec
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi 😀"}]
    ids = codec.encode_chat(messages)
    assert codec.decode(ids) == "[system]Be brief.[user]hi 😀[assistant]"
    assert [i for i in ids if i < 2] == [0, 1, 1]


def test_a_model_without_template_says_so(codec: TextCodec) -> None:
    """A chat glued together some other way is not what the model was trained on."""
    assert not codec.has_chat_template
    with pytest.raises(UsageError, match=r"no chat template.*`prompt`"):
        codec.encode_chat([{"role": "user", "content": "hi"}])


def templated(make_toy: Callable[..., Toy], fp32: Toy, template: str) -> TextCodec:
    return make_toy(type(fp32.spec)(layers=1), chat_template=template, precision="int4").model.codec


@pytest.mark.parametrize(
    "template",
    ["{{ 1 // 0 }}", "{{ messages[0].content + 1 }}", "{{ messages[0].no.way }}", "{{ range(10 ** 9) | list }}"],
)
def test_a_template_that_fails_is_one_sentence_too(make_toy: Callable[..., Toy], fp32: Toy, template: str) -> None:
    """Not everything that a template raises is jinja2's: ZeroDivisionError and TypeError pass right through."""
    codec = templated(make_toy, fp32, template)
    with pytest.raises(UsageError, match="chat template"):
        codec.encode_chat([{"role": "user", "content": "hi"}])


def test_a_template_that_is_no_template_is_a_damaged_artifact(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """Found when the model is loaded, not at the first chat."""
    with pytest.raises(ArtifactError, match=r"chat_template\.jinja"):
        templated(make_toy, fp32, "{% for m in messages %}")


def test_the_checkpoints_special_tokens_reach_the_template(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """bos_token is empty where the tokenizer adds none itself: a template that writes it must write the real one."""
    toy = make_toy(type(fp32.spec)(layers=1), chat_template=CHAT, precision="int4")
    assert toy.model.artifact.manifest.tokenizer.bos_token_id is None
    ids = toy.model.codec.encode_chat([{"role": "user", "content": "hi"}])
    assert [i for i in ids if i < 2] == [0, 1]
    assert ids[0] == 0


def test_one_beginning_of_sequence_token_whether_or_not_the_template_writes_it(
    make_toy: Callable[..., Toy], fp32: Toy
) -> None:
    for template in ("{{ bos_token }}{{ messages[0].content }}", "{{ messages[0].content }}"):
        toy = make_toy(type(fp32.spec)(bos=True, layers=1), chat_template=template, precision="int4")
        ids = toy.model.codec.encode_chat([{"role": "user", "content": "hi"}])
        assert ids == [0, *fp32.model.codec.encode("hi")], template


@pytest.mark.parametrize("text", ["\udcff", b"hi", None])
def test_what_is_no_text_is_refused(fp32: Toy, text: Any) -> None:
    """Surrogates from an undecodable command line: a TypeError deep inside the tokenizer."""
    with pytest.raises(UsageError):
        fp32.model.codec.encode(text)


def test_an_artifact_cannot_cut_or_pad_prompts(fp32: Toy, tmp_path: Path) -> None:
    """Made by someone else, its tokenizer.json may still hold what ours takes out on export."""
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    path = folder / "tokenizer.json"
    limits = {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}}
    path.write_text(json.dumps(json.loads(path.read_text()) | limits))
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][path.name] = {
        "size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }  # fmt: skip
    (folder / "manifest.json").write_text(json.dumps(manifest))
    text = "a prompt of more than four tokens, as most are"
    assert TextCodec(open_artifact(folder)).encode(text) == fp32.model.codec.encode(text)
