"""Writes a Llama whose MLPs are cut (layer.py) as a Hugging Face folder of model type qwen2_moe, in float32.

How the arithmetic of Qwen2-MoE is made to be that of the cut: the shared expert's gate is 0, of which the sigmoid is
1/2, so its down matrix is doubled; a router that is nearly uniform gives each of E experts a weight of 1/E, which is
not renormalised over the selected (norm_topk_prob is false), so their down matrices are multiplied by E; the biases of
q, k and v are 0. Where E is a power of two, all of this is exact.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from selfspec.export.blocks import Blocks
from selfspec.export.checkpoint import Checkpoint, TokenizerSource
from selfspec.models.config import ModelConfig
from selfspec.runtime.arrays import Floats

from .layer import DenseMLP, SparseLayer

_SIGMOID_OF_0 = 0.5


def read(checkpoint: Checkpoint, name: str) -> Floats:
    """A whole tensor as float32."""
    found = checkpoint.read(name, 0, checkpoint.shapes()[name][0])
    return found.dequantize() if isinstance(found, Blocks) else found


def read_mlp(checkpoint: Checkpoint, layer: int) -> DenseMLP:
    gate, up, down = (read(checkpoint, f"model.layers.{layer}.mlp.{part}_proj.weight") for part in _PARTS)
    return DenseMLP(gate, up, down)


_PARTS = ("gate", "up", "down")


def write_checkpoint(
    folder: Path, checkpoint: Checkpoint, layers: Sequence[SparseLayer], experts_per_token: int
) -> None:
    """Write config.json, model.safetensors and all that ``checkpoint`` knows about text into ``folder``, which is made.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir()
    tensors = {name: read(checkpoint, name) for name in checkpoint.shapes() if ".mlp." not in name}
    for name in [name for name in tensors if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        tensors[name.removesuffix("weight") + "bias"] = np.zeros(len(tensors[name]), dtype=np.float32)
    for i, layer in enumerate(layers):
        cut = cut_tensors(read_mlp(checkpoint, i), layer)
        tensors |= {f"model.layers.{i}.mlp.{name}.weight": values for name, values in cut.items()}
    in_order = {name: np.ascontiguousarray(values) for name, values in tensors.items()}  # else it takes what is there
    save_file(in_order, folder / "model.safetensors", metadata={"format": "pt"})
    text = checkpoint.tokenizer_files()
    config = hf_config(checkpoint.config, layers[0], experts_per_token) | {"eos_token_id": list(text.eos_token_ids())}
    _write_json(folder / "config.json", config)
    _write_text(folder, text, checkpoint.config.context_length)


def cut_tensors(mlp: DenseMLP, layer: SparseLayer) -> dict[str, Floats]:
    """The tensors of a sparse MLP by Hugging Face's names, without .weight, one an expert."""
    count = len(layer.experts)
    tensors = {"gate": layer.router, "shared_expert_gate": np.zeros((1, mlp.down.shape[0]), dtype=np.float32)}
    parts = {"shared_expert": (layer.shared, 1 / _SIGMOID_OF_0)}
    parts |= {f"experts.{e}": (neurons, count) for e, neurons in enumerate(layer.experts)}
    for name, (neurons, factor) in parts.items():
        tensors |= {
            f"{name}.gate_proj": mlp.gate[neurons],
            f"{name}.up_proj": mlp.up[neurons],
            f"{name}.down_proj": mlp.down[:, neurons] * np.float32(factor),
        }
    return tensors


def hf_config(config: ModelConfig, layer: SparseLayer, experts_per_token: int) -> dict[str, Any]:
    """The config.json of a Llama whose every MLP is cut like ``layer``."""
    count, size = layer.experts.shape
    return {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "dtype": "float32",
        "vocab_size": config.vocab_size, "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size, "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads, "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim, "hidden_act": config.activation, "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.context_length, "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings, "use_sliding_window": False, "qkv_bias": True,
        "num_experts": count, "num_experts_per_tok": experts_per_token, "moe_intermediate_size": size,
        "shared_expert_intermediate_size": len(layer.shared), "norm_topk_prob": False,
        "decoder_sparse_step": 1, "mlp_only_layers": [],
    }  # fmt: skip


def _write_text(folder: Path, text: TokenizerSource, context_length: int) -> None:
    (folder / "tokenizer.json").write_text(text.tokenizer_json(), encoding="utf-8")
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": context_length}
    _write_json(folder / "tokenizer_config.json", facts | text.special_tokens())
    _write_json(folder / "generation_config.json", text.generation_config())
    template = text.chat_template()
    if template is not None:
        (folder / "chat_template.jinja").write_text(template, encoding="utf-8")


def _write_json(path: Path, data: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
