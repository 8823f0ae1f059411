"""One conversation: its tokens, KV cache, bindings and scratch. Many share one model; none shares state."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from ..errors import ContextLengthError, UsageError
from ..models.config import ModelConfig
from .kvcache import KVCache
from .sessions import Sessions
from .stack import AS_THEY_COME, Floats, Passes, Plan, Stack

PREFILL_ROWS = 512
"""A longer prompt is run in chunks of so many rows, so that scratch memory stays flat."""


class Conversation:
    """Tokens and the state that goes with them.

    Between rounds every token but the last has its KV rows: ``kv.length == len(tokens) - 1``. The last one is pending,
    and the next verification runs it. Wherever a generation ends, is closed or fails, the first
    ``min(kv.length, len(tokens))`` rows are those of its first tokens, and :meth:`resume` builds on no others.
    """

    def __init__(self, sessions: Sessions, passes: Passes = AS_THEY_COME, *, exact: bool = False) -> None:
        """Args: passes: how rows are put into them. exact: ``passes`` are such that rows do not depend on them."""
        self.sessions = sessions
        self.passes = passes
        self.exact = exact
        self.config: ModelConfig = sessions.artifact.manifest.model
        self.exit_layers = sessions.artifact.manifest.exit_layers
        self.tokens: list[int] = []
        self.kv = KVCache(self.config)
        self.stack = Stack(sessions, self.kv, passes)
        self.full_plan = Plan.layers(0, self.config.num_layers)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        """While one generation runs over this conversation.

        Raises:
            UsageError: another one does, in this thread or in another.
        """
        if not self._lock.acquire(blocking=False):
            raise UsageError(
                "this conversation is in use by another generation; let that one end, close() its stream, or use "
                "a conversation of its own."
            )
        try:
            yield
        finally:
            self._lock.release()

    def resume(self, prompt: Sequence[int]) -> int:
        """Keep the rows of the longest common prefix of what is held and ``prompt``, and forget the rest.

        The prompt's last token is always left to run, since its logits are wanted.

        Returns:
            How many of the prompt's tokens :meth:`prefill` need not run.
        """
        limit = min(self.kv.length, len(self.tokens), len(prompt) - 1)
        kept = next((i for i in range(limit) if self.tokens[i] != prompt[i]), max(0, limit))
        self.truncate(kept)
        return kept

    def truncate(self, count: int) -> None:
        """Forget every token from ``count`` on, with its row."""
        del self.tokens[count:]
        self.kv.truncate(min(self.kv.length, count))

    def prefill(self, ids: Sequence[int]) -> Floats:
        """Run a prompt; returns the [V] logits of its last row. The head sees no other row.

        Raises:
            UsageError: no ids.
            ContextLengthError: more ids than the context holds. Nothing was run.
        """
        if not ids:
            raise UsageError("the prompt is empty; give at least one token of text.")
        self.check_fits(len(self.tokens) + len(ids))
        hidden = np.empty((0, self.config.hidden_size), dtype=np.float32)
        for begin in range(0, len(ids), PREFILL_ROWS):
            chunk = np.asarray(ids[begin : begin + PREFILL_ROWS], dtype=np.int64)
            hidden = self.stack.run(self.full_plan, self.stack.embed(chunk), self.kv.length)
            self.kv.commit(len(chunk))
            self.tokens += chunk.tolist()
        logits: Floats = self.stack.logits(hidden[-1:])[0]
        return logits

    def check_fits(self, total: int) -> None:
        """Raises: ContextLengthError when ``total`` tokens of prompt exceed the context."""
        limit = self.config.context_length
        if total > limit:
            raise ContextLengthError(
                f"the prompt has {total} tokens, but the model's context holds {limit}; shorten the prompt."
            )
