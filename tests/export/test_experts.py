"""Experts on their way into weights.bin: both layouts of checkpoints, padding, order of rows; and what is refused."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from selfspec.check.stored_weights import matrices_of
from selfspec.errors import CheckpointError, UsageError
from selfspec.export.experts import count_parameters, expert_chunks, padded, settled_forms
from selfspec.export.source import open_model
from selfspec.models.config import MoEConfig
from selfspec.models.moe import MIXTRAL, SparseMLP, expert_specs
from selfspec.models.ort_experts import check_fast
from selfspec.models.tensors import Role, Segment, StoredTensor, TensorSpec

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

Weights = dict[str, Any]


def two_experts(width: int = 3, cols: int = 2) -> tuple[TensorSpec, TensorSpec, dict[str, Any]]:
    """(gate and up, down, their parts): every value tells expert, matrix and row."""
    specs = [s for s in expert_specs("m", MIXTRAL, MoEConfig(2, 1, width, (0,)), cols) if s.experts]
    parts = {}
    for i, name in enumerate(n for s in specs for n in s.parts):
        rows, columns = (width, cols) if i < 4 else (cols, width)
        parts[name] = (100 * i + np.arange(rows, dtype=np.float32)[:, None]) * np.ones(columns, dtype=np.float32)
    return specs[0], specs[1], parts


def rows(spec: TensorSpec, parts: dict[str, Any], multiple: int, *, paired: bool, most_rows: int = 100) -> Any:
    def read(part: str, start: int, stop: int) -> Any:
        return parts[part].reshape(-1, parts[part].shape[-1])[start:stop]

    found = list(expert_chunks(spec, read, multiple, paired=paired, most_rows=most_rows))
    assert all(len(chunk) <= 2 * max(multiple, most_rows) for chunk in found)
    whole = np.concatenate(found)
    assert whole.shape == padded(spec, multiple).shape
    return whole


@pytest.mark.parametrize("most_rows", [1, 2, 100])
def test_rows_come_apart_or_in_pairs_and_padded(most_rows: int) -> None:
    """By hand: parts 0 and 1 are gate and up of expert 0, 2 and 3 of expert 1; a padded row is zero."""
    gate_up, down, parts = two_experts()
    first = rows(gate_up, parts, 1, paired=False, most_rows=most_rows)[:, 0].tolist()
    assert first == [0, 1, 2, 100, 101, 102, 200, 201, 202, 300, 301, 302]
    first = rows(gate_up, parts, 1, paired=True, most_rows=most_rows)[:, 0].tolist()
    assert first == [0, 100, 1, 101, 2, 102, 200, 300, 201, 301, 202, 302]
    first = rows(gate_up, parts, 4, paired=False, most_rows=most_rows)[:, 0].tolist()
    assert first == [0, 1, 2, 0, 100, 101, 102, 0, 200, 201, 202, 0, 300, 301, 302, 0]
    first = rows(gate_up, parts, 4, paired=True, most_rows=most_rows)[:, 0].tolist()
    assert first == [0, 100, 1, 101, 2, 102, 0, 0, 200, 300, 201, 301, 202, 302, 0, 0]
    wide = rows(down, parts, 4, paired=True, most_rows=most_rows)
    assert wide.tolist() == [[400] * 3 + [0], [401] * 3 + [0], [500] * 3 + [0], [501] * 3 + [0]]


def test_a_fused_tensor_gives_the_same_rows() -> None:
    gate_up, down, parts = two_experts()
    names = [n for s in (gate_up, down) for n in s.parts]
    gates = [np.concatenate([parts[names[i]], parts[names[i + 1]]]) for i in (0, 2)]
    fused = {
        "m.mlp.experts.gate_up_proj": np.stack(gates),
        "m.mlp.experts.down_proj": np.stack([parts[n] for n in names[4:]]),
    }
    settled = settled_forms([gate_up, down], {name: w.shape for name, w in fused.items()})
    for spec, form in zip((gate_up, down), settled, strict=True):
        assert form.parts != spec.parts
        assert form.shape == spec.shape
        for paired in (False, True):
            np.testing.assert_array_equal(
                rows(form, fused, 4, paired=paired, most_rows=2), rows(spec, parts, 4, paired=paired)
            )


def test_padding_is_of_experts_alone() -> None:
    spec = TensorSpec("m", ("m",), ((3, 5),), Role.LINEAR)
    assert padded(spec, 32) is spec


def artifact_of(tools: Tools, folder: Path, weights: Weights | None = None, **spec: Any) -> Path:
    """Exported from a checkpoint whose weights may have been changed."""
    source = tools.write(folder / "checkpoint", tools.spec(**spec))
    if weights is not None:
        save_file(weights, source / "model.safetensors")
    return tools.export(source, folder / "artifact", precision="fp32")


@pytest.mark.parametrize("family", ["granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"])
def test_both_layouts_of_a_checkpoint_make_the_same_bytes(tools: Tools, tmp_path: Path, family: str) -> None:
    """Every expert, every row, in its place."""
    single, fused = (artifact_of(tools, tmp_path / str(f), family=family, layers=2, fused=f) for f in (False, True))
    assert (single / "weights.bin").read_bytes() == (fused / "weights.bin").read_bytes()


def test_every_expert_is_exported(tools: Tools, tmp_path: Path) -> None:
    spec = tools.spec(family="olmoe", layers=2)
    folder = artifact_of(tools, tmp_path, family="olmoe", layers=2)
    weights = tools.weights(spec)
    stored = dict(
        m for g in folder.glob("graphs/cpu/block*.onnx") for m in matrices_of(folder, g.relative_to(folder).as_posix())
    )
    experts = stored["model.layers.1.mlp.experts.gate_up_proj"].reshape(8, 2, spec.ff, spec.hidden)
    downs = stored["model.layers.1.mlp.experts.down_proj"].reshape(8, spec.hidden, spec.ff)
    for e in range(8):
        module = f"model.layers.1.mlp.experts.{e}"
        np.testing.assert_array_equal(experts[e, 0], weights[f"{module}.gate_proj.weight"])
        np.testing.assert_array_equal(experts[e, 1], weights[f"{module}.up_proj.weight"])
        np.testing.assert_array_equal(downs[e], weights[f"{module}.down_proj.weight"])


def without(weights: Weights, name: str) -> Weights:
    return {n: w for n, w in weights.items() if n != name}


def test_a_checkpoint_that_lacks_an_expert_is_refused(tools: Tools, tmp_path: Path) -> None:
    name = "model.layers.1.mlp.experts.7.up_proj.weight"
    weights = without(tools.weights(tools.spec(family="olmoe", layers=2)), name)
    with pytest.raises(CheckpointError, match=f"lacks the tensor {re.escape(name)}"):
        artifact_of(tools, tmp_path, weights, family="olmoe", layers=2)


def test_an_expert_too_many_is_refused(tools: Tools, tmp_path: Path) -> None:
    weights = tools.weights(tools.spec(family="olmoe", layers=2))
    weights["model.layers.1.mlp.experts.8.up_proj.weight"] = weights["model.layers.1.mlp.experts.7.up_proj.weight"]
    with pytest.raises(CheckpointError, match=r"holds the tensor model\.layers\.1\.mlp\.experts\.8\."):
        artifact_of(tools, tmp_path, weights, family="olmoe", layers=2)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_a_fused_tensor_of_another_shape_is_refused_by_name(tools: Tools, tmp_path: Path, axis: int) -> None:
    """An expert too few, rows that are no gate and up, or transposed as some models store them."""
    name = "model.layers.1.mlp.experts.gate_up_proj"
    weights = tools.fused(tools.weights(tools.spec(family="olmoe", layers=2)))
    weights[name] = np.ascontiguousarray(np.delete(weights[name], 0, axis))
    with pytest.raises(CheckpointError, match=rf"{name} has shape \[\d+, \d+, \d+\]; its config says \[8, 256, 64\]"):
        artifact_of(tools, tmp_path, weights, family="olmoe", layers=2)


def test_half_of_each_layout_is_refused(tools: Tools, tmp_path: Path) -> None:
    spec = tools.spec(family="olmoe", layers=2)
    weights = tools.weights(spec)
    name = "model.layers.0.mlp.experts.gate_up_proj"
    weights[name] = tools.fused(weights)[name]
    with pytest.raises(CheckpointError, match=rf"holds the tensor {name}"):
        artifact_of(tools, tmp_path, weights, family="olmoe", layers=2)


def test_an_expert_that_is_not_finite_is_refused(tools: Tools, tmp_path: Path) -> None:
    weights = tools.fused(tools.weights(tools.spec(family="olmoe", layers=2)))
    weights["model.layers.1.mlp.experts.down_proj"][7, 3, 5] = np.inf
    with pytest.raises(CheckpointError, match=r"experts\.down_proj holds values that are not finite"):
        artifact_of(tools, tmp_path, weights, family="olmoe", layers=2)


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_a_width_is_padded_to_whole_blocks_and_the_padding_is_stored(
    make_toy: Callable[..., Toy], tools: Tools, precision: str
) -> None:
    """48 wide, stored as 64, in every precision that has blocks: the fast path of QMoE takes nothing else."""
    toy = make_toy(tools.spec(family="qwen2_moe", layers=2), precision=precision)
    stored = {name: s for (_, name), s in tools.stored(toy.folder).items()}
    bits, name = toy.model.artifact.manifest.quantization.bits, "model.layers.0.mlp.experts"
    assert stored[f"{name}.gate_up_proj.codes"].shape == (8, 2 * 64, 64 * bits // 8)
    assert stored[f"{name}.down_proj.codes"].shape == (8, 64, 64 * bits // 8)
    moe = toy.model.artifact.manifest.model.moe
    assert moe is not None
    assert moe.expert_size == 48


def test_a_hidden_size_of_no_whole_blocks_is_refused(tools: Tools, tmp_path: Path) -> None:
    source = tools.write(tmp_path / "checkpoint", tools.spec(family="olmoe", layers=2))
    with pytest.raises(UsageError, match="`block_size` 128 does not divide the 64 columns"):
        tools.export(source, tmp_path / "artifact", precision="int4", block_size=128)


def matrix(name: str, cols: int = 64, bits: int = 4, size: int = 32) -> StoredTensor:
    scales = Segment("float32", (8, cols // size), 0)
    return StoredTensor(name, (8, cols), bits, Segment("uint8", (8, cols * bits // 8), 0), scales, block_size=size)


@pytest.mark.parametrize("down", [{"cols": 48}, {"bits": 8}, {"size": 16}, {"bits": 2}])
def test_what_qmoe_would_unpack_on_every_call_is_never_exported(down: dict[str, int]) -> None:
    def moe(down: StoredTensor, up: StoredTensor) -> SparseMLP:
        return SparseMLP(0, matrix("router"), up, down, "silu", 2, 1, "all", False, 1.0)

    check_fast(moe(matrix("down"), matrix("up")))
    with pytest.raises(ValueError, match="whole blocks of one kind"):
        check_fast(
            moe(matrix("down", **down), matrix("up", bits=down.get("bits", 4)) if down == {"bits": 2} else matrix("up"))
        )


def test_parameters_are_counted_whole_and_as_a_token_uses_them(tools: Tools, tmp_path: Path) -> None:
    """By hand, of two layers: 8 experts, 4 of them active."""
    spec = tools.spec(family="olmoe", layers=2)
    source = tools.write(tmp_path / "checkpoint", spec)
    checkpoint, _ = open_model(str(source))
    shapes = {name: w.shape for name, w in load_file(source / "model.safetensors").items()}
    from selfspec.models.registry import family_of

    specs = settled_forms(family_of("olmoe").tensor_specs(checkpoint.config), shapes)
    total, active = count_parameters(specs, checkpoint.config)
    assert total == sum(int(np.prod(shape)) for shape in shapes.values())
    assert total - active == 2 * 4 * 3 * spec.ff * spec.hidden
