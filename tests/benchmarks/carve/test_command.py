"""benchmarks.carve on a toy parent, whole: what it writes, says and refuses; and on the real one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file

from benchmarks.carve import command as carve_moe
from benchmarks.carve.checkpoint import read_mlp, write_checkpoint
from benchmarks.carve.command import CarvedRow, Dense, Shape, carve, cut_layers, own_conversations, table
from selfspec.bench.prompts import built_in_prompts, spread
from selfspec.errors import UnsupportedModelError, UsageError
from selfspec.export.source import open_model
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.messages import Message

if TYPE_CHECKING:
    from tests.conftest import Tools

TEMPLATE = (
    "{% for m in messages %}<|bos|>{{ m.role }}\n{{ m.content }}<|eos|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|bos|>assistant\n{% endif %}"
)
SHAPE = Shape(experts=4, shared=32, experts_per_token=2)
FEW: dict[str, Any] = {"calibration_tokens": 400, "held_out_tokens": 60}


@pytest.fixture(scope="module")
def parent(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tools.spec(layers=3, context=2048, tied=True, embedding=0.1)
    return tools.write(tmp_path_factory.mktemp("carve") / "parent", spec, chat_template=TEMPLATE)


@pytest.fixture(scope="module")
def carved(parent: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[CarvedRow]]:
    output = tmp_path_factory.mktemp("carve") / "moe"
    return output, carve(output, SHAPE, parent=str(parent), **FEW)


def _digests(folder: Path) -> dict[str, str]:
    return {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}


def test_every_tensor_of_qwen2_moe_is_written(carved: tuple[Path, list[CarvedRow]]) -> None:
    tensors = load_file(carved[0] / "model.safetensors")
    layer = {name.split(".", 3)[3]: values.shape for name, values in tensors.items() if ".layers.1." in name}
    experts = {
        f"mlp.experts.{e}.{part}_proj.weight": (64, 24) if part == "down" else (24, 64)
        for e in range(4) for part in ("gate", "up", "down")
    }  # fmt: skip
    assert layer == experts | {
        "mlp.gate.weight": (4, 64), "mlp.shared_expert_gate.weight": (1, 64),
        "mlp.shared_expert.gate_proj.weight": (32, 64), "mlp.shared_expert.up_proj.weight": (32, 64),
        "mlp.shared_expert.down_proj.weight": (64, 32),
        "input_layernorm.weight": (64,), "post_attention_layernorm.weight": (64,),
        "self_attn.q_proj.weight": (64, 64), "self_attn.k_proj.weight": (32, 64), "self_attn.v_proj.weight": (32, 64),
        "self_attn.q_proj.bias": (64,), "self_attn.k_proj.bias": (32,), "self_attn.v_proj.bias": (32,),
        "self_attn.o_proj.weight": (64, 64),
    }  # fmt: skip
    assert {values.dtype.name for values in tensors.values()} == {"float32"}
    config = json.loads((carved[0] / "config.json").read_text())
    sizes = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
    assert [config[key] for key in sizes] == [4, 2, 24, 32]
    assert config["norm_topk_prob"] is False
    assert (carved[0] / "chat_template.jinja").read_text() == TEMPLATE


def test_rows_are_the_dense_model_then_all_experts_then_fewer(carved: tuple[Path, list[CarvedRow]]) -> None:
    rows = carved[1]
    assert [row.kept for row in rows] == [None, 4, 3, 2, 1]
    assert rows[0].agreement == 1
    assert rows[1].agreement > 0.9
    assert rows[1].loss == pytest.approx(rows[0].loss, abs=0.1)
    assert rows[4].agreement < rows[1].agreement
    assert table(rows[:2]).splitlines()[2] == f"| dense | 1.00 | {rows[0].loss:.2f} |"


def test_the_same_seed_gives_the_same_bytes_and_another_one_others(
    parent: Path, carved: tuple[Path, list[CarvedRow]], tmp_path: Path
) -> None:
    few = FEW | {"parent": str(parent), "held_out_tokens": 0}
    assert carve(tmp_path / "again", SHAPE, **few) == []
    carve(tmp_path / "other", SHAPE, seed=1, **few)
    first, again, other = (_digests(folder) for folder in (carved[0], tmp_path / "again", tmp_path / "other"))
    assert first == again
    assert [name for name in first if first[name] != other[name]] == ["model.safetensors"]
    assert {path.name for path in tmp_path.iterdir()} == {"again", "other"}


def test_conversations_are_of_the_models_own_making(parent: Path, tmp_path: Path) -> None:
    """Would catch prompts that are all the same, or the built-in ones, which the comparison is made on."""
    dense = Dense(open_model(str(parent))[0], tmp_path / "dense")
    found = list(own_conversations(dense.model, 700, 0))
    texts = [dense.model.codec.decode(r.prompt_ids) for r in found]
    assert len(set(texts)) == len(texts) > 1
    sizes = [len(r.prompt_ids) + len(r.answer_ids) for r in found]
    assert sum(sizes) >= 700 > sum(sizes[:-1])


@pytest.mark.reference
def test_transformers_computes_what_the_table_is_made_of(parent: Path, tmp_path: Path) -> None:
    """With all experts, which is nearly the dense model, and with half of them, as the checkpoint says."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    checkpoint, _ = open_model(str(parent))
    dense = Dense(checkpoint, tmp_path / "dense")
    ids = [i % 320 for i in range(2, 2 + 7 * 40, 7)]
    layers = cut_layers(dense, [ids, ids[::-1]], SHAPE, 0)
    write_checkpoint(tmp_path / "moe", checkpoint, layers, SHAPE.experts_per_token)

    def theirs(folder: Path, **config: Any) -> Any:
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **config)
        with torch.no_grad():
            return model(torch.tensor([ids])).logits[0].numpy()

    def ours(kept: int) -> Any:
        hidden = dense.run([ids], lambda layer, x: layers[layer].output(read_mlp(checkpoint, layer), x, kept))[0]
        return Conversation(dense.model.sessions).stack.logits(hidden)

    whole, every, half = theirs(parent), theirs(tmp_path / "moe", num_experts_per_tok=4), theirs(tmp_path / "moe")
    scale = np.abs(whole).max()
    assert np.abs(every - ours(4)).max() < 1e-4 * scale
    assert np.abs(half - ours(2)).max() < 1e-4 * scale
    assert np.abs(every - whole).max() < 0.02 * scale
    assert np.abs(half - whole).max() > 0.1 * scale
    messages: list[Message] = [{"role": "user", "content": "Hi"}]
    chat = AutoTokenizer.from_pretrained(tmp_path / "moe").apply_chat_template(messages, add_generation_prompt=True)
    assert (chat if isinstance(chat, list) else chat["input_ids"]) == dense.model.codec.encode_chat(messages)


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (Shape(experts=1), "--experts 1: it must be 2 or more"),
        (Shape(4, 32, 5), "--experts-per-token 5: it must be between 1 and 4"),
        (Shape(4, 32, 0), "--experts-per-token 0: it must be between 1 and 4"),
        (Shape(4, 30, 2), "--shared 30 leaves 98 of 128 neurons to 4 experts"),
        (Shape(4, 128, 2), "--shared 128 leaves 0 of 128"),
        (Shape(4, 0, 2), "--shared 0 leaves 128 of 128"),
    ],
)
def test_a_shape_that_cannot_be_cut_is_refused(shape: Shape, words: str, parent: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=words):
        carve(tmp_path / "out", shape, parent=str(parent))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "spec",
    [
        {"family": "qwen3"}, {"config": {"mlp_bias": True}}, {"config": {"hidden_act": "gelu_pytorch_tanh"}},
        {"rope_scaling": {"rope_type": "linear", "factor": 2.0}},
    ],
)  # fmt: skip
def test_a_parent_of_other_arithmetic_is_refused(spec: dict[str, Any], tools: Tools, tmp_path: Path) -> None:
    folder = tools.write(tmp_path / "parent", tools.spec(**spec), chat_template=TEMPLATE)
    with pytest.raises(UnsupportedModelError, match="parent cannot be carved: it must be a llama"):
        carve(tmp_path / "out", SHAPE, parent=str(folder))
    assert not (tmp_path / "out").exists()


def test_a_parent_without_a_chat_template_is_refused_and_nothing_is_left(tools: Tools, tmp_path: Path) -> None:
    folder = tools.write(tmp_path / "parent", tools.spec())
    with pytest.raises(UsageError, match="no chat template"):
        carve(tmp_path / "out", SHAPE, parent=str(folder))
    assert [path.name for path in tmp_path.iterdir()] == ["parent"]


def test_the_command_refuses_to_overwrite_in_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").write_text("mine")
    assert carve_moe.main([str(tmp_path / "mine")]) == 2
    told = capsys.readouterr().err
    assert "exists already" in told
    assert told.count("\n") == 1
    assert (tmp_path / "mine").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seed", "-1"], "--seed -1"),
        (["--shared", "5"], "--shared 5 leaves 123"),
        (["--experts-per-token", "17"], "and 16"),
    ],
)
def test_the_command_refuses_what_cannot_work(
    arguments: list[str], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    parent: Path, capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setattr(carve_moe, "carve", _of(parent))
    assert carve_moe.main([str(tmp_path / "out"), *arguments]) == 2
    told = capsys.readouterr().err
    assert words in told
    assert told.count("\n") == 1


def _of(parent: Path) -> Any:
    """``carve`` of the toy: the wheel need not be there to refuse."""
    return lambda output, shape, seed: carve(output, shape, seed=seed, parent=str(parent))


@pytest.mark.real
@pytest.mark.slow
def test_smollm2_is_the_dense_model_with_all_experts_and_degrades_with_fewer(tmp_path: Path) -> None:
    """Bounds below what was measured with so few tokens."""
    rows = carve(
        tmp_path / "moe", calibration_tokens=300, held_out_tokens=120, held_out_prompts=spread(built_in_prompts(), 4)
    )
    by_kept = {row.kept: row.agreement for row in rows}
    assert by_kept[16] >= 0.98
    assert by_kept[12] >= 0.6
    assert by_kept[16] > by_kept[12] > by_kept[4]
