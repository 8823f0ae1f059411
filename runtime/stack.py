"""Runs the model's graphs. The only code that knows which graph covers which layers."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ..errors import ArtifactError, UsageError
from ..models.interface import (
    EXPERTS_INPUT,
    HIDDEN,
    HIDDEN_OUT,
    INPUT_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
    kv_names,
    logits_name,
    selected_name,
)
from ..models.manifest import PAD_ROWS, Unit
from ..models.sublayers import layer_sublayers, split_sublayer
from .arrays import Floats as Floats
from .arrays import Ids as Ids
from .kvcache import KVCache
from .lifetime import go_on
from .logits import HeadOutput
from .route import NoRouteError, fewest_units
from .sessions import Sessions

MOST_ROWS = 16
"""Rows of the widest verification."""
_KEPT_ROWS = 32  # bindings for at most this many rows are kept; longer passes are prefill chunks


@dataclass(frozen=True, slots=True)
class Plan:
    """Which sublayers to run, ascending: 2i is the attention of layer i, 2i+1 its MLP. ``experts``: how many of a
    row's best experts run in each of them; None for as many as the model has."""

    sublayers: tuple[int, ...]
    experts: int | None = None

    @classmethod
    def layers(cls, start: int, stop: int, experts: int | None = None) -> Plan:
        """Whole layers ``start`` to ``stop - 1``."""
        return cls(tuple(layer_sublayers(start, stop)), experts)


@dataclass(frozen=True, slots=True)
class Passes:
    """How rows are put into passes.

    At least ``min_rows`` each, padding behind the real ones. None goes on past a multiple of ``boundary``: a kernel
    that takes keys in blocks may treat a row otherwise once a pass reaches the next one. The last ``min_rows - 1`` rows
    before it are cut off with what follows: alone, they would be padded across it. With ``widths``, a pass has one of
    these numbers of rows or at most ``MOST_ROWS``: a kernel may mind others, and not all can be tried.
    """

    min_rows: int = 1
    boundary: int | None = None
    widths: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        counts = (self.min_rows, PAD_ROWS if self.boundary is None else self.boundary, *(self.widths or ()))
        if not all(type(count) is int and count >= 1 for count in counts):
            raise UsageError(f"rows of passes are counted in whole numbers from 1 on, not in {counts}.")
        if not 1 <= self.min_rows <= PAD_ROWS:
            raise UsageError(f"passes can be padded to 1 to {PAD_ROWS} rows, not to {self.min_rows}.")
        if self.boundary is not None and self.boundary < PAD_ROWS:
            raise UsageError(f"passes can be cut at multiples of {PAD_ROWS} or more, not of {self.boundary}.")

    def rows(self, count: int) -> int:
        """How many rows a pass over ``count`` real ones has."""
        return max(count, self.min_rows)

    def cuts(self, position: int, count: int) -> list[int]:
        """Where passes over rows ``position`` to ``position + count - 1`` begin, and the end of the last one."""
        cuts, end = [position], position + count
        while cuts[-1] < end:
            cuts.append(cuts[-1] + self._width(cuts[-1], end - cuts[-1]))
        return cuts

    def _width(self, position: int, left: int) -> int:
        """Rows of the pass that begins at ``position``."""
        if self.boundary is not None:
            back = self.min_rows - 1
            left = min(left, self.boundary - (position + back) % self.boundary)
        if self.widths is None or left <= MOST_ROWS:
            return left
        return max((width for width in self.widths if width <= left), default=MOST_ROWS)


AS_THEY_COME = Passes()


class _Pass:
    """One graph bound for a fixed number of rows: fill ``inputs``, run, read ``outputs``."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._binding = session.io_binding()
        self.arrays: dict[str, NDArray[np.generic]] = {}
        self.selected: dict[int, NDArray[np.int32]] = {}
        """Layer → [1, rows, k]: each row's experts, best first, -1 for none."""

    def bind_input(self, name: str, array: NDArray[np.generic]) -> None:
        self.arrays[name] = array  # the OrtValue aliases the array, which must outlive it
        self._binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))

    def bind_output(self, name: str, array: NDArray[np.generic]) -> None:
        self.arrays[name] = array
        self._binding.bind_ortvalue_output(name, ort.OrtValue.ortvalue_from_numpy(array))

    def bind_in_place(self, past: str, present: str, value: ort.OrtValue) -> None:
        self._binding.bind_ortvalue_input(past, value)
        self._binding.bind_ortvalue_output(present, value)

    def run(self) -> None:
        """Raises: ArtifactError where a kernel refuses what the graph gives it: the graph is not of our making."""
        go_on()
        try:
            self._session.run_with_iobinding(self._binding)
        except Exception as error:  # ONNX Runtime's exceptions share no base class
            raise ArtifactError(f"a graph of this artifact cannot run ({error}); export the model again.") from error


HeadParts = list[tuple[str, tuple[tuple[int, int], ...]]]
"""Graphs of a head, each with the columns of the whole that its outputs fill."""


@dataclass(frozen=True, slots=True)
class _DraftHead:
    """A head that drafts: its graphs, and column → token id."""

    parts: HeadParts
    ids: Ids

    @classmethod
    def over(cls, graph: str, ranges: tuple[tuple[int, int], ...]) -> _DraftHead:
        """One graph whose logits stand side by side."""
        edges = np.cumsum([0, *(stop - start for start, stop in ranges)]).tolist()
        ids = np.concatenate([np.arange(start, stop) for start, stop in ranges])
        return cls([(graph, tuple(itertools.pairwise(edges)))], ids)


class Stack:
    """The model's graphs over one conversation's KV cache and scratch.

    ``passes`` pads and cuts them, for machines whose kernels only then treat rows alike; the padding follows the real
    rows, and nothing reads what it leaves behind. What is returned is the caller's own, but for :meth:`logit_rows`.
    """

    def __init__(self, sessions: Sessions, kv: KVCache, passes: Passes = AS_THEY_COME) -> None:
        self._sessions = sessions
        self._manifest = sessions.artifact.manifest
        self._kv = kv
        self._split = passes
        self._bound: dict[tuple[str, int], _Pass] = {}
        self._scratch: dict[tuple[str, str], NDArray[Any]] = {}
        self._generation = kv.generation
        self._seqlens_k = np.zeros(1, dtype=np.int32)
        self._total = np.zeros(1, dtype=np.int32)
        moe = self._manifest.model.moe
        self._most_experts = 0 if moe is None else moe.experts_per_token
        self._experts = np.zeros(1, dtype=np.int64)
        self._watched: dict[int, set[int]] | None = None
        self._units = {unit.graph: unit for unit in self._manifest.units}
        self._routes: dict[Plan, tuple[Unit, ...]] = {}
        self._heads: dict[str, _DraftHead] = {}

    def embed(self, ids: Ids) -> Floats:
        """[n] token ids → [n, d]."""
        bound = self._pass(self._manifest.embed_graph, self._split.rows(len(ids)))
        bound.arrays[INPUT_IDS][0, : len(ids)] = ids
        bound.run()
        return _rows_of(bound.arrays[HIDDEN_OUT], len(ids))

    def run(self, plan: Plan, hidden: Floats, position: int) -> Floats:
        """Run ``plan`` on rows at ``position``, ``position + 1``, ...; [n, d] → [n, d]. Writes their KV rows.

        Raises:
            ContextLengthError: the rows do not fit the context. Nothing was written.
            UsageError: the plan splits a graph, or asks for a number of experts that the model cannot run.
        """
        route = self._route(plan)
        self._experts[0] = self._most_experts if plan.experts is None else plan.experts
        self._kv.reserve(position + len(hidden))
        if self._generation != self._kv.generation:
            self._bound.clear()
            self._generation = self._kv.generation
        cuts = self._split.cuts(position, len(hidden))
        outputs = [
            self._run_pass(route, hidden[start - position : stop - position], start)
            for start, stop in itertools.pairwise(cuts)
        ]
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)

    @contextlib.contextmanager
    def watch_experts(self) -> Iterator[Mapping[int, Set[int]]]:
        """Layer → its experts that have run since the ``with`` block began; empty for a model without experts."""
        outer, ran = self._watched, dict[int, set[int]]()
        self._watched = ran
        try:
            yield ran
        finally:
            self._watched = outer
            if outer is not None:  # a block inside a block: both are told
                for layer, experts in ran.items():
                    outer.setdefault(layer, set()).update(experts)

    def _run_pass(self, route: tuple[Unit, ...], hidden: Floats, position: int) -> Floats:
        n = len(hidden)
        rows = self._split.rows(n)
        self._seqlens_k[0], self._total[0] = position + rows - 1, position + rows
        for unit in route:
            bound = self._pass(unit.graph, rows)
            bound.arrays[HIDDEN][0, :n] = hidden
            bound.run()
            if self._watched is not None:
                for layer, selected in bound.selected.items():
                    ran = selected[0, :rows]  # those of padding are read too
                    self._watched.setdefault(layer, set()).update(ran[ran >= 0].tolist())
            hidden = bound.arrays[HIDDEN_OUT][0, :n]  # type: ignore[assignment]
        return hidden.copy()

    def logits(self, hidden: Floats) -> Floats:
        """[n, d] → [n, vocabulary size]."""
        return self.logit_rows(hidden).whole()

    def logit_rows(self, hidden: Floats) -> HeadOutput:
        """The same, to be looked at before anything else is asked of the head."""
        full = self._draft_head("full")
        return self._head(hidden, full.parts, len(full.ids))

    def draft_logits(self, head: str, hidden: Floats) -> Floats:
        """[n, d] → [n, ids of the head], by the head that :meth:`draft_ids` describes.

        Raises:
            UsageError: this artifact has no head of that name.
        """
        found = self._draft_head(head)
        return self._head(hidden, found.parts, len(found.ids)).whole()

    def draft_ids(self, head: str) -> Ids:
        """Column of :meth:`draft_logits` → token id, where ``head`` is "full", "hot" (the first part of the full head,
        the ids that are likeliest) or the name of a draft head that the manifest lists.

        Raises:
            UsageError: this artifact has no head of that name.
        """
        return self._draft_head(head).ids

    def _draft_head(self, name: str) -> _DraftHead:
        if name not in self._heads:
            self._heads[name] = self._described(name)
        return self._heads[name]

    def _described(self, name: str) -> _DraftHead:
        head, listed = self._manifest.head, {head.name: head for head in self._manifest.draft_heads}
        if name == "hot":
            return _DraftHead.over(head.hot_graph, head.hot_ranges)
        if name == "full":
            return _DraftHead(list(self._manifest.whole_head), np.arange(self._manifest.model.vocab_size))
        if name in listed:
            return _DraftHead.over(listed[name].graph, listed[name].ranges)
        known = ", ".join(["full", "hot", *listed])
        raise UsageError(f"there is no head {name!r} in this artifact; it has {known}.", "head")

    def _head(self, hidden: Floats, parts: HeadParts, width: int) -> HeadOutput:
        n, found = len(hidden), list[tuple[slice, Floats]]()
        for graph, columns in parts:
            bound = self._pass(graph, self._split.rows(n))
            bound.arrays[HIDDEN][0, :n] = hidden
            bound.run()
            found += [
                (slice(start, stop), cast("Floats", bound.arrays[logits_name(index)][0, :n]))
                for index, (start, stop) in enumerate(columns)
            ]
        return HeadOutput(found, width)

    def _route(self, plan: Plan) -> tuple[Unit, ...]:
        if plan not in self._routes:
            if plan.experts is not None and not 1 <= plan.experts <= self._most_experts:
                raise UsageError(f"a pass with {plan.experts} experts a token: this model has {self._most_experts}.")
            try:
                self._routes[plan] = fewest_units(self._manifest.units, plan.sublayers)
            except NoRouteError as error:
                end = layer_sublayers(0, self._manifest.model.num_layers).stop
                cuts = sorted({split_sublayer(u.stop)[0] for u in self._manifest.units if u.stop != end})
                raise UsageError(
                    f"{error}: this artifact is cut after layers {', '.join(map(str, cuts))}. "
                    "Export with other exit layers, or with selfspec-export --blocks sublayer or both."
                ) from error
        return self._routes[plan]

    def _pass(self, graph: str, rows: int) -> _Pass:
        key = (graph, rows)
        if key not in self._bound:
            bound = self._bind(graph, rows)
            if rows > _KEPT_ROWS:
                return bound
            self._bound[key] = bound
        return self._bound[key]

    def _bind(self, graph: str, rows: int) -> _Pass:
        session, unit = self._sessions.get(graph), self._units.get(graph)
        bound = _Pass(session)
        one: dict[str, NDArray[Any]] = {
            SEQLENS_K: self._seqlens_k, TOTAL_SEQUENCE_LENGTH: self._total, EXPERTS_INPUT: self._experts,
        }  # fmt: skip
        buffers = {} if unit is None else self._buffers(unit)
        selecting = {} if unit is None else {selected_name(layer): layer for layer in unit.mlp_layers}
        for node in session.get_inputs():
            if node.name in buffers:
                bound.bind_in_place(node.name, *buffers[node.name])
            elif node.name in one:
                bound.bind_input(node.name, one[node.name])
            elif node.name == INPUT_IDS:
                bound.bind_input(node.name, np.zeros((1, rows), dtype=np.int64))
            else:
                bound.bind_input(node.name, self._rows(graph, node.name, rows, node.shape[-1]))
        presents = {present for present, _ in buffers.values()}
        for node in session.get_outputs():
            if node.name in selecting:
                selected = self._rows(graph, node.name, rows, node.shape[-1], np.int32)
                bound.bind_output(node.name, selected)
                bound.selected[selecting[node.name]] = selected
            elif node.name not in presents:
                bound.bind_output(node.name, self._rows(graph, node.name, rows, node.shape[-1]))
        return bound

    def _buffers(self, unit: Unit) -> dict[str, tuple[str, ort.OrtValue]]:
        """Graph input → (graph output, buffer) of every key and value."""
        found = {}
        for layer in unit.attention_layers:
            names = kv_names(layer)
            for (past, present), value in zip(names, (self._kv.key(layer), self._kv.value(layer)), strict=True):
                found[past] = (present, value)
        return found

    def _rows(self, graph: str, name: str, rows: int, width: int, dtype: type[np.generic] = np.float32) -> NDArray[Any]:
        """[1, rows, width] for one input or output. Passes of any number of rows share the memory, since one runs at a
        time: logits of 1, 2, ... 16 rows over a large vocabulary would add up. Untouched rows cost nothing."""
        if rows > _KEPT_ROWS:
            return np.empty((1, rows, width), dtype=dtype)
        key = (graph, name)
        if key not in self._scratch:
            self._scratch[key] = np.zeros((1, _KEPT_ROWS, width), dtype=dtype)
        return self._scratch[key][:, :rows]


def _rows_of(array: NDArray[np.generic], n: int) -> Floats:
    return np.array(array[0, :n], dtype=np.float32)
