"""SmolLM2 against Hugging Face's own implementation, block by block and token by token."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from selfspec import Model
from selfspec.check.parity import FLOAT_TOLERANCE, HEAD_TOLERANCE, LOGIT_TOLERANCE, QUANTIZED_TOLERANCE, block_errors
from selfspec.check.reference import Reference
from selfspec.check.stored_weights import dequantized_linears
from selfspec.export.source import open_model

pytestmark = [pytest.mark.real, pytest.mark.reference, pytest.mark.slow]

ANSWER = 80  # tokens
ModelOf = Callable[..., Model]

# Digits, code, emoji and Cyrillic; and no digit behind two blanks, where transformers' GGUF reader leaves the digit
# splitting out that the model's own tokenizer does first.
TEXT = """In 2024, x = 12345.678; def f(n): return n**2 + 0x1F  # комментарий: «Привет, мир!»
	for i in range(10): print('naïve café', i)

Emoji: 😀 👩‍🚀 🇺🇦 — 日本語 <|im_start|>user don't we'll  it's"""


@pytest.fixture(scope="module")
def reference() -> Reference:
    checkpoint, _ = open_model("smollm2-135m")
    return Reference(checkpoint.path, checkpoint.config)


def test_float32_answers_with_the_tokens_of_hugging_face(real_model: ModelOf, reference: Reference) -> None:
    """Would catch a wrong rotary base, row order, norm or head: anything that moves an argmax. Hugging Face reads our
    text; a token may be behind its best one by what the tolerance of two logits explains, a near tie."""
    model = real_model("fp32")
    message = {"role": "user", "content": "Tell me about the history of lighthouses."}
    ids = model.codec.encode_chat([message])
    ours = [token.id for token in model.stream_ids(ids, max_new_tokens=ANSWER, draft="none")]
    assert len(ours) == ANSWER
    _, logits = reference.hidden_states(np.asarray([*ids, *ours[:-1]]))
    logits = logits[len(ids) - 1 :]
    behind = logits.max(-1) - logits[np.arange(ANSWER), ours]
    assert behind.max() <= 2 * LOGIT_TOLERANCE, f"token {behind.argmax()} is behind by {behind.max():.3g}"


def test_every_float32_block_equals_hugging_faces(real_model: ModelOf, reference: Reference) -> None:
    errors, logits, _ = block_errors(real_model("fp32"), reference)
    assert max(max(e.prefill, e.stepwise) for e in errors) <= FLOAT_TOLERANCE
    assert logits <= LOGIT_TOLERANCE


@pytest.mark.parametrize("kernels", ["ort", "native"])
@pytest.mark.parametrize("precision", ["int8", "int4"])
def test_quantised_blocks_compute_with_the_weights_they_store(
    precision: str,
    kernels: str,
    real_model: ModelOf,
    reference: Reference,
    real_artifact: Callable[..., Path],
    request: pytest.FixtureRequest,
) -> None:
    """Would catch a packing order, scale or zero point that the kernel reads differently from us."""
    if kernels == "native":
        request.getfixturevalue("native_kernels")
    model = real_model(precision, kernels)
    reference.replace_linears(dequantized_linears(real_artifact(precision, kernels), model.artifact.manifest))
    errors, _, head = block_errors(model, reference)
    assert head <= HEAD_TOLERANCE
    assert max(max(e.prefill, e.stepwise) for e in errors) <= QUANTIZED_TOLERANCE


def test_the_tokenizer_made_from_gguf_agrees_with_transformers(real_model: ModelOf) -> None:
    from transformers import AutoTokenizer

    checkpoint, _ = open_model("smollm2-135m")
    theirs = AutoTokenizer.from_pretrained(checkpoint.path.parent, gguf_file=checkpoint.path.name)
    codec = real_model("int4").codec
    assert codec.encode(TEXT) == theirs.encode(TEXT, add_special_tokens=False)
    assert codec.decode(codec.encode(TEXT)) == TEXT.replace("<|im_start|>", "")
