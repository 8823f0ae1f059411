"""How near plain decoding comes to what memory allows: a step reads every weight once, so it takes at least as long as
reading them does (Williams et al. 2009, with bandwidth as the only roof)."""

from __future__ import annotations

COUNTED = "weights of blocks and head, each once; not rotary tables, embedding and KV, of which rows are read"


def roofline_fraction(read_bytes: int, step_seconds: float, bandwidth: float) -> float:
    """Bandwidth that a step reaches ÷ ``bandwidth`` (bytes a second). More than 1 where weights stay in a cache."""
    return read_bytes / (step_seconds * bandwidth)
