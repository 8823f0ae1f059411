"""One conversation: its tokens, KV cache, bindings and scratch. Many share one model; none shares state."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..errors import ContextLengthError, UsageError
from ..models.config import ModelConfig
from .kvcache import KVCache
from .sessions import Sessions
from .stack import Floats, Plan, Stack

_PREFILL_ROWS = 512  # a longer prompt is run in chunks, so that scratch memory stays flat


class Conversation:
    """Tokens and the state that goes with them.

    Between rounds every token but the last has its KV rows: ``kv.length == len(tokens) - 1``. The last one is pending,
    and the next verification runs it.
    """

    def __init__(self, sessions: Sessions, min_rows: int = 1) -> None:
        self.config: ModelConfig = sessions.artifact.manifest.model
        self.exit_layers = sessions.artifact.manifest.exit_layers
        self.tokens: list[int] = []
        self.kv = KVCache(self.config)
        self.stack = Stack(sessions, self.kv, min_rows)
        self.full_plan = Plan.layers(0, self.config.num_layers)

    def prefill(self, ids: Sequence[int]) -> Floats:
        """Run a prompt; returns the [V] logits of its last row. The head sees no other row.

        Raises:
            UsageError: no ids.
            ContextLengthError: more ids than the context holds. Nothing was run.
        """
        if not ids:
            raise UsageError("the prompt is empty; give at least one token of text.")
        self.check_fits(len(ids))
        hidden = np.empty((0, self.config.hidden_size), dtype=np.float32)
        for begin in range(0, len(ids), _PREFILL_ROWS):
            chunk = np.asarray(ids[begin : begin + _PREFILL_ROWS], dtype=np.int64)
            hidden = self.stack.run(self.full_plan, self.stack.embed(chunk), self.kv.length)
            self.kv.commit(len(chunk))
            self.tokens += chunk.tolist()
        logits: Floats = self.stack.logits(hidden[-1:])[0]
        return logits

    def check_fits(self, count: int) -> None:
        """Raises: ContextLengthError when ``count`` more tokens of prompt exceed the context."""
        total, limit = len(self.tokens) + count, self.config.context_length
        if total > limit:
            raise ContextLengthError(
                f"the prompt has {total} tokens, but the model's context holds {limit}; shorten the prompt."
            )
