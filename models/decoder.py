"""The decoder that every supported family is: attention and gated MLP, or sparse experts, on a residual stream, each
with its norms.

What a configuration says (biases, q/k norm, windows, experts, multipliers) decides which components are there; what it
does not say, the place of the norms and where a layer keeps its experts, is given to :class:`Decoder`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from .components import (
    INT64,
    Attention,
    GatedMLP,
    Kernels,
    Positions,
    QKNorm,
    Residual,
    Rotary,
    linear,
    rms_norm,
    scaled,
)
from .config import ModelConfig
from .family import LOCAL_ROTARY, ROTARY, Weights
from .graph import GraphBuilder
from .interface import EXPERTS_INPUT
from .moe import PROJECTIONS, ExpertNames, expert_specs, shared_expert, sparse_mlp
from .sublayers import attention_layers, mlp_layers, split_sublayer
from .tensors import Role, StoredTensor, TensorSpec

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
LM_HEAD = "lm_head.weight"


@dataclass(frozen=True, slots=True)
class Norms:
    """The RMS norms around a sublayer, by Hugging Face's names: of its input and of its output, None where absent."""

    before: str | None
    after: str | None = None


@dataclass(frozen=True, slots=True)
class Decoder:
    """A family: where the norms of a layer are, what is added to the weight of a norm to make its gain, and where
    experts are, if the configuration says that there are any."""

    attention: Norms
    mlp: Norms
    norm_offset: float = 0.0
    experts: ExpertNames = PROJECTIONS

    @property
    def mlp_input(self) -> str:
        return self.mlp.before or "mlp"

    def tensor_specs(self, config: ModelConfig) -> list[TensorSpec]:
        d, vocab = config.hidden_size, config.vocab_size
        specs = [_single(EMBEDDING, (vocab, d), Role.EMBEDDING)]
        for i in range(config.num_layers):
            layer = f"model.layers.{i}"
            specs += self._norm_specs(layer, self.attention, d)
            specs += _attention_specs(f"{layer}.self_attn", config, self.norm_offset)
            specs += self._norm_specs(layer, self.mlp, d)
            specs += self._mlp_specs(layer, config, i)
        specs.append(_single(FINAL_NORM, (d,), Role.VECTOR, self.norm_offset))
        if not config.tie_word_embeddings:
            specs.append(_single(LM_HEAD, (vocab, d), Role.HEAD))
        return specs

    def _norm_specs(self, layer: str, norms: Norms, size: int) -> Iterator[TensorSpec]:
        for name in (norms.before, norms.after):
            if name is not None:
                yield _single(f"{layer}.{name}.weight", (size,), Role.VECTOR, self.norm_offset)

    def _mlp_specs(self, layer: str, config: ModelConfig, index: int) -> Iterator[TensorSpec]:
        d, moe = config.hidden_size, config.moe
        if moe is None or index not in moe.layers:
            yield from _mlp_specs(f"{layer}.mlp", d, config.intermediate_size, bias=config.mlp_bias)
            return
        yield from expert_specs(layer, self.experts, moe, d)
        if moe.shared_size:
            yield from _mlp_specs(shared_expert(layer), d, moe.shared_size, bias=False)

    def embed(
        self, g: GraphBuilder, kernels: Kernels, config: ModelConfig, weights: Weights, ids: ir.Value
    ) -> ir.Value:
        return scaled(g, kernels.embedding(g, ids, weights[EMBEDDING]), config.embedding_multiplier)

    def sublayers(
        self,
        g: GraphBuilder,
        kernels: Kernels,
        config: ModelConfig,
        weights: Weights,
        hidden: ir.Value,
        start: int,
        stop: int,
    ) -> ir.Value:
        sublayers = range(start, stop)
        pos = Positions.declare(g) if attention_layers(sublayers) else None
        sparse = () if config.moe is None else config.moe.layers
        experts = None
        if not set(sparse).isdisjoint(mlp_layers(sublayers)):
            experts = g.input(EXPERTS_INPUT, INT64, [1])
        residual = Residual(hidden)
        for index in sublayers:
            number, is_mlp = split_sublayer(index)
            layer = f"model.layers.{number}"
            norms = self.mlp if is_mlp else self.attention
            x, residual = self._enter(g, config, weights, residual, layer, norms.before)
            if pos is not None and not is_mlp:
                update = _attention(config, weights, number).apply(g, kernels, x, pos)
            elif config.moe is not None and experts is not None and number in sparse:
                moe = sparse_mlp(config.moe, weights, number, config.activation)
                update = moe.apply(g, kernels, x, experts)
            else:
                update = kernels.gated_mlp(g, _mlp(config, weights, number), x)
            if norms.after is not None:
                update = rms_norm(g, update, weights[f"{layer}.{norms.after}.weight"], config.rms_norm_eps)
            residual = residual.add(g, scaled(g, update, config.residual_multiplier))
        return residual.sum(g)

    @staticmethod
    def _enter(
        g: GraphBuilder, config: ModelConfig, weights: Weights, residual: Residual, layer: str, norm: str | None
    ) -> tuple[ir.Value, Residual]:
        """(what the sublayer reads, the summed residual stream)."""
        if norm is not None:
            return residual.normed(g, weights[f"{layer}.{norm}.weight"], config.rms_norm_eps)
        stream = residual.sum(g)
        return stream, Residual(stream)

    def head(
        self,
        g: GraphBuilder,
        kernels: Kernels,
        config: ModelConfig,
        weights: Weights,
        hidden: ir.Value,
        ranges: Sequence[tuple[int, int]],
    ) -> list[ir.Value]:
        x = rms_norm(g, hidden, weights[FINAL_NORM], config.rms_norm_eps)
        x = scaled(g, x, 1 / config.logits_divisor)  # d products here, or one a logit behind the head
        matrix = weights[EMBEDDING if config.tie_word_embeddings else LM_HEAD]
        return [linear(g, kernels, x, matrix.rows(start, stop)) for start, stop in ranges]


def _single(name: str, shape: tuple[int, ...], role: Role, offset: float = 0.0) -> TensorSpec:
    return TensorSpec(name, (name,), (shape,), role, offset)


def _stacked(module: str, name: str, parts: dict[str, int], cols: int, *, bias: bool) -> Iterator[TensorSpec]:
    """A matrix of projections, stored as one where there are several, and its bias."""
    rows = list(parts.values())
    yield TensorSpec(
        f"{module}.{name}.weight",
        tuple(f"{module}.{part}.weight" for part in parts),
        tuple((n, cols) for n in rows),
        Role.LINEAR,
    )
    if bias:
        names = tuple(f"{module}.{part}.bias" for part in parts)
        yield TensorSpec(f"{module}.{name}.bias", names, tuple((n,) for n in rows), Role.VECTOR)


def _attention_specs(module: str, config: ModelConfig, norm_offset: float) -> Iterator[TensorSpec]:
    q, kv = config.num_attention_heads * config.head_dim, config.num_kv_heads * config.head_dim
    yield from _stacked(
        module, "qkv_proj", {"q_proj": q, "k_proj": kv, "v_proj": kv}, config.hidden_size, bias=config.qkv_bias
    )
    if config.qk_norm is not None:
        for name, size in (("q_norm", q), ("k_norm", kv)):
            shape = (config.head_dim if config.qk_norm == "head" else size,)
            yield _single(f"{module}.{name}.weight", shape, Role.VECTOR, norm_offset)
    yield from _stacked(module, "o_proj", {"o_proj": config.hidden_size}, q, bias=config.output_bias)


def _mlp_specs(module: str, d: int, ff: int, *, bias: bool) -> Iterator[TensorSpec]:
    yield from _stacked(module, "gate_up_proj", {"gate_proj": ff, "up_proj": ff}, d, bias=bias)
    yield from _stacked(module, "down_proj", {"down_proj": d}, ff, bias=bias)


def _attention(config: ModelConfig, weights: Weights, layer: int) -> Attention:
    module = f"model.layers.{layer}.self_attn"
    sliding = layer in config.sliding_layers
    norm = None
    if config.qk_norm is not None:
        q, k = weights[f"{module}.q_norm.weight"], weights[f"{module}.k_norm.weight"]
        norm = QKNorm(q, k, config.rms_norm_eps, per_head=config.qk_norm == "head")
    rotary = None
    if layer not in config.nope_layers:
        table = LOCAL_ROTARY if sliding and config.local_rope is not None else ROTARY
        rotary = Rotary(weights[f"{table}.cos"], weights[f"{table}.sin"])
    return Attention(
        layer,
        config.num_attention_heads,
        config.num_kv_heads,
        config.head_dim,
        config.attention_scale,
        qkv=weights[f"{module}.qkv_proj.weight"],
        output=weights[f"{module}.o_proj.weight"],
        qkv_bias=weights.get(f"{module}.qkv_proj.bias"),
        output_bias=weights.get(f"{module}.o_proj.bias"),
        qk_norm=norm,
        rotary=rotary,
        window=config.sliding_window if sliding else None,
        clip=config.clip_qkv,
    )


def _mlp(config: ModelConfig, weights: Weights, layer: int) -> GatedMLP:
    module = f"model.layers.{layer}.mlp"

    def bias(name: str) -> StoredTensor | None:
        return weights.get(f"{module}.{name}.bias")

    return GatedMLP(
        weights[f"{module}.gate_up_proj.weight"],
        weights[f"{module}.down_proj.weight"],
        config.activation,
        bias("gate_up_proj"),
        bias("down_proj"),
    )
