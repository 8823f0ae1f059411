"""A toy's logits in a table, and what stands in for its stack and its conversation over that table."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Set
from contextlib import AbstractContextManager, nullcontext
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np

from selfspec.runtime.paths import FULL, HOT
from selfspec.runtime.sampling import Floats, Probabilities, Sampling, distribution
from selfspec.runtime.stack import Ids, Plan

if TYPE_CHECKING:
    from tests.conftest import Toy


class Table:
    """The logits of every continuation of a prompt by fewer than ``length`` tokens, at the exit and at the end of the
    model."""

    def __init__(self, toy: Toy, length: int) -> None:
        self.length = length
        self.prompt = toy.prompt
        self.layers, self.vocab = toy.spec.layers, toy.spec.vocab
        self.exit_logits: dict[tuple[int, ...], Floats] = {}
        self.logits: dict[tuple[int, ...], Floats] = {}
        conversation = toy.conversation()
        self.logits[()] = conversation.prefill(self.prompt).copy()
        stack, start = conversation.stack, len(self.prompt)
        for tail in itertools.product(range(self.vocab), repeat=length - 1):
            shallow = stack.run(Plan.layers(0, 1), stack.embed(np.asarray(tail)), start)
            deep = stack.run(Plan.layers(1, self.layers), shallow, start)
            for logits, hidden in ((self.exit_logits, shallow), (self.logits, deep)):
                for i, row in enumerate(stack.logits(hidden)):
                    logits[tail[: i + 1]] = row.copy()
        self.draft_ids: dict[str, Ids] = {head: stack.draft_ids(head) for head in (HOT, FULL)}

    def joint(self, sampling: Sampling) -> Probabilities:
        """[V ** length] probabilities of the next tokens, by enumeration."""
        joint = np.ones(1)
        for done in range(self.length):
            tails = itertools.product(range(self.vocab), repeat=done)
            joint = (joint[:, None] * [self._next(tail, sampling) for tail in tails]).reshape(-1)
        return joint

    def _next(self, tail: tuple[int, ...], sampling: Sampling) -> Probabilities:
        """Penalties by their definition, not by the code under test."""
        logits = self.logits[tail].copy()
        for token in {*self.prompt, *tail}:
            factor = sampling.repetition_penalty
            logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
        for token in set(tail):
            logits[token] -= sampling.presence_penalty
        return distribution(logits, sampling)


class TableStack:
    """Stands in for Stack. A hidden state is (token, position, layers run); KV rows are the tokens written."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self._rows: dict[int, int] = {}

    def embed(self, ids: Ids) -> Floats:
        return np.asarray([[i, 0, 0] for i in ids], dtype=np.float32).reshape(len(ids), 3)

    def run(self, plan: Plan, hidden: Floats, position: int) -> Floats:
        if not plan.sublayers:
            return hidden
        hidden = hidden.copy()
        for i, row in enumerate(hidden):
            if plan.sublayers[0] == 0:
                self._rows[position + i] = int(row[0])
            row[1] = position + i
            row[2] = (plan.sublayers[-1] + 1) // 2
        return hidden

    def logits(self, hidden: Floats) -> Floats:
        return np.asarray([self._row(int(position), int(depth)) for _, position, depth in hidden])

    logit_rows = logits

    def watch_experts(self) -> AbstractContextManager[Mapping[int, Set[int]]]:
        return nullcontext({})

    def draft_ids(self, head: str) -> Ids:
        return self._table.draft_ids[head]

    def draft_logits(self, head: str, hidden: Floats) -> Floats:
        return self.logits(hidden)[:, self.draft_ids(head)]

    def _row(self, position: int, depth: int) -> Floats:
        tail = tuple(self._rows[p] for p in range(len(self._table.prompt), position + 1))
        return self._table.logits[tail] if depth == self._table.layers else self._table.exit_logits[tail]


class TableConversation:
    """Stands in for Conversation, prefilled."""

    def __init__(self, table: Table) -> None:
        self.config = SimpleNamespace(context_length=64, num_layers=table.layers, vocab_size=table.vocab, hidden_size=3)
        self.full_plan = Plan.layers(0, table.layers)
        self.tokens = list(table.prompt)
        self.kv = SimpleNamespace(length=len(self.tokens), commit=self._commit)
        self.stack = TableStack(table)

    def _commit(self, rows: int) -> None:
        self.kv.length += rows
