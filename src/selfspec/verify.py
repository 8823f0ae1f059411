"""``selfspec-export --verify``: every block against the PyTorch reference, and what quantisation cost.

Float32 artifacts are compared with the checkpoint's own model; quantised ones with the same model holding the
artifact's dequantised weights, which isolates the kernels' error, and then with the float32 artifact, which shows
what rounding the weights did to the text. Of quantised experts the middle row counts and not the worst: a row whose
last expert is another one by a hair's breadth is far off, and right.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .errors import SelfSpecError
from .export.artifact import ExportOptions, export_model
from .export.checkpoint import Checkpoint
from .export_cli import require_modules
from .models.config import ModelConfig
from .quality import compare, record
from .reference import Floats, Reference
from .runtime.conversation import Conversation
from .runtime.model import Model, load
from .runtime.profile import PROBE_TEXT
from .runtime.stack import Plan
from .stored_weights import dequantized_linears

PROMPT_TOKENS = 64  # beyond the sliding window, where there is one
MOST_TOKENS = 2048  # but no more: the reference holds every score of every head
FLOAT_TOLERANCE = (
    1e-5  # of the largest hidden state: these reach 2e4, where float32 itself differs from float64 by 1e-2
)
QUANTIZED_TOLERANCE = 2e-2
LOGIT_TOLERANCE = 1e-3


@dataclass(frozen=True, slots=True)
class BlockError:
    """Deviation of a block's worst row, of quantised experts of its middle one, relative to the block's largest hidden
    state, for a prefill and for single rows."""

    name: str
    prefill: float
    stepwise: float


def require_reference() -> None:
    """Raises: SelfSpecError with the install command where PyTorch or its companions are missing."""
    require_modules(("torch", "transformers", "optimum", "accelerate"), "selfspec[reference]", "--verify")


def verify_export(checkpoint: Checkpoint, output: Path) -> None:
    """Print the errors of the artifact at ``output``, made from ``checkpoint``.

    Raises:
        SelfSpecError: a block deviates by more than its tolerance.
    """
    require_reference()
    model = load(output)
    manifest = model.artifact.manifest
    quantized = manifest.quantization.bits < 32
    reference = _reference(checkpoint.path, manifest.model, output)
    if quantized:
        reference.replace_linears(dequantized_linears(output, manifest))
    errors, logits = block_errors(model, reference)
    for error in errors:
        _say(f"{error.name:24} prefill {error.prefill:.1e}   step by step {error.stepwise:.1e}")
    _say(f"{'logits':24} {logits:.1e} absolute")
    tolerance = QUANTIZED_TOLERANCE if quantized else FLOAT_TOLERANCE
    bad = [e.name for e in errors if max(e.prefill, e.stepwise) > tolerance]
    if bad or (not quantized and logits > LOGIT_TOLERANCE):
        raise SelfSpecError(f"{', '.join(bad) or 'the head'} of {output} deviates from the reference; do not ship it.")
    _say(f"every block is within {tolerance:g} of the reference")
    if quantized:
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            export_model(checkpoint, manifest.name, Path(folder) / "fp32", ExportOptions(precision="fp32"))
            exact = load(Path(folder) / "fp32")
            result = compare(model, exact, record(exact))
        _say(
            f"against float32, over {result.tokens} tokens of its own: agreement {result.agreement:.4f}, "
            f"KL divergence {result.kl:.4f}"
        )


def _reference(path: Path, config: ModelConfig, output: Path) -> Reference:
    """Raises: SelfSpecError where transformers cannot load what we can, as with GGUF files of some architectures."""
    try:
        return Reference(path, config)
    except Exception as error:  # transformers and torch raise what they please
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise SelfSpecError(
            f"{output} is written, but transformers cannot load {path} to compare it with ({reason}); "
            "export the model's Hugging Face folder with --verify instead."
        ) from error


def block_errors(model: Model, reference: Reference) -> tuple[list[BlockError], float]:
    """(errors of every block graph, largest logit deviation), each graph fed the reference's input."""
    config = model.artifact.manifest.model
    count = min((config.sliding_window or 0) + PROMPT_TOKENS, config.context_length, MOST_TOKENS)
    ids = np.resize(np.asarray(model.codec.encode(PROBE_TEXT), dtype=np.int64), count)
    hidden, logits = reference.hidden_states(ids)
    errors = [
        BlockError(
            Path(unit.graph).stem,
            _error(model, Plan(tuple(range(unit.start, unit.stop))), hidden[unit.start], hidden[unit.stop], len(ids)),
            _error(model, Plan(tuple(range(unit.start, unit.stop))), hidden[unit.start], hidden[unit.stop], 1),
        )
        for unit in model.artifact.manifest.units
    ]
    stack = Conversation(model.sessions).stack
    return errors, float(np.abs(stack.logits(hidden[-1]) - logits).max())


def _error(model: Model, plan: Plan, inputs: Floats, expected: Floats, rows: int) -> float:
    """Run ``rows`` rows at a time through a fresh KV cache; the largest deviation over the largest value."""
    stack = Conversation(model.sessions).stack
    outputs = [stack.run(plan, inputs[i : i + rows], i) for i in range(0, len(inputs), rows)]
    manifest = model.artifact.manifest
    of_rows = np.abs(np.concatenate(outputs) - expected).max(-1)
    judged = of_rows.max() if manifest.model.moe is None or manifest.quantization.bits == 32 else np.median(of_rows)
    return float(judged / np.abs(expected).max())


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
