"""A tokenizer and a model that do not fit, and tokens that only files beside tokenizer.json name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tokenizers import Tokenizer

from selfspec.errors import ArtifactError, CheckpointError
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model
from selfspec.export.tokenizer import FolderTokenizer
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.text import TextCodec

if TYPE_CHECKING:
    from tests.conftest import Tools

CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% endfor %}"


def folder_of(tools: Tools, path: Path, *, vocab: int = 320, **files: dict[str, Any]) -> Path:
    """A toy whose tokenizer has the ids 0 to 319, with further JSON files; double underscores are dots."""
    folder = tools.write(path, tools.spec(layers=2, hidden=32, ff=64, vocab=vocab))
    for name, data in files.items():
        (folder / f"{name}.json").write_text(json.dumps(data))
    return folder


def grown(folder: Path, *texts: str) -> Path:
    """With ``texts`` added to tokenizer.json, as a tool does that never resizes the model."""
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(list(texts))
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def export(folder: Path, out: Path) -> tuple[str, ...]:
    return export_model(*open_model(str(folder)), out, ExportOptions("fp32", kernels="ort")).warnings


def test_a_template_that_writes_a_token_without_a_row_is_refused_by_name(tools: Tools, tmp_path: Path) -> None:
    """Exported without a word, and every turn of a chat then failed as the user's mistake."""
    folder = grown(folder_of(tools, tmp_path / "m"), "<|im_start|>", "<unused>")
    (folder / "chat_template.jinja").write_text(CHATML)
    with pytest.raises(CheckpointError, match=r"has '<\|im_start\|>' as 320, .* ends at 319, and the chat template"):
        export(folder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_elsewhere_it_is_a_warning_and_at_run_time_the_models_fault(tools: Tools, tmp_path: Path) -> None:
    folder = grown(folder_of(tools, tmp_path / "m"), "<|im_start|>", *(f"<|{i}|>" for i in range(7)))
    (warning,) = export(folder, tmp_path / "out")
    assert "the tokenizer has '<|im_start|>' as 320, '<|0|>' as 321" in warning
    assert "and 3 more such tokens, and the model's vocabulary ends at 319" in warning
    codec = TextCodec(open_artifact(tmp_path / "out"))
    with pytest.raises(ArtifactError, match=r"makes '<\|im_start\|>' of this text, token 320, .* ends at 319"):
        codec.encode("a<|im_start|>b")
    assert max(codec.encode("plain text")) < 320


def test_ordinary_pieces_without_rows_are_told_too(tools: Tools, tmp_path: Path) -> None:
    """The tokenizer of a larger model: no added token, and yet texts that cannot run."""
    folder, larger = folder_of(tools, tmp_path / "m", vocab=280), folder_of(tools, tmp_path / "larger")
    (larger / "tokenizer.json").rename(folder / "tokenizer.json")
    assert "40 more" not in export(folder, tmp_path / "out")[0]
    assert "and 35 more such tokens, and the model's vocabulary ends at 279" in export(folder, tmp_path / "again")[0]


def test_a_model_with_rows_to_spare_is_nothing_to_tell(tools: Tools, tmp_path: Path) -> None:
    """Qwen's embeddings are padded; and the row is there once somebody resizes the model."""
    folder = folder_of(tools, tmp_path / "m", vocab=352)
    smaller = folder_of(tools, tmp_path / "smaller")
    (smaller / "tokenizer.json").rename(folder / "tokenizer.json")
    (grown(folder, "<|im_start|>") / "chat_template.jinja").write_text(CHATML)
    assert export(folder, tmp_path / "out") == ()


TOKEN = {"content": "<|tool|>", "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
DECLARED: dict[str, dict[str, Any]] = {
    "decoder": {"tokenizer_config": {"added_tokens_decoder": {
        "0": TOKEN | {"content": "<|bos|>", "special": True}, "321": TOKEN | {"special": True},
        "320": TOKEN | {"content": "<think>", "special": False},
    }}},
    "named and extra": {"tokenizer_config": {
        "extra_special_tokens": ["<|tool|>", "<|eos|>"], "pad_token": "<|pad|>", "eos_token": "<|eos|>",
    }},
    "additional": {"tokenizer_config": {"additional_special_tokens": ["<|tool|>", "<|call|>"]}},
    "decoder and extra": {"tokenizer_config": {
        "added_tokens_decoder": {"320": TOKEN | {"special": False}}, "extra_special_tokens": ["<|tool|>", "<|call|>"],
    }},
    "map": {"special_tokens_map": {"pad_token": TOKEN | {"content": "<|pad|>"}, "eos_token": "<|eos|>"}},
    "map and plain": {
        "special_tokens_map": {"extra_special_tokens": ["<|tool|>"]}, "added_tokens": {"<word>": 321, "<|tool|>": 320},
    },
}  # fmt: skip
TEXT = "a<|tool|> b <think>c<|pad|><|call|><word><|eos|>"


@pytest.mark.parametrize("declared", DECLARED)
def test_a_declared_token_is_one_token(tools: Tools, tmp_path: Path, declared: str) -> None:
    """Pieces where transformers has one token: the model sees '<', '|', 'too' and 'l' at the end of every turn."""
    folder = folder_of(tools, tmp_path / "m", vocab=330, **DECLARED[declared])
    small = folder_of(tools, tmp_path / "small")
    (small / "tokenizer.json").rename(folder / "tokenizer.json")
    before = Tokenizer.from_file(str(folder / "tokenizer.json")).get_vocab_size()
    after = Tokenizer.from_str(FolderTokenizer(folder, 330).tokenizer_json())
    assert after.get_vocab_size() > before
    name = "<|pad|>" if declared == "map" else "<|tool|>"
    assert after.encode(name, add_special_tokens=False).ids == [after.token_to_id(name)]


@pytest.mark.reference
@pytest.mark.parametrize("declared", DECLARED)
def test_declared_tokens_have_transformers_ids(tools: Tools, tmp_path: Path, declared: str) -> None:
    from transformers import PreTrainedTokenizerFast

    folder = folder_of(tools, tmp_path / "m", **DECLARED[declared])
    theirs = PreTrainedTokenizerFast.from_pretrained(folder)
    ours = Tokenizer.from_str(FolderTokenizer(folder, 330).tokenizer_json())
    assert ours.get_vocab() == theirs.get_vocab()
    assert ours.encode(TEXT, add_special_tokens=False).ids == theirs.encode(TEXT, add_special_tokens=False)
    added = {t.content: t.special for t in ours.get_added_tokens_decoder().values()}
    assert added == {t.content: t.special for t in theirs.added_tokens_decoder.values()}


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": ["<|tool|>"]}, {"added_tokens_decoder": {"x": TOKEN}}, {"pad_token": 7},
        {"added_tokens_decoder": {"320": "<|tool|>"}}, {"additional_special_tokens": [{"content": 3}]},
    ],
)  # fmt: skip
def test_declared_tokens_that_are_none_are_one_sentence(tools: Tools, tmp_path: Path, config: dict[str, Any]) -> None:
    folder = folder_of(tools, tmp_path / "m", tokenizer_config=config)
    with pytest.raises(CheckpointError, match="download it again"):
        FolderTokenizer(folder, 320).tokenizer_json()


def test_an_absurd_id_is_one_sentence_and_not_gigabytes(tools: Tools, tmp_path: Path) -> None:
    """The library collects every id below the largest that no token has, and ends the process where memory is short."""
    folder = folder_of(tools, tmp_path / "m", tokenizer_config={"pad_token": "<|pad|>"})
    data = json.loads((folder / "tokenizer.json").read_text())
    data["model"]["vocab"]["a"] = 2**31 - 1
    (folder / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(CheckpointError, match="a token of id 2147483647, more than any vocabulary has"):
        FolderTokenizer(folder, 320).tokenizer_json()


def test_two_tokens_of_one_id_are_one_sentence(tools: Tools, tmp_path: Path) -> None:
    """The library writes one of them, by chance, and cannot read the merges of the other: what is returned can be read
    again, or it is one sentence."""
    folder = folder_of(tools, tmp_path / "m", tokenizer_config={"pad_token": "<|pad|>"})
    data = json.loads((folder / "tokenizer.json").read_text())
    merge = data["model"]["merges"][0]
    data["model"]["vocab"]["".join(merge)] = data["model"]["vocab"]["a"]
    (folder / "tokenizer.json").write_text(json.dumps(data))
    told: list[str] = []
    for _ in range(10):
        try:
            text = FolderTokenizer(folder, 320).tokenizer_json()
        except CheckpointError as error:
            told.append(str(error))
        else:
            Tokenizer.from_str(text)
    assert all("contradicts itself" in sentence for sentence in told)
