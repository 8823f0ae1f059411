"""``selfspec-export --verify``: every block against the PyTorch reference, and what quantisation cost.

Float32 artifacts are compared with the checkpoint's own model; quantised ones with the same model holding the
artifact's dequantised weights, which isolates the kernels' error, and then with the float32 artifact, which shows
what rounding the weights did to the text. In quantised layers behind one another, a row's last expert may be another
one by a hair's breadth: such a row is far off, with all that see it, and right. So the worst row counts of those
before it, and of all the middle one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..cli.export import require_modules
from ..errors import SelfSpecError
from ..export.artifact import ExportOptions, export_model
from ..export.checkpoint import Checkpoint
from ..models.config import ModelConfig
from ..models.manifest import Unit
from ..runtime.arrays import Floats
from ..runtime.conversation import Conversation
from ..runtime.model import Model, load
from ..runtime.probe_texts import PROBE_TEXT
from ..runtime.stack import Plan
from .quality import compare, forced_logits, record
from .reference import Reference
from .stored_weights import dequantized_linears

PROMPT_TOKENS = 64  # beyond the sliding window, where there is one
MOST_TOKENS = 2048  # but no more: the reference holds every score of every head
FLOAT_TOLERANCE = 1e-5
QUANTIZED_TOLERANCE = 2e-2
ROUTED_TOLERANCE = 3 * QUANTIZED_TOLERANCE  # of experts behind other sublayers, whose errors shift their weights too
LOGIT_TOLERANCE = 1e-3
HEAD_TOLERANCE = 5e-2  # of a quantised head, of the largest logit


@dataclass(frozen=True, slots=True)
class BlockError:
    """Deviation relative to rows' largest values, for a prefill and for single rows; ``same``: how
    many rows come before the first that ran other experts than the reference, None where there are none."""

    name: str
    prefill: float
    stepwise: float
    same: int | None
    tolerance: float

    @property
    def accepted(self) -> bool:
        """False for what is not a number."""
        return self.prefill <= self.tolerance and self.stepwise <= self.tolerance


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
    errors, logits, head = block_errors(model, reference)
    for error in errors:
        same = "" if error.same is None else f", with the reference's experts up to row {error.same}"
        _say(
            f"{error.name:24} prefill {error.prefill:.1e}   step by step {error.stepwise:.1e}   "
            f"within {error.tolerance:g}{same}"
        )
    _say(f"{'logits':24} {logits:.1e} absolute, {head:.1e} of the largest")
    bad = [e.name for e in errors if not e.accepted]
    if bad or not (head <= HEAD_TOLERANCE if quantized else logits <= LOGIT_TOLERANCE):
        raise SelfSpecError(f"{', '.join(bad) or 'the head'} of {output} deviates from the reference; do not ship it.")
    _say("every block is within its tolerance of the reference")
    if any(error.same == 0 for error in errors):
        _say("where other experts ran from the first row on, the middle row was judged; --blocks sublayer judges all")
    if quantized:
        with tempfile.TemporaryDirectory(dir=output.parent) as folder:
            export_model(checkpoint, manifest.name, Path(folder) / "fp32", ExportOptions(precision="fp32"))
            exact = load(Path(folder) / "fp32")
            recordings = record(exact)
            result = compare(model, recordings, (forced_logits(exact, recording) for recording in recordings))
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


def block_errors(model: Model, reference: Reference) -> tuple[list[BlockError], float, float]:
    """(errors of every block graph, largest deviation of a logit, the same over the largest logit), each graph fed the
    reference's input."""
    config = model.artifact.manifest.model
    count = min((config.sliding_window or 0) + PROMPT_TOKENS, config.context_length, MOST_TOKENS)
    ids = np.resize(np.asarray(model.codec.encode(PROBE_TEXT), dtype=np.int64), count)
    hidden, logits = reference.hidden_states(ids)
    units = model.artifact.manifest.units
    quantized = model.artifact.manifest.quantization.bits < 32
    experts = reference.experts(ids) if quantized else {}
    usual = QUANTIZED_TOLERANCE if quantized else FLOAT_TOLERANCE
    errors = [_block_error(model, unit, hidden[unit.start], hidden[unit.stop], experts, usual) for unit in units]
    stack = Conversation(model.sessions).stack
    off = float(np.abs(stack.logits(hidden[-1]) - logits).max())
    return errors, off, off / float(np.abs(logits).max())


def _block_error(
    model: Model,
    unit: Unit,
    inputs: Floats,
    expected: Floats,
    experts: Mapping[int, Sequence[set[int]]],
    tolerance: float,
) -> BlockError:
    """``experts``: layer → those of every row, of layers that have some and where they may differ."""
    plan = Plan(tuple(unit.sublayers))
    wanted = {layer: rows for layer, rows in experts.items() if layer in unit.mlp_layers}
    same, outputs = np.ones(len(inputs), dtype=bool), list[Floats]()
    stack = Conversation(model.sessions).stack
    for i in range(len(inputs)):
        with stack.watch_experts() as ran:
            outputs.append(stack.run(plan, inputs[i : i + 1], i))
        same[i] = same[:i].all() and all(ran[layer] == rows[i] for layer, rows in wanted.items())
    whole = Conversation(model.sessions).stack.run(plan, inputs, 0)
    return BlockError(
        Path(unit.graph).stem,
        deviation(whole, inputs, expected, same),
        deviation(np.concatenate(outputs), inputs, expected, same),
        int(same.sum()) if wanted else None,
        ROUTED_TOLERANCE if wanted and len(plan.sublayers) > 1 else tolerance,
    )


def deviation(found: Floats, inputs: Floats, expected: Floats, same: NDArray[np.bool_]) -> float:
    """Of rows [T, d], the worst among ``same`` [T] and the middle one of all; not a number where one is none. Each over
    its own largest value, or the middle row's where that is larger. It may be what goes in: first tokens carry values
    of 2e4, which would hide every other row, and some layer cancels them."""
    largest = np.maximum(np.abs(expected).max(-1), np.abs(inputs).max(-1))
    of_rows = np.abs(found - expected).max(-1) / np.maximum(largest, np.median(largest))
    return float(np.max([of_rows[same].max(initial=0.0), np.median(of_rows)]))


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
