"""The Llama family: SmolLM2, Llama 3.x, TinyLlama, LayerSkip checkpoints.

What is particular: RMS norm before each sublayer, grouped-query attention without biases, SwiGLU, rotary by halves,
and a head that may be tied to the embedding.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from .components import AttentionShape, Positions, Residual, attention, embedding, gated_mlp, linear, rms_norm
from .config import ModelConfig
from .family import COS, SIN, Weights
from .graph import GraphBuilder
from .tensors import Role, TensorSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


class Llama:
    """Assembles the family's graphs."""

    def tensor_specs(self, config: ModelConfig) -> list[TensorSpec]:
        d, ff, vocab = config.hidden_size, config.intermediate_size, config.vocab_size
        q, kv = config.num_attention_heads * config.head_dim, config.num_kv_heads * config.head_dim

        def one(name: str, shape: tuple[int, ...], role: Role) -> TensorSpec:
            return TensorSpec(name, (name,), (shape,), role)

        specs = [one(EMBEDDING, (vocab, d), Role.EMBEDDING)]
        for i in range(config.num_layers):
            layer = f"model.layers.{i}"
            attn, mlp = f"{layer}.self_attn", f"{layer}.mlp"
            specs += [
                one(f"{layer}.input_layernorm.weight", (d,), Role.VECTOR),
                TensorSpec(
                    f"{attn}.qkv_proj.weight",
                    (f"{attn}.q_proj.weight", f"{attn}.k_proj.weight", f"{attn}.v_proj.weight"),
                    ((q, d), (kv, d), (kv, d)),
                    Role.LINEAR,
                ),
                one(f"{attn}.o_proj.weight", (d, q), Role.LINEAR),
                one(f"{layer}.post_attention_layernorm.weight", (d,), Role.VECTOR),
                TensorSpec(
                    f"{mlp}.gate_up_proj.weight",
                    (f"{mlp}.gate_proj.weight", f"{mlp}.up_proj.weight"),
                    ((ff, d), (ff, d)),
                    Role.LINEAR,
                ),
                one(f"{mlp}.down_proj.weight", (d, ff), Role.LINEAR),
            ]
        specs.append(one(FINAL_NORM, (d,), Role.VECTOR))
        if not config.tie_word_embeddings:
            specs.append(one(LM_HEAD, (vocab, d), Role.HEAD))
        return specs

    def embed(self, g: GraphBuilder, config: ModelConfig, weights: Weights, ids: ir.Value) -> ir.Value:
        return embedding(g, ids, weights[EMBEDDING])

    def sublayers(
        self, g: GraphBuilder, config: ModelConfig, weights: Weights, hidden: ir.Value, start: int, stop: int
    ) -> ir.Value:
        shape = AttentionShape(config.num_attention_heads, config.num_kv_heads, config.head_dim)
        has_attention = any(index % 2 == 0 for index in range(start, stop))
        pos = Positions.declare(g, weights[COS], weights[SIN]) if has_attention else None
        residual = Residual(hidden)
        for index in range(start, stop):
            layer = f"model.layers.{index // 2}"
            if index % 2 == 0 and pos is not None:
                x, residual = residual.normed(g, weights[f"{layer}.input_layernorm.weight"], config.rms_norm_eps)
                qkv, out = weights[f"{layer}.self_attn.qkv_proj.weight"], weights[f"{layer}.self_attn.o_proj.weight"]
                update = attention(g, x, index // 2, shape, qkv, out, pos)
            else:
                norm = weights[f"{layer}.post_attention_layernorm.weight"]
                x, residual = residual.normed(g, norm, config.rms_norm_eps)
                gate_up, down = weights[f"{layer}.mlp.gate_up_proj.weight"], weights[f"{layer}.mlp.down_proj.weight"]
                update = gated_mlp(g, x, gate_up, down)
            residual = residual.add(g, update)
        return residual.sum(g)

    def head(
        self,
        g: GraphBuilder,
        config: ModelConfig,
        weights: Weights,
        hidden: ir.Value,
        ranges: Sequence[tuple[int, int]],
    ) -> list[ir.Value]:
        x = rms_norm(g, hidden, weights[FINAL_NORM], config.rms_norm_eps)
        matrix = weights[EMBEDDING if config.tie_word_embeddings else LM_HEAD]
        return [linear(g, x, matrix.rows(start, stop)) for start, stop in ranges]
