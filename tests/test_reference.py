"""Parity with Hugging Face in fp32 on tiny random models of every family: block by block, as prefill and step by step,
then logits.

Every block is fed Hugging Face's own input, so that errors of one do not hide in those of the next. Compared
relatively: hidden states of real models reach 2e4, where float32 itself is off by 1e-2.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from selfspec.check.stored_weights import dequantized_linears
from selfspec.errors import SelfSpecError
from selfspec.export.source import open_model
from selfspec.models.manifest import Manifest
from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.stack import Floats, Plan

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy, ToySpec

pytestmark = pytest.mark.reference

BLOCK_TOLERANCE = 1e-5
LOGIT_TOLERANCE = 1e-3
PREFILL, STEPS = 40, 8
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "beta_fast": 8.0}
WINDOWED = {"use_sliding_window": True, "sliding_window": 12}
VARIANTS: dict[str, dict[str, Any]] = {
    "as usual": {},
    "head_dim other than hidden by heads": {"hidden": 96, "heads": 4, "kv_heads": 2, "head_dim": 32},
    "one key/value head": {"heads": 4, "kv_heads": 1},
    "as many key/value heads as heads": {"heads": 4, "kv_heads": 4},
    "tied head": {"tied": True},
    "llama3 rope scaling": {"rope_scaling": LLAMA3, "context": 512},
    "linear rope scaling": {"rope_scaling": {"rope_type": "linear", "factor": 3.0}},
    "yarn rope scaling": {"rope_scaling": YARN},
    "yarn with its own attention factor": {"rope_scaling": YARN | {"attention_factor": 1.3, "truncate": False}},
    "yarn with mscale": {"rope_scaling": YARN | {"mscale": 1.0, "mscale_all_dim": 0.5}},
    "rope_parameters of transformers 5": {
        "config": {"rope_parameters": LLAMA3 | {"rope_theta": 50000.0}, "rope_theta": None, "rope_scaling": None}
    },
    "biases": {"config": {"attention_bias": True, "mlp_bias": True}},
    "tanh GELU": {"config": {"hidden_act": "gelu_pytorch_tanh"}},
    "larger": {"hidden": 256, "ff": 512, "layers": 4, "heads": 8, "kv_heads": 2, "head_dim": 32, "vocab": 700},
    "qwen2": {"family": "qwen2", "tied": True, "embedding": 0.1},
    "qwen2 with a window and yarn": {
        "family": "qwen2", "rope_scaling": YARN, "config": WINDOWED | {"max_window_layers": 2},
    },
    "qwen3": {"family": "qwen3", "head_dim": 32},
    "qwen3 with biases": {"family": "qwen3", "config": {"attention_bias": True, "use_sliding_window": False}},
    "gemma3": {"family": "gemma3_text", "kv_heads": 1, "head_dim": 32, "tied": True, "embedding": 0.05},
    "gemma3 with linear scaling of its full layers": {
        "family": "gemma3_text", "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    },
    "gemma3 as transformers 5 writes it": {
        "family": "gemma3_text", "tied": True, "embedding": 0.05,
        "config": {
            "rope_theta": None, "rope_local_base_freq": None, "sliding_window_pattern": None, "rope_scaling": None,
            "layer_types": ["sliding_attention", "full_attention"] * 3,
            "rope_parameters": {
                "full_attention": {"rope_type": "default", "rope_theta": 30000.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 700.0},
            },
        },
    },
    "smollm3": {"family": "smollm3", "tied": True, "embedding": 0.1},
    "smollm3 by its interval": {
        "family": "smollm3", "config": WINDOWED | {"no_rope_layers": None, "no_rope_layer_interval": 2},
    },
    "granite": {"family": "granite", "tied": True, "embedding": 0.1},
    "granite without biases": {"family": "granite", "config": {"attention_bias": False, "mlp_bias": False}},
    "olmo2": {"family": "olmo2"},
    "olmo2 with biases": {"family": "olmo2", "config": {"attention_bias": True}},
    "granitemoe": {"family": "granitemoe", "tied": True, "embedding": 0.1},
    "granitemoe as transformers 5 names it": {"family": "granitemoe", "fused": True},
    "mixtral": {"family": "mixtral"},
    "mixtral, fused, without a window": {"family": "mixtral", "fused": True, "config": {"sliding_window": None}},
    "mixtral, every expert for every token": {"family": "mixtral", "config": {"num_experts_per_tok": 4}},
    "olmoe": {"family": "olmoe", "tied": True, "embedding": 0.1},
    "olmoe, fused, normalised": {
        "family": "olmoe", "fused": True, "config": {"norm_topk_prob": True, "clip_qkv": None},
    },
    "qwen2_moe": {"family": "qwen2_moe"},
    "qwen2_moe, fused, normalised": {
        "family": "qwen2_moe", "fused": True,
        "config": {"norm_topk_prob": True, "mlp_only_layers": [], "decoder_sparse_step": 3},
    },
    "qwen3_moe": {"family": "qwen3_moe", "head_dim": 32},
    "qwen3_moe, fused, not normalised": {
        "family": "qwen3_moe", "fused": True, "config": {"norm_topk_prob": False, "num_experts_per_tok": 1},
    },
}  # fmt: skip


class Reference:
    """transformers' own model on the toy's checkpoint."""

    def __init__(self, toy: Toy) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self._torch = torch
        torch.set_num_threads(1)
        model, report = AutoModelForCausalLM.from_pretrained(
            toy.checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True
        )
        assert not report["missing_keys"], "the reference would compute with random weights"
        assert not report["unexpected_keys"], "the reference would compute without some weights"
        self._model = model.eval()

    def states(self, ids: NDArray[np.int64]) -> tuple[list[tuple[Floats, Floats]], Floats]:
        """([T, d] input and output of every layer, [T, V] logits). Its hidden_states end with a normed entry."""
        found: list[tuple[Floats, Floats]] = []

        def keep(module: Any, arguments: Any, keywords: Any, output: Any) -> None:
            hidden = arguments[0] if arguments else keywords["hidden_states"]
            output = output[0] if isinstance(output, tuple) else output
            found.append((hidden[0].numpy().copy(), output[0].numpy().copy()))

        hooks = [layer.register_forward_hook(keep, with_kwargs=True) for layer in self._model.model.layers]
        with self._torch.no_grad():
            logits = self._model(self._torch.from_numpy(ids[None])).logits[0].numpy().copy()
        for hook in hooks:
            hook.remove()
        return found, logits


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, make_toy: Callable[..., Toy], tools: Tools) -> tuple[Toy, Reference]:
    spec: ToySpec = tools.spec(**VARIANTS[request.param])
    toy = make_toy(spec, precision="fp32", exit_layers=tuple(range(1, spec.layers)))
    return toy, Reference(toy)


def ids_for(toy: Toy) -> NDArray[np.int64]:
    return np.random.default_rng(3).integers(0, toy.spec.vocab, PREFILL + STEPS)


def assert_near(found: Floats, expected: Floats, tolerance: float, what: str) -> None:
    assert found.shape == expected.shape
    scale = float(np.abs(expected).max())
    assert float(np.abs(found - expected).max()) <= tolerance * scale, what


def test_every_block_agrees_in_prefill_and_step_by_step(pair: tuple[Toy, Reference]) -> None:
    """A norm, a rotation, a head or a residual of its own kind: each shows in the block where it is."""
    toy, reference = pair
    states, _ = reference.states(ids_for(toy))
    conversation = toy.conversation(exact=False)
    stack = conversation.stack
    for k, (hidden, expected) in enumerate(states):
        plan = Plan.layers(k, k + 1)
        found = stack.run(plan, hidden[:PREFILL], 0)
        assert_near(found, expected[:PREFILL], BLOCK_TOLERANCE, f"prefill of layer {k}")
        for t in range(PREFILL, PREFILL + STEPS):
            found = stack.run(plan, hidden[t : t + 1], t)
            assert_near(found, expected[t : t + 1], BLOCK_TOLERANCE, f"layer {k} at position {t}")


def test_embedding_and_logits_agree(pair: tuple[Toy, Reference]) -> None:
    """Both ends, and everything in a row: the head cut into ranges, the final norm, the tied matrix."""
    toy, reference = pair
    ids = ids_for(toy)
    states, expected = reference.states(ids)
    conversation = toy.conversation(exact=False)
    stack = conversation.stack
    np.testing.assert_array_equal(stack.embed(ids), states[0][0])
    hidden = stack.run(conversation.full_plan, stack.embed(ids[:PREFILL]), 0)
    assert_near(stack.logits(hidden), expected[:PREFILL], LOGIT_TOLERANCE, "prefill")
    for t in range(PREFILL, PREFILL + STEPS):
        hidden = stack.run(conversation.full_plan, stack.embed(ids[t : t + 1]), t)
        assert_near(stack.logits(hidden), expected[t : t + 1], LOGIT_TOLERANCE, f"position {t}")
    last = stack.logits(states[-1][1][-1:])
    assert_near(last, expected[-1:], LOGIT_TOLERANCE, "final norm and head alone")


@pytest.mark.parametrize("family", ["granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe"])
@pytest.mark.parametrize("options", [{"precision": "int8"}, {"precision": "int4", "partition": "sublayer"}])
def test_verify_puts_quantised_experts_into_the_reference(
    family: str, options: dict[str, Any], make_toy: Callable[..., Toy], tools: Tools, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the order and shape that transformers has them in, padding left out, whatever its names are."""
    from selfspec.check.parity import verify_export

    toy = make_toy(tools.spec(family=family, layers=4, context=1024), **options)
    verify_export(open_model(str(toy.checkpoint))[0], toy.folder)
    assert "every block is within its tolerance of the reference" in capsys.readouterr().err


@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_verify_finds_one_wrong_expert(
    precision: str, make_toy: Callable[..., Toy], tools: Tools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It meets a minority of the rows, so the middle row does not tell."""
    from selfspec.check import parity as verify

    def wrong(folder: Path, manifest: Manifest) -> Iterator[tuple[str, Floats]]:
        for name, matrix in dequantized_linears(folder, manifest):
            if name == "model.layers.1.mlp.experts.down_proj":
                matrix[-len(matrix) // 8 :] *= -1  # the last of eight
            yield name, matrix

    toy = make_toy(tools.spec(family="olmoe", layers=2, context=1024), precision=precision, partition="sublayer")
    monkeypatch.setattr(verify, "dequantized_linears", wrong)
    with pytest.raises(SelfSpecError, match="deviates from the reference"):
        verify.verify_export(open_model(str(toy.checkpoint))[0], toy.folder)


def behind_the_best(logits: Floats, tokens: Sequence[int], layers: int) -> list[str]:
    """Where a text is not greedy by the reference's ``logits`` [n, V], a line each. A token may be behind the best by
    what arithmetic explains, a near tie: every block and the head are held to BLOCK_TOLERANCE of the largest value, and
    two logits may each be off by as much."""
    near = 2 * (layers + 1) * BLOCK_TOLERANCE * np.abs(logits).max(-1)
    chosen = logits[np.arange(len(tokens)), list(tokens)]
    wrong = np.flatnonzero(logits.max(-1) - chosen > near)
    return [
        f"{tokens[i]} at index {i} has {chosen[i]:.7g}, and {logits[i].argmax()} has {logits[i].max():.7g}"
        for i in wrong.tolist()
    ]


def test_near_ties_by_hand() -> None:
    """Of a largest value of 10 and one layer, 4e-4 is explained."""
    logits = np.array([[10, 1, 0], [9.9997, 10, 0], [9.9995, 10, 0]], dtype=np.float32)
    assert behind_the_best(logits, (0, 0, 0), 1) == ["0 at index 2 has 9.9995, and 1 has 10"]
    assert [line[:12] for line in behind_the_best(logits, (1, 2, 1), 1)] == ["1 at index 0", "2 at index 1"]


def test_greedy_text_agrees(pair: tuple[Toy, Reference]) -> None:
    """Positions that drift, or a first token from the wrong row. The reference reads our text, so that all that follows
    a near tie is compared too."""
    toy, reference = pair
    prompt = ids_for(toy)[:PREFILL].tolist()
    run = toy.run(NoDrafter(), prompt=prompt, count=60, exact=False)
    _, logits = reference.states(np.asarray([*prompt, *run.tokens[:-1]]))
    assert behind_the_best(logits[PREFILL - 1 :], run.tokens, toy.spec.layers) == []
    assert len(set(run.tokens)) > 5
