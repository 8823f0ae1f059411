"""The decoder's graphs, as Llama, against a forward pass written down in NumPy, in float64: no torch needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from selfspec.runtime.stack import Plan

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy, ToySpec

Doubles = NDArray[np.float64]

VARIANTS: dict[str, dict[str, Any]] = {
    "as usual": {"layers": 3},
    "one key/value head": {"layers": 2, "kv_heads": 1},
    "head_dim other than hidden by heads": {"layers": 2, "hidden": 96, "head_dim": 32},
    "tied head": {"layers": 2, "tied": True},
    "another theta": {"layers": 2, "config": {"rope_theta": 500.0}},
}


class NumpyLlama:
    """Touvron et al. 2023, as Hugging Face lays out its weights. One method a formula."""

    def __init__(self, spec: ToySpec, weights: dict[str, Any]) -> None:
        self.spec = spec
        self._weights = {name: w.astype(np.float64) for name, w in weights.items()}
        self._theta = spec.hf_config()["rope_theta"]

    def embed(self, ids: NDArray[np.int64]) -> Doubles:
        return np.asarray(self._weights["model.embed_tokens.weight"][ids])

    def layer(self, i: int, x: Doubles) -> Doubles:
        x = self.attention(i, x)
        return self.mlp(i, x)

    def attention(self, i: int, x: Doubles) -> Doubles:
        spec, name = self.spec, f"model.layers.{i}.self_attn"
        normed = self._norm(x, f"model.layers.{i}.input_layernorm.weight")
        q, k, v = (self._linear(normed, f"{name}.{part}_proj.weight") for part in "qkv")
        q = self._rotate(q.reshape(len(x), spec.heads, spec.head_dim))
        k = self._rotate(k.reshape(len(x), spec.kv_heads, spec.head_dim))
        v = v.reshape(len(x), spec.kv_heads, spec.head_dim)
        out = np.empty_like(q)
        for head in range(spec.heads):
            group = head // (spec.heads // spec.kv_heads)
            scores = q[:, head] @ k[:, group].T / np.sqrt(spec.head_dim)
            scores[np.triu_indices(len(x), 1)] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out[:, head] = scores / scores.sum(-1, keepdims=True) @ v[:, group]
        return x + self._linear(out.reshape(len(x), -1), f"{name}.o_proj.weight")

    def mlp(self, i: int, x: Doubles) -> Doubles:
        normed = self._norm(x, f"model.layers.{i}.post_attention_layernorm.weight")
        gate, up = (self._linear(normed, f"model.layers.{i}.mlp.{part}_proj.weight") for part in ("gate", "up"))
        return x + self._linear(gate / (1 + np.exp(-gate)) * up, f"model.layers.{i}.mlp.down_proj.weight")

    def logits(self, x: Doubles) -> Doubles:
        head = "model.embed_tokens.weight" if self.spec.tied else "lm_head.weight"
        return self._linear(self._norm(x, "model.norm.weight"), head)

    def _linear(self, x: Doubles, name: str) -> Doubles:
        return np.asarray(x @ self._weights[name].T)

    def _norm(self, x: Doubles, name: str) -> Doubles:
        return np.asarray(x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-5) * self._weights[name])

    def _rotate(self, x: Doubles) -> Doubles:
        half = self.spec.head_dim // 2
        angles = np.outer(np.arange(len(x)), self._theta ** -(np.arange(half) / half))[:, None, :]
        first, second = x[..., :half], x[..., half:]
        cos, sin = np.cos(angles), np.sin(angles)
        return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, make_toy: Callable[..., Toy], tools: Tools) -> tuple[Toy, NumpyLlama]:
    spec = tools.spec(**VARIANTS[request.param])
    return make_toy(spec, precision="fp32", partition="sublayer"), NumpyLlama(spec, tools.weights(spec))


def assert_near(found: Any, expected: Any, what: str) -> None:
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max(), what


def test_every_sublayer_computes_its_formula(pair: tuple[Toy, NumpyLlama]) -> None:
    """Each fed the reference's input: an attention without its scale, SiLU on the wrong half, a norm left out."""
    toy, reference = pair
    stack = toy.conversation(exact=False).stack
    x = reference.embed(np.arange(3, 43))
    assert_near(stack.embed(np.arange(3, 43)), x, "embedding")
    for i in range(toy.spec.layers):
        after = reference.attention(i, x)
        assert_near(stack.run(Plan((2 * i,)), x.astype(np.float32), 0), after, f"attention of layer {i}")
        x = reference.mlp(i, after)
        assert_near(stack.run(Plan((2 * i + 1,)), after.astype(np.float32), 0), x, f"MLP of layer {i}")
    assert_near(stack.logits(x.astype(np.float32)), reference.logits(x), "final norm and head")


def test_a_text_row_by_row_gives_the_logits_of_the_whole(pair: tuple[Toy, NumpyLlama]) -> None:
    """Keys and values of earlier rows must come from the cache, rotated where they stood."""
    toy, reference = pair
    ids = np.random.default_rng(2).integers(0, toy.spec.vocab, 30)
    x = reference.embed(ids)
    for i in range(toy.spec.layers):
        x = reference.layer(i, x)
    expected = reference.logits(x)
    conversation = toy.conversation(exact=False)
    stack = conversation.stack
    for t, token in enumerate(ids):
        logits = stack.logits(stack.run(conversation.full_plan, stack.embed(np.asarray([token])), t))[0]
        conversation.kv.commit(1)
        assert np.abs(logits - expected[t]).max() <= 1e-3 * np.abs(expected).max()
