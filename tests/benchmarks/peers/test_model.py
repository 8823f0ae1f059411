"""The Hugging Face folder that peers begin with, made from a checkpoint that is no such folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.peers.command import chosen_names, chosen_peers, main
from benchmarks.peers.model import hf_config, write_hf_folder
from selfspec.errors import UnsupportedModelError, UsageError
from selfspec.export.blocks import Blocks
from selfspec.export.checkpoint import SafetensorsCheckpoint
from selfspec.export.source import open_model


def _checkpoint(tools: Any, folder: Path, **spec: Any) -> SafetensorsCheckpoint:
    tools.write(folder, tools.spec(layers=2, **spec))
    return SafetensorsCheckpoint(folder)


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
def test_a_written_folder_reads_back_as_the_same_model(tools: Any, tmp_path: Path, family: str) -> None:
    source = _checkpoint(tools, tmp_path / "source", family=family)
    write_hf_folder(source, tmp_path / "hf")
    copy = SafetensorsCheckpoint(tmp_path / "hf")
    assert copy.config == source.config
    assert copy.shapes() == source.shapes()
    for name, (rows, *_) in source.shapes().items():
        written, read = copy.read(name, 0, rows), source.read(name, 0, rows)
        assert not isinstance(written, Blocks)
        assert not isinstance(read, Blocks)
        assert np.array_equal(written, read), name
    assert copy.tokenizer_files().eos_token_ids() == source.tokenizer_files().eos_token_ids()
    assert not (tmp_path / "hf.part").exists()


@pytest.mark.real
def test_the_wheels_gguf_becomes_a_folder_of_the_same_configuration() -> None:
    checkpoint, _ = open_model("smollm2-135m")
    config = hf_config(checkpoint.config, [2], 1)
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100000.0
    assert (config["num_hidden_layers"], config["tie_word_embeddings"], config["eos_token_id"]) == (30, True, 2)


def test_another_family_is_refused_and_nothing_is_written(tools: Any, tmp_path: Path) -> None:
    source = _checkpoint(tools, tmp_path / "source", family="qwen3")
    with pytest.raises(UnsupportedModelError, match="qwen3: only a plain Llama's or Gemma 3's"):
        write_hf_folder(source, tmp_path / "hf")
    assert not list(tmp_path.glob("hf*"))


def test_names_are_taken_once_and_unknown_ones_list_the_known() -> None:
    assert chosen_names("int4, fp32,int4", ("fp32", "int4"), "precision") == ("int4", "fp32")
    with pytest.raises(UsageError, match=r"fp16.*fp32, int4"):
        chosen_names("fp16", ("fp32", "int4"), "precision")


def test_ours_runs_in_every_precision_and_the_peers_that_are_named() -> None:
    found = chosen_peers("transformers", ("fp32", "int4"))
    assert [(p.name, p.precision) for p in found] == [
        ("selfspec", "fp32"), ("selfspec", "int4"), ("transformers", "fp32"),
    ]  # fmt: skip
    assert {p.precision for p in chosen_peers(None, ("int4",))} == {"int4"}


def test_a_part_never_replaces_the_results_of_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    for option in (("--peers", "transformers"), ("--precision", "int4"), ("--max-prompts", "12")):
        assert main(option) == 2
        assert f"{option[0]} measures a part" in capsys.readouterr().err
