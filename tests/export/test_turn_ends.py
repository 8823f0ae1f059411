"""Tokens that end a turn: known by their text whatever a file calls them, from a GGUF as from a folder."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.export.test_gguf import write_gguf

from selfspec import load
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.gguf_checkpoint import GGUFCheckpoint
from selfspec.export.sentencepiece import CONTROL, NORMAL, USER_DEFINED
from selfspec.export.source import open_model
from selfspec.export.tokenizer import FolderTokenizer
from selfspec.export.turn_ends import turn_ends

if TYPE_CHECKING:
    from tests.conftest import Tools

Named = Sequence[tuple[str, int]]
EOS = "tokenizer.ggml.eos_token_id"


def toy(tools: Tools, path: Path, first: Named, metadata: dict[str, Any], pre: str = "qwen2") -> Path:
    spec = replace(tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1, head_dim=16), family="qwen2")
    return write_gguf(
        path, spec, tools.weights(spec), tokenizer=tools.byte_tokenizer(spec.vocab), metadata=metadata, pre=pre,
        first=first,
    )  # fmt: skip


def ends(tools: Tools, folder: Path, first: Named, metadata: dict[str, Any]) -> tuple[int, ...]:
    return GGUFCheckpoint(toy(tools, folder / "m.gguf", first, metadata)).tokenizer_files().eos_token_ids()


# Texts.


def test_texts_by_hand() -> None:
    """Every one of a list; what stands in the vocabulary, and nothing else."""
    assert turn_ends(["a", "<|im_end|>", "<|eot_id|>", "<|im_start|>"]) == {"<|im_end|>", "<|eot_id|>"}
    assert turn_ends(["</s>", "<s>", "<unk>"]) == {"</s>"}
    assert turn_ends([]) == set()


def test_a_token_that_only_parts_an_answer_is_no_end() -> None:
    """<|end|> ends Phi's turns, and in the Harmony format each message of one answer."""
    assert turn_ends(["<|end|>"]) == {"<|end|>"}
    assert turn_ends(["<|end|>", "<|return|>"]) == {"<|end|>", "<|return|>"}
    assert turn_ends(["<|end|>", "<|return|>", "<|call|>"]) == {"<|return|>", "<|call|>"}
    assert turn_ends(["<|end|>", "<|calls|>", "<|flush|>"]) == {"<|calls|>", "<|flush|>"}
    assert turn_ends(["</s>", "<|tool_response>"]) == {"<|tool_response>"}
    assert turn_ends(["</s>", "<eos>", "<end_of_turn>", "<s>"]) == {"<eos>", "<end_of_turn>"}


def test_separators_of_files_end_unless_a_key_names_another() -> None:
    """A completion of code that goes on with the next file."""
    assert turn_ends(["<|file_sep|>", "<|fim_pad|>", "<|fim_middle|>"]) == {"<|file_sep|>", "<|fim_pad|>"}
    assert turn_ends(["<|file_sep|>", "<|fim_pad|>"], {"fim_pad_token_id"}) == {"<|file_sep|>"}


# GGUFs.


@pytest.mark.parametrize(
    ("first", "eos", "expected"),
    [
        ([("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL)], 1, (0, 1)),
        ([("<|endoftext|>", CONTROL), ("<|im_end|>", USER_DEFINED)], 0, (0, 1)),
        ([("<eos>", CONTROL), ("<end_of_turn>", USER_DEFINED)], 0, (0, 1)),
        ([("<|end_of_text|>", CONTROL), ("<|eot_id|>", NORMAL)], 0, (0, 1)),
        ([("<pad>", CONTROL), ("<|eot_id|>", CONTROL), ("<|eom_id|>", USER_DEFINED)], 0, (0, 1, 2)),
        ([("<fim_pad>", CONTROL), ("<reponame>", NORMAL)], 7, (0, 1, 7)),
        ([("<|end|>", CONTROL), ("<|return|>", CONTROL), ("<|call|>", CONTROL)], 1, (1, 2)),
    ],
)
def test_every_end_is_known(tools: Tools, tmp_path: Path, first: Named, eos: int, expected: tuple[int, ...]) -> None:
    """One of two ends named by the file: the model talks on behind the other."""
    assert ends(tools, tmp_path, first, {EOS: eos}) == expected


def test_every_key_names_an_end(tools: Tools, tmp_path: Path) -> None:
    """Tokens of whatever text: the file's word is enough, and ids beyond the vocabulary are none."""
    first = [("[a]", CONTROL), ("[b]", CONTROL), ("[c]", CONTROL), ("[d]", CONTROL), ("<|file_sep|>", CONTROL)]
    for keys, expected in (
        ({EOS: 0}, (0, 4)),
        ({EOS: 0, "tokenizer.ggml.eot_token_id": 1}, (0, 1, 4)),
        ({EOS: 0, "tokenizer.ggml.eot_token_id": 1, "tokenizer.ggml.eom_token_id": 2}, (0, 1, 2, 4)),
        ({EOS: 0, "tokenizer.ggml.fim_sep_token_id": 3}, (0, 3)),
        ({EOS: 9999, "tokenizer.ggml.eot_token_id": 2}, (2, 4)),
    ):
        assert ends(tools, tmp_path, first, keys) == expected, keys


@pytest.mark.parametrize("end", ["<|im_end|>", "<end_of_turn>"])
def test_an_end_shows_no_text_and_the_export_says_what_was_changed(tools: Tools, tmp_path: Path, end: str) -> None:
    """Stated as ordinary text, it was printed behind every answer."""
    file = toy(tools, tmp_path / "m.gguf", [("<|endoftext|>", CONTROL), (end, USER_DEFINED)], {EOS: 0})
    report = export_model(*open_model(str(file)), tmp_path / "out", ExportOptions("fp32"))
    assert [warning for warning in report.warnings if end in warning and "no control token" in warning]
    assert not [warning for warning in report.warnings if "endoftext" in warning]
    codec = load(report.output, threads=1).codec
    assert codec.eos_token_ids == {0, 1}
    assert codec.encode(f"a{end}")[-1] == 1
    assert codec.decode([1]) == ""
    assert report.manifest.tokenizer.eos_token_ids == (0, 1)


def test_recommended_sampling_is_the_artifacts_generation_config(tools: Tools, tmp_path: Path) -> None:
    """What a folder says in generation_config.json, a GGUF says in general.sampling."""
    first = [("<|endoftext|>", CONTROL), ("<|im_end|>", CONTROL)]
    metadata = {"general.sampling.temp": 0.75, "general.sampling.top_k": 20, "general.sampling.penalty_repeat": 1.5}
    source = GGUFCheckpoint(toy(tools, tmp_path / "m.gguf", first, {EOS: 1} | metadata)).tokenizer_files()
    assert source.generation_config() == {
        "eos_token_id": [0, 1], "temperature": 0.75, "top_k": 20, "repetition_penalty": 1.5, "do_sample": True,
    }  # fmt: skip
    broken = GGUFCheckpoint(
        toy(tools, tmp_path / "n.gguf", first, {EOS: 1, "general.sampling.top_p": float("nan")})
    ).tokenizer_files()
    assert broken.generation_config() == {"eos_token_id": [0, 1]}


# Folders.


def folder(tools: Tools, path: Path, template: str | None, *special: str) -> FolderTokenizer:
    """A folder whose config names token 1 alone, with ``special`` tokens instead of the first ids."""
    tools.write(path, tools.spec(layers=1, hidden=32, ff=64, heads=2, kv_heads=1))
    data = json.loads((path / "tokenizer.json").read_text())
    vocab = {token: i for token, i in data["model"]["vocab"].items() if i >= len(special)}
    data["model"]["vocab"] = {token: i for i, token in enumerate(special)} | vocab
    entry = data["added_tokens"][0]
    data["added_tokens"] = [entry | {"id": i, "content": token} for i, token in enumerate(special)]
    (path / "tokenizer.json").write_text(json.dumps(data))
    config = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(config | {"eos_token_id": 1}))
    for name in ("generation_config.json", "tokenizer_config.json"):
        (path / name).unlink(missing_ok=True)
    if template is not None:
        (path / "chat_template.jinja").write_text(template)
    return FolderTokenizer(path, 320)


def test_a_folders_template_tells_what_ends_a_turn(tools: Tools, tmp_path: Path) -> None:
    """A fine-tuned model whose configs kept the base model's end: transformers talks on, and so did we."""
    special = ("<|im_start|>", "<|endoftext|>", "<|im_end|>", "<|eot_id|>")
    chatml = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    assert folder(tools, tmp_path / "a", chatml, *special).eos_token_ids() == (1, 2)
    assert folder(tools, tmp_path / "b", None, *special).eos_token_ids() == (1,)
    source = folder(tools, tmp_path / "c", chatml.replace("<|im_end|>", "<|eot_id|>"), *special)
    assert source.eos_token_ids() == (1, 3)


def test_a_folder_whose_tokenizer_config_alone_names_the_end(tools: Tools, tmp_path: Path) -> None:
    """Three files may name it, and each may be the only one that is right."""
    folder(tools, tmp_path / "a", None, "<|im_start|>", "<|endoftext|>", "<|im_end|>")
    (tmp_path / "a" / "tokenizer_config.json").write_text('{"eos_token": {"content": "<|im_end|>"}}')
    assert FolderTokenizer(tmp_path / "a", 320).eos_token_ids() == (1, 2)
