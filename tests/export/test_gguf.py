"""GGUF: rows back in Hugging Face's order, blocks carried over bit for bit, tokenizers that agree, damage refused."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind
from gguf.quants import dequantize, quantize
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import save_file
from tokenizers import Tokenizer, pre_tokenizers

from selfspec import load
from selfspec.check.parity import verify_export
from selfspec.check.stored_weights import dequantized_linears
from selfspec.errors import CheckpointError, SelfSpecError, UnsupportedModelError
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.blocks import Blocks, Floats
from selfspec.export.gguf_checkpoint import GGUFCheckpoint, hf_name, rotary_row_order
from selfspec.export.source import open_model
from selfspec.export.weights import check_tensors
from selfspec.models.registry import family_of
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.conversation import Conversation

if TYPE_CHECKING:
    from tests.conftest import Tools, ToySpec

LLAMA_NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
    "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
}  # fmt: skip
OUTPUT_NORM_NAMES = {
    "post_attention_layernorm": "post_attention_norm", "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}  # fmt: skip
FUSED = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "self_attn.o_proj": ("self_attn.o_proj",), "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
    "mlp.down_proj": ("mlp.down_proj",),
}  # fmt: skip
ARCHITECTURES = {"gemma3_text": "gemma3"}  # llama.cpp's name, where it is another
INTERLEAVED = ("llama", "granite", "smollm3")  # whose q and k the converter permutes
TEXTS = (
    "Plain words, and  two spaces.", "In 1987 there were 2,345 of them.", "def f(x): return x**2  # code\n\tpass",
    "smile 😀 and family 👩‍👩‍👧", "Привет, мир! Ещё 12 раз.", "don't we'll I'd", "   leading\r\n\r\nlines   ", "日本語",
)  # fmt: skip


def gguf_name(name: str, family: str) -> str:
    top = {
        "model.embed_tokens.weight": "token_embd.weight", "model.norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }  # fmt: skip
    if name in top:
        return top[name]
    _, _, layer, *middle, suffix = name.split(".")
    names = LLAMA_NAMES | (OUTPUT_NORM_NAMES if family in ("gemma3_text", "olmo2") else {})
    return f"blk.{layer}.{names['.'.join(middle)]}.{suffix}"


def permuted(weights: NDArray[Any], heads: int) -> NDArray[Any]:
    """convert_hf_to_gguf.py's permute, as its source states it."""
    return (
        weights.reshape(heads, 2, weights.shape[0] // heads // 2, *weights.shape[1:])
        .swapaxes(1, 2)
        .reshape(weights.shape)
    )


def write_gguf(
    path: Path,
    spec: ToySpec,
    weights: dict[str, Floats],
    kinds: Callable[[str], Kind] = lambda name: Kind.F32,
    *,
    tokenizer: Tokenizer | None = None,
    metadata: dict[str, Any] | None = None,
    extra: dict[str, Floats] | None = None,
    pre: str | None = "gpt-2",
    first: Sequence[tuple[str, int]] = (),
) -> Path:
    """A GGUF as llama.cpp's converter writes it. Vectors stay float32, as there. ``first``: texts and types of
    the first tokens, instead of <|bos|> and <|eos|>."""
    writer = gguf.GGUFWriter(path, ARCHITECTURES.get(spec.family, spec.family))
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.hidden)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.ff)
    writer.add_head_count(spec.heads)
    writer.add_head_count_kv(spec.kv_heads)
    writer.add_key_length(spec.head_dim)
    writer.add_rope_dimension_count(spec.head_dim)
    writer.add_rope_freq_base(spec.hf_config()["rope_theta"])
    writer.add_layer_norm_rms_eps(1e-5)
    if tokenizer is not None:
        model = json.loads(tokenizer.to_str())["model"]
        writer.add_tokenizer_model("gpt2")
        if pre is not None:
            writer.add_tokenizer_pre(pre)
        tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
        named = first or [(token, 3) for token in tokens[:2]]
        writer.add_token_list([token for token, _ in named] + tokens[len(named) :])
        writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
        writer.add_token_types([kind for _, kind in named] + [1] * (len(tokens) - len(named)))
        if "tokenizer.ggml.eos_token_id" not in (metadata or {}):
            writer.add_eos_token_id(1)
        writer.add_bos_token_id(0)
    for key, value in (metadata or {}).items():
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_string(key, value)
    for name, values in weights.items():
        for part, heads in (("q_proj", spec.heads), ("k_proj", spec.kv_heads)):
            if part in name and spec.family in INTERLEAVED:
                values = permuted(values, heads)
        if "norm" in name and spec.family == "gemma3_text":
            values = values + np.float32(1)
        kind = kinds(name) if values.ndim == 2 else Kind.F32
        data = values if kind is Kind.F32 else quantize(values, kind)
        writer.add_tensor(
            gguf_name(name, spec.family), np.ascontiguousarray(data), raw_dtype=None if kind is Kind.F32 else kind
        )
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


@pytest.fixture(scope="module")
def spec(tools: Tools) -> ToySpec:
    return tools.spec(layers=2, hidden=64, ff=96, heads=4, kv_heads=2, head_dim=16, context=64)


@pytest.fixture(scope="module")
def tokenizer(tools: Tools, spec: ToySpec) -> Tokenizer:
    return tools.byte_tokenizer(spec.vocab)


def mixed(name: str) -> Kind:
    """Every kind somewhere, and fused tensors of mixed kinds."""
    for part, kind in (
        ("q_proj", Kind.Q8_0), ("k_proj", Kind.Q4_0), ("v_proj", Kind.F32), ("o_proj", Kind.Q4_1),
        ("gate_proj", Kind.Q4_0), ("up_proj", Kind.Q4_0), ("down_proj", Kind.Q8_0), ("embed_tokens", Kind.Q8_0),
    ):  # fmt: skip
        if part in name:
            return kind
    return Kind.F32


def as_stored(weights: dict[str, Floats], kinds: Callable[[str], Kind]) -> dict[str, Floats]:
    """What the file really holds, after its own rounding, in Hugging Face's order: rows are rounded one by one."""
    result = {}
    for name, values in weights.items():
        kind = kinds(name) if values.ndim == 2 else Kind.F32
        result[name] = values if kind is Kind.F32 else dequantize(quantize(values, kind), kind)
    return result


# Names, rows and blocks.


def test_names_are_translated_and_unknown_ones_kept() -> None:
    """A tensor under a wrong name is a missing and an unexpected one: the message should show what the file says."""
    assert hf_name("token_embd.weight", "llama") == "model.embed_tokens.weight"
    assert hf_name("blk.17.ffn_down.weight", "llama") == "model.layers.17.mlp.down_proj.weight"
    assert hf_name("blk.0.attn_norm.weight", "qwen3") == "model.layers.0.input_layernorm.weight"
    assert hf_name("blk.0.attn_q.bias", "qwen2") == "model.layers.0.self_attn.q_proj.bias"
    assert hf_name("blk.0.attn_k_norm.weight", "qwen3") == "model.layers.0.self_attn.k_norm.weight"
    for unknown in (
        "blk.0.ffn_gate_inp.weight",
        "blk.x.attn_q.weight",
        "rope_freqs.weight",
        "blk.0.post_ffw_norm.weight",
    ):
        assert hf_name(unknown, "llama") == unknown


def test_ffn_norm_is_another_norm_where_outputs_are_normed_too() -> None:
    """Gemma's ffn_norm stands before the MLP and is not called post_attention_layernorm, which it also has."""
    for model_type in ("gemma3_text", "olmo2"):
        assert hf_name("blk.1.post_attention_norm.weight", model_type).endswith("1.post_attention_layernorm.weight")
        assert hf_name("blk.1.ffn_norm.weight", model_type).endswith("1.pre_feedforward_layernorm.weight")
        assert hf_name("blk.1.post_ffw_norm.weight", model_type).endswith("1.post_feedforward_layernorm.weight")
    assert hf_name("blk.1.ffn_norm.weight", "granite").endswith("1.post_attention_layernorm.weight")


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 4), (4, 16), (3, 64), (9, 8)])
def test_rows_are_put_back_as_the_converter_found_them(heads: int, head_dim: int) -> None:
    """Applied the wrong way round it is right for heads of four rows, and for no real model."""
    rows = np.arange(heads * head_dim)[:, None] * np.ones((1, 3))
    np.testing.assert_array_equal(permuted(rows, heads)[rotary_row_order(heads, head_dim)], rows)


def test_row_order_by_hand() -> None:
    """One head of six rows: GGUF holds 0 3 1 4 2 5."""
    assert rotary_row_order(1, 6).tolist() == [0, 2, 4, 1, 3, 5]
    assert permuted(np.arange(6), 1).tolist() == [0, 3, 1, 4, 2, 5]


@pytest.mark.parametrize("kind", [Kind.Q8_0, Kind.Q4_0, Kind.Q4_1])
def test_blocks_decode_to_what_gguf_decodes_to(tools: Tools, spec: ToySpec, tmp_path: Path, kind: Kind) -> None:
    """Signs, halves or scales misread: compared on every row of every matrix, bit for bit."""
    weights = tools.weights(spec)
    weights["model.layers.0.mlp.up_proj.weight"][0, :64] = [0.0] * 32 + [-5.0] * 32  # empty and constant blocks
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", spec, weights, lambda name: kind))
    for name, values in weights.items():
        if values.ndim == 2:
            found = checkpoint.read(name, 0, values.shape[0])
            assert isinstance(found, Blocks)
            assert (found.bits, found.block_size, found.zero_points) == (8 if kind is Kind.Q8_0 else 4, 32, None)
            assert (found.minima is not None) == (kind is Kind.Q4_1)
            np.testing.assert_array_equal(found.dequantize(), dequantize(quantize(values, kind), kind), err_msg=name)
            assert checkpoint.stored_type(name) == kind.name


def test_any_run_of_rows_is_those_rows(tools: Tools, spec: ToySpec, tmp_path: Path) -> None:
    """The order of q and k applied within a run instead of over the whole matrix."""
    weights = as_stored(tools.weights(spec), mixed)
    checkpoint = GGUFCheckpoint(write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), mixed))
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        full = f"model.layers.1.self_attn.{name}.weight"
        found = checkpoint.read(full, 5, 23)
        values = found.dequantize() if isinstance(found, Blocks) else found
        np.testing.assert_array_equal(values, weights[full][5:23], err_msg=name)


# Whole models.


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("kinds", [lambda name: Kind.F32, lambda name: Kind.F16, mixed], ids=["F32", "F16", "mixed"])
def test_a_gguf_and_its_folder_give_the_same_fp32_artifact(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, kinds: Callable[[str], Kind], tied: bool
) -> None:
    """Two readers of one model: configuration, order, fusing and values all at once. Then the same logits."""
    spec = replace(spec, tied=tied)
    weights = tools.weights(spec)
    folder = tools.write(tmp_path / "folder", spec)
    save_file(as_stored(weights, kinds), folder / "model.safetensors")
    file = write_gguf(tmp_path / "m.gguf", spec, weights, kinds, tokenizer=tokenizer)
    options: dict[str, Any] = {"precision": "fp32", "exit_layers": (1,)}
    ours, theirs = tools.export(file, tmp_path / "a", **options), tools.export(folder, tmp_path / "b", **options)
    assert (ours / "weights.bin").read_bytes() == (theirs / "weights.bin").read_bytes()
    models = [load(artifact, threads=1) for artifact in (ours, theirs)]
    configs = [replace(model.artifact.manifest.model, rms_norm_eps=1.0) for model in models]  # float32 in one of them
    assert configs[0] == configs[1]
    logits = [Conversation(model.sessions).prefill([5, 77, 130, 9]) for model in models]
    np.testing.assert_array_equal(logits[0], logits[1])


# family → what of its toy GGUF's metadata is particular, and the config.json that says the same.
FAMILY_FILES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "qwen2": ({}, {}),
    "qwen3": ({}, {"use_sliding_window": False}),
    "gemma3_text": (
        {"gemma3.attention.sliding_window": 12, "gemma3.rope.freq_base_swa": 500.0},
        {"sliding_window_pattern": 6, "query_pre_attn_scalar": 16},
    ),
    "smollm3": ({}, {"no_rope_layers": [1, 1, 1, 0, 1, 1, 1]}),
    "granite": (
        {"granite.attention.scale": 0.5, "granite.embedding_scale": 1.5, "granite.residual_scale": 0.75,
         "granite.logit_scale": 3.0},
        {"attention_multiplier": 0.5, "residual_multiplier": 0.75},
    ),
    "olmo2": ({}, {}),
}  # fmt: skip


@pytest.mark.parametrize("family", FAMILY_FILES)
def test_every_familys_gguf_and_its_folder_give_the_same_artifact(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, family: str
) -> None:
    """Rows permuted for one architecture and not for another, norms as gains, biases found by their tensors."""
    metadata, config = FAMILY_FILES[family]
    spec = replace(spec, family=family, layers=7, config=config)
    weights = tools.weights(spec)
    folder = tools.write(tmp_path / "folder", spec)
    file = write_gguf(tmp_path / "m.gguf", spec, weights, tokenizer=tokenizer, metadata=metadata)
    options: dict[str, Any] = {"precision": "fp32", "exit_layers": (1,)}
    ours, theirs = tools.export(file, tmp_path / "a", **options), tools.export(folder, tmp_path / "b", **options)
    models = [load(artifact, threads=1) for artifact in (ours, theirs)]
    configs = [replace(model.artifact.manifest.model, rms_norm_eps=1.0) for model in models]  # float32 in one of them
    assert configs[0] == configs[1]
    logits = [Conversation(model.sessions).prefill([5, 77, 130, 9] * 6) for model in models]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)  # Gemma's 1 + weight is rounded once more in the file
    if family != "gemma3_text":
        assert (ours / "weights.bin").read_bytes() == (theirs / "weights.bin").read_bytes()


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int4", 4)])
def test_blocks_are_carried_over_exactly_where_they_fit(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, precision: str, bits: int
) -> None:
    """Requantising what needs none costs quality for nothing, and nobody sees it but by the bits."""
    kind = Kind.Q8_0 if bits == 8 else Kind.Q4_0
    weights = tools.weights(spec)
    file = write_gguf(tmp_path / "m.gguf", spec, weights, lambda name: kind, tokenizer=tokenizer)
    artifact = tools.export(file, tmp_path / "a", precision=precision, exit_layers=(1,))
    stored = as_stored(weights, lambda name: kind)
    for i in range(2):
        layer = f"model.layers.{i}"
        for name, parts in FUSED.items():
            expected = np.concatenate([stored[f"{layer}.{part}.weight"] for part in parts])
            np.testing.assert_array_equal(tools.dequantized(artifact, f"{layer}.{name}.weight", bits), expected)
    found = tools.dequantized(artifact, "model.embed_tokens.weight", 8)
    np.testing.assert_array_equal(found, stored["model.embed_tokens.weight"])
    no_zero_points = [name for _, name in tools.stored(artifact) if name.endswith(".zero_points")]
    assert no_zero_points == [], "symmetric blocks need no zero points"


def test_parts_of_mixed_kinds_keep_the_exact_ones_exact(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """q is Q8_0, k Q4_0 and v float: fused, the zero points of one must not be applied to another."""
    weights = tools.weights(spec)
    file = write_gguf(tmp_path / "m.gguf", spec, weights, mixed, tokenizer=tokenizer)
    artifact = tools.export(file, tmp_path / "a", precision="int8", exit_layers=(1,))
    stored = as_stored(weights, mixed)
    found = tools.dequantized(artifact, "model.layers.0.self_attn.qkv_proj.weight", 8)
    q, k, v = (stored[f"model.layers.0.self_attn.{p}_proj.weight"] for p in "qkv")
    np.testing.assert_array_equal(found[:64], q)
    np.testing.assert_array_equal(found[64:96], k)
    assert 0 < np.abs(found[96:] - v).max() < np.abs(v).max() / 100


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_native_artifacts_hold_q4_1_exactly(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, precision: str
) -> None:
    """Scale and minimum as they stand in the file, beside a symmetric part too; head slices at eight bits."""

    def kinds(name: str) -> Kind:
        return Kind.Q4_0 if "k_proj" in name else Kind.Q4_1

    weights = tools.weights(spec)
    file = write_gguf(tmp_path / "m.gguf", spec, weights, kinds, tokenizer=tokenizer)
    artifact = tools.export(
        file, tmp_path / "a", precision=precision, kernels="native", exit_layers=(1,), hot_vocab=100
    )
    found = dict(dequantized_linears(artifact, open_artifact(artifact).manifest))
    stored = as_stored(weights, kinds)
    layer = "model.layers.1"
    for name, parts in FUSED.items():
        expected = np.concatenate([stored[f"{layer}.{part}.weight"] for part in parts])
        np.testing.assert_array_equal(found[f"{layer}.{name}.weight"], expected)
    slices = [found["lm_head.weight[0:104]"], found["lm_head.weight[104:320]"]]
    np.testing.assert_array_equal(np.concatenate(slices), stored["lm_head.weight"])


def test_the_report_says_what_was_exact_and_what_was_not(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """'Requantised from Q4_1' is what a user compares quality by; the manifest keeps it."""
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), mixed, tokenizer=tokenizer)
    checkpoint, name = open_model(str(file))
    report = export_model(checkpoint, name, tmp_path / "a", ExportOptions("int4", kernels="ort", exit_layers=(1,)))
    assert dict(report.exact) == {"Q4_0": 2 * 3, "Q8_0": 1}  # k, gate and up; the embedding at eight bits
    assert dict(report.requantised) == {"Q8_0": 2 * 2, "F32": 2 + 1, "Q4_1": 2}
    source = report.manifest.quantization.source
    assert source == "F32×3 Q4_0×6 Q4_1×2 Q8_0×5"
    assert name == "m"


@pytest.mark.parametrize("block_size", [16, 64])
def test_another_block_size_is_requantised_not_misread(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, block_size: int
) -> None:
    """GGUF's blocks are of 32 columns: taken for blocks of 64, half of the scales are wrong."""
    wide = replace(spec, ff=128)
    weights = tools.weights(wide)
    file = write_gguf(tmp_path / "m.gguf", wide, weights, lambda name: Kind.Q8_0, tokenizer=tokenizer)
    artifact = tools.export(file, tmp_path / "a", precision="int8", block_size=block_size, exit_layers=(1,))
    stored = as_stored(weights, lambda name: Kind.Q8_0)["model.layers.0.self_attn.o_proj.weight"]
    found = tools.dequantized(artifact, "model.layers.0.self_attn.o_proj.weight", 8, block_size)
    assert np.abs(found - stored).max() < np.abs(stored).max() / 100


def test_rope_divisors_reach_the_tables(tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path) -> None:
    """Llama 3 GGUFs: rope_freqs is no weight of a layer, and must not be called unexpected."""
    divisors = np.asarray([1, 1, 2, 4, 8, 8, 8, 8], dtype=np.float32)
    file = write_gguf(
        tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer, extra={"rope_freqs.weight": divisors}
    )
    checkpoint = GGUFCheckpoint(file)
    assert checkpoint.config.rope.divisors == tuple(divisors.tolist())
    artifact = tools.export(file, tmp_path / "a", precision="fp32", exit_layers=(1,))
    cos = {name: s for (_, name), s in tools.stored(artifact).items()}["rotary.cos"].read(artifact)
    expected = np.cos(np.float32(7) * (1e4 ** -(np.arange(8) / 8) / divisors).astype(np.float32))
    np.testing.assert_allclose(cos[7], expected, atol=1e-6)


# Text.


def test_the_tokenizer_agrees_with_hugging_faces(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Merges, ranks, special tokens and bytes, on digits, code, emoji and Cyrillic."""
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer)
    source = GGUFCheckpoint(file).tokenizer_files()
    ours = Tokenizer.from_str(source.tokenizer_json())
    for text in (*TEXTS, "a<|eos|>b<|bos|>", " ".join(TEXTS)):
        ids = tokenizer.encode(text).ids
        assert ours.encode(text).ids == ids, text
        assert ours.decode(ids) == tokenizer.decode(ids), text
    assert source.eos_token_ids() == (1,)
    assert source.bos_token_id() is None
    assert source.chat_template() is None


@pytest.mark.parametrize("pre", ["smollm", "llama-bpe", "qwen2", "gpt-2", "default", None])
def test_pre_tokenizers_split_as_the_originals_do(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, pre: str | None
) -> None:
    """Digits one by one (SmolLM), in threes (Llama 3), or with their words (GPT-2): other ids, other text."""
    original = Tokenizer.from_str(tokenizer.to_str())
    if pre == "smollm":
        original.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer, pre=pre)
    ours = Tokenizer.from_str(GGUFCheckpoint(file).tokenizer_files().tokenizer_json())
    pieces = [piece for piece, _ in ours.pre_tokenizer.pre_tokenize_str("in 12345 days")]
    expected = {
        "smollm": ["in", "Ġ", "1", "2", "3", "4", "5", "Ġdays"], "llama-bpe": ["in", "Ġ", "123", "45", "Ġdays"],
        "qwen2": ["in", "Ġ", "1", "2", "3", "4", "5", "Ġdays"], "gpt-2": ["in", "Ġ12345", "Ġdays"],
    }.get(pre or "", ["in", "Ġ", "123", "45", "Ġdays"])  # fmt: skip
    assert pieces == expected
    for text in TEXTS:
        if pre in ("smollm", "gpt-2"):
            assert ours.encode(text).ids == original.encode(text).ids, text
        assert ours.decode(ours.encode(text).ids) == text


def test_a_beginning_of_sequence_token_only_where_the_file_asks_for_one(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """bos_token_id without add_bos_token (SmolLM2): one put in front would be one too many."""
    weights = tools.weights(spec)
    for value, expected in ((True, 0), (False, None)):
        file = write_gguf(
            tmp_path / f"{value}.gguf", spec, weights, tokenizer=tokenizer,
            metadata={
                "tokenizer.ggml.add_bos_token": value, "tokenizer.chat_template": "x",
                "tokenizer.ggml.eot_token_id": 9,
            },
        )  # fmt: skip
        source = GGUFCheckpoint(file).tokenizer_files()
        assert source.bos_token_id() == expected
        assert source.chat_template() == "x"
        assert source.eos_token_ids() == (1, 9)
        assert source.generation_config() == {"eos_token_id": [1, 9]}
        assert source.special_tokens() == {"bos_token": "<|bos|>", "eos_token": "<|eos|>"}


@pytest.mark.parametrize(("pre", "expected"), [("llama-bpe", 0), ("smollm", None)])
def test_llama3_files_that_do_not_say_so_want_a_beginning_of_sequence(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path, pre: str, expected: int | None
) -> None:
    """llama.cpp decides it by the pre-tokenizer, and takes words that are tokens as they are."""
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer, pre=pre)
    source = GGUFCheckpoint(file).tokenizer_files()
    assert source.bos_token_id() == expected
    assert json.loads(source.tokenizer_json())["model"]["ignore_merges"] == (pre == "llama-bpe")


@pytest.mark.parametrize(("model", "named"), [("bert", "'bert': known are gpt2, llama"), (None, "None.*gpt2")])
def test_another_kind_of_vocabulary_is_refused_by_name(
    tools: Tools, spec: ToySpec, tmp_path: Path, model: str | None, named: str
) -> None:
    """A WordPiece vocabulary read as byte-level BPE gives nonsense ids."""
    metadata = {} if model is None else {"tokenizer.ggml.model": model}
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), metadata=metadata)
    with pytest.raises(UnsupportedModelError, match=named):
        GGUFCheckpoint(file).tokenizer_files().tokenizer_json()


@pytest.mark.parametrize("damaged", [b"\x01 e", b"h_e"])
def test_a_vocabulary_that_does_not_hold_together_is_one_sentence(whole: bytes, tmp_path: Path, damaged: bytes) -> None:
    """tokenizers raises plain Exception for a merge of unknown tokens, TypeError for one without a space."""
    length = (3).to_bytes(8, "little")
    assert whole.count(length + b"h e") == 1
    path = tmp_path / "damaged.gguf"
    path.write_bytes(whole.replace(length + b"h e", length + damaged))
    with pytest.raises(CheckpointError, match=r"damaged\.gguf"):
        GGUFCheckpoint(path).tokenizer_files().tokenizer_json()


def test_an_unknown_pre_tokenizer_is_refused_by_name(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Guessing one gives other ids for numbers, and a model that is a little worse."""
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer, pre="kimi-k2")
    with pytest.raises(UnsupportedModelError, match=r"tokenizer\.ggml\.pre: unknown pre-tokenizer 'kimi-k2'"):
        GGUFCheckpoint(file).tokenizer_files().tokenizer_json()


# Damage.


@pytest.fixture(scope="module")
def whole(tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    return write_gguf(path, spec, tools.weights(spec), mixed, tokenizer=tokenizer).read_bytes()


@given(data=st.data())
def test_a_file_cut_anywhere_is_refused(
    whole: bytes, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """In the header, in the vocabulary, in the tensor table, in the last tensor: never a traceback, never zeros."""
    length = data.draw(st.one_of(st.integers(0, 200), st.integers(0, len(whole) - 1), st.just(len(whole) - 1)))
    path = tmp_path_factory.getbasetemp() / "cut.gguf"
    path.write_bytes(whole[:length])
    with pytest.raises(CheckpointError, match=r"cut\.gguf") as caught:
        open_model(str(path))
    assert "\n" not in str(caught.value)


def test_a_file_cut_in_the_middle_says_download_again(whole: bytes, tmp_path: Path) -> None:
    """The commonest damage, and the one remedy."""
    path = tmp_path / "cut.gguf"
    path.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(CheckpointError, match="download it again"):
        open_model(str(path))


@pytest.mark.parametrize("content", [b"", b"GGUF", b"not a gguf at all" * 50, b"\x00" * 4096, b"GGUF" + b"\xff" * 400])
def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path, content: bytes) -> None:
    """An error page saved under the name of a model."""
    path = tmp_path / "page.gguf"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match=r"page\.gguf"):
        open_model(str(path))


@pytest.mark.parametrize("seed", range(60))
def test_damaged_metadata_is_refused_or_harmless(whole: bytes, tmp_path: Path, seed: int) -> None:
    """Flipped bytes in names, types, counts and lengths."""
    rng = np.random.default_rng(seed)
    data = bytearray(whole)
    region = (
        slice(4, 700) if seed % 2 else slice(whole.index(b"token_embd.weight") - 8, whole.index(b"token_embd") + 900)
    )
    for at in rng.integers(region.start, region.stop, 1 + seed % 3):
        data[at] ^= 1 << int(rng.integers(8))
    path = tmp_path / "damaged.gguf"
    path.write_bytes(data)
    with contextlib.suppress(SelfSpecError):
        checkpoint, _ = open_model(str(path))
        check_tensors(family_of("llama").tensor_specs(checkpoint.config), checkpoint.shapes())
        checkpoint.tokenizer_files().tokenizer_json()


def test_another_architecture_is_refused_by_name(spec: ToySpec, tools: Tools, tmp_path: Path) -> None:
    """llama.cpp knows a hundred of them."""
    path = tmp_path / "m.gguf"
    write_gguf(path, spec, tools.weights(spec))
    path.write_bytes(path.read_bytes().replace(b"llama", b"mamba"))
    with pytest.raises(
        UnsupportedModelError, match="unknown model type 'mamba': known are gemma3_text, granite, granitemoe"
    ):
        open_model(str(path))


def test_a_missing_embedding_is_named(spec: ToySpec, tools: Tools, tmp_path: Path) -> None:
    """A GGUF of a projector or an adapter has none."""
    weights = {n: w for n, w in tools.weights(spec).items() if "embed" not in n}
    with pytest.raises(CheckpointError, match=r"token_embd\.weight"):
        open_model(str(write_gguf(tmp_path / "m.gguf", spec, weights)))


def test_missing_and_unexpected_tensors_are_named(
    spec: ToySpec, tools: Tools, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """As for folders; a bias in one layer only is no bias of the model."""
    weights = tools.weights(spec)
    bias = {"blk.1.attn_q.bias": np.zeros(64, np.float32)}
    file = write_gguf(tmp_path / "more.gguf", spec, weights, tokenizer=tokenizer, extra=bias)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.self_attn\.q_proj\.bias"):
        tools.export(file, tmp_path / "a")
    del weights["model.layers.1.mlp.up_proj.weight"]
    file = write_gguf(tmp_path / "less.gguf", spec, weights, tokenizer=tokenizer)
    with pytest.raises(CheckpointError, match=r"model\.layers\.1\.mlp\.up_proj\.weight"):
        tools.export(file, tmp_path / "b")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["less.gguf", "more.gguf"]


def test_the_end_of_a_turn_ends_an_answer_where_the_file_does_not_say_so(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """An instruction-tuned Gemma names only <eos>, and would talk on for ever behind <end_of_turn>."""
    vocabulary = json.loads(tokenizer.to_str())["model"]["vocab"]
    changed = Tokenizer.from_str(tokenizer.to_str().replace('"<|bos|>"', '"<end_of_turn>"'))
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=changed)
    assert vocabulary["<|eos|>"] == 1
    assert GGUFCheckpoint(file).tokenizer_files().eos_token_ids() == (0, 1)


def test_a_tokenizer_that_ends_every_text_is_refused(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Left out silently, the model would be asked something else than llama.cpp asks it."""
    metadata = {"tokenizer.ggml.add_eos_token": True}
    file = write_gguf(tmp_path / "m.gguf", spec, tools.weights(spec), tokenizer=tokenizer, metadata=metadata)
    with pytest.raises(UnsupportedModelError, match="ends every text"):
        GGUFCheckpoint(file).tokenizer_files().bos_token_id()


@pytest.mark.reference
def test_verify_says_in_a_sentence_what_transformers_cannot_load(
    tools: Tools, spec: ToySpec, tokenizer: Tokenizer, tmp_path: Path
) -> None:
    """Its GGUF reader knows fewer architectures than ours: a traceback behind an artifact that is well."""
    granite = replace(spec, family="granite")
    file = write_gguf(tmp_path / "m.gguf", granite, tools.weights(granite), tokenizer=tokenizer)
    checkpoint, _ = open_model(str(file))
    artifact = tools.export(file, tmp_path / "a", precision="fp32", exit_layers=(1,))
    with pytest.raises(SelfSpecError, match="is written, but transformers cannot load") as caught:
        verify_export(checkpoint, artifact)
    assert "\n" not in str(caught.value)
