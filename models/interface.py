"""Names of the graphs' inputs and outputs: what a graph calls a value is what the runtime binds by that name.

Standard library only. ``rows`` varies from pass to pass; all that is called hidden is [1, rows, d].
"""

from __future__ import annotations

INPUT_IDS = "input_ids"
"""Input of the embedding, int64 [1, rows]."""

HIDDEN = "hidden"
"""Input of every block and head."""

HIDDEN_OUT = "hidden_out"
"""Output of the embedding and of every block."""

SEQLENS_K = "seqlens_k"
"""Input of every block with attention, int32 [1]: position of the last row."""

TOTAL_SEQUENCE_LENGTH = "total_sequence_length"
"""Input of every block with attention, int32 [1]: position behind the last row."""

EXPERTS_INPUT = "experts_per_token"
"""Input of every block with experts, int64 [1]: how many of a row's best experts run."""

_PAST, _PRESENT = "past_key_values.", "present."
_PARTS = ("key", "value")
_LOGITS = "logits."
_SELECTED = "selected_experts."


def kv_names(layer: int) -> tuple[tuple[str, str], tuple[str, str]]:
    """((input, output) of a layer's keys, the same of its values), each [1, kv_heads, capacity, head_dim]. The runtime
    binds one buffer as both."""
    keys, values = ((f"{_PAST}{layer}.{part}", f"{_PRESENT}{layer}.{part}") for part in _PARTS)
    return keys, values


def logits_name(index: int) -> str:
    """Output of a head for its range number ``index``, [1, rows, ids of the range]."""
    return f"{_LOGITS}{index}"


def is_logits(name: str) -> bool:
    return name.startswith(_LOGITS)


def selected_name(layer: int) -> str:
    """Output of every block with a layer's experts, int32 [1, rows, k]: a row's experts, best first, -1 behind them."""
    return f"{_SELECTED}{layer}"
