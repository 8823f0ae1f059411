"""The KV cache: preallocated buffers and one integer. The only code that touches KV memory.

Rows 0..length-1 hold committed tokens. Drafts write beyond ``length``; nobody reads those rows unless they are
committed, so rollback is not moving anything. Buffers grow by doubling and keep their rows.
"""

from __future__ import annotations

import contextlib
import math
import mmap

import numpy as np
import onnxruntime as ort

from ..errors import ContextLengthError, RuntimeSetupError
from ..models.config import ModelConfig
from ..models.manifest import PAD_ROWS
from .arrays import Floats
from .limits import memory_room

INITIAL_ROWS = 2048


class KVCache:
    """One conversation's keys and values, [1, kv_heads, capacity + pad rows, head_dim] a layer."""

    def __init__(self, config: ModelConfig) -> None:
        self._config = config
        self.length = 0
        self.capacity = self._affordable(1, min(config.context_length, INITIAL_ROWS), 0)
        self.generation = 0
        """Changes whenever the buffers are other memory: whoever bound them must bind them again."""
        self._arrays = self._allocate(self.capacity)
        self._values = [ort.OrtValue.ortvalue_from_numpy(a) for a in self._arrays]

    def _allocate(self, capacity: int) -> list[Floats]:
        heads, rows = self._config.num_kv_heads, capacity + PAD_ROWS
        shape = (2 * self._config.num_layers, 1, heads, rows, self._config.head_dim)
        try:
            return list(_untouched_zeros(shape))
        except (OSError, MemoryError, OverflowError) as error:
            raise RuntimeSetupError(
                f"the KV cache of {rows} tokens takes {4 * math.prod(shape) / 1e6:.0f} MB, which this machine does not "
                "give; use a shorter prompt or a smaller model."
            ) from error

    def _affordable(self, least: int, wanted: int, held: int) -> int:
        """``wanted`` rows, or as many as there is memory for, beside the ``held`` ones that are copied and then freed.

        Raises:
            RuntimeSetupError: ``least`` rows are too many already. Nobody is killed for memory that was never there.
        """
        room = memory_room()
        if room is None:
            return wanted
        size = 8 * self._config.num_layers * self._config.num_kv_heads * self._config.head_dim
        rows = room.bytes // size
        most = rows + held if held <= rows else 0
        if least > most:
            raise RuntimeSetupError(
                f"the KV cache of {least} tokens takes {size * least / 1e6:.0f} MB and there is room for "
                f"{room.bytes / 1e6:.0f} MB more, because {room.why}; use a shorter prompt or a smaller model, or give "
                "it more memory."
            )
        return min(wanted, most)

    def key(self, layer: int) -> ort.OrtValue:
        return self._values[2 * layer]

    def value(self, layer: int) -> ort.OrtValue:
        return self._values[2 * layer + 1]

    def rows(self, layer: int) -> tuple[Floats, Floats]:
        """Copies of the committed keys and values of a layer, each [kv_heads, length, head_dim]."""
        key, value = (self._arrays[2 * layer + part][0, :, : self.length].copy() for part in (0, 1))
        return key, value

    def reserve(self, rows: int) -> None:
        """Make sure that rows 0..rows-1 can be written; keeps all rows, a running draft's included.

        Raises:
            ContextLengthError: more rows than the context holds. Nothing was changed.
            RuntimeSetupError: there is no memory for them. Nothing was changed.
        """
        limit = self._config.context_length
        if rows > limit:
            raise ContextLengthError(f"{rows} tokens do not fit: the model's context holds {limit}.")
        if rows <= self.capacity:
            return
        capacity = self.capacity
        while capacity < rows:
            capacity = min(2 * capacity, limit)
        capacity = self._affordable(rows, capacity, self.capacity)
        arrays = self._allocate(capacity)
        for before, after in zip(self._arrays, arrays, strict=True):
            after[:, :, : before.shape[2]] = before
        values = [ort.OrtValue.ortvalue_from_numpy(a) for a in arrays]
        # Nothing is called from here on: an interrupt finds the old buffers or the new ones.
        self.capacity, self._arrays, self._values = capacity, arrays, values
        self.generation += 1

    def commit(self, rows: int) -> None:
        """Count ``rows`` more rows, already written by every layer, as committed.

        Raises:
            ContextLengthError: they were never reserved.
        """
        if rows < 0 or self.length + rows > self.capacity:
            raise ContextLengthError(f"{rows} rows cannot be committed at {self.length}: {self.capacity} are reserved.")
        self.length += rows

    def truncate(self, length: int) -> None:
        """Forget every row from ``length`` on.

        Raises:
            ContextLengthError: ``length`` is negative or beyond the committed rows.
        """
        if not 0 <= length <= self.length:
            raise ContextLengthError(f"the KV cache holds {self.length} rows and cannot be truncated to {length}.")
        self.length = length


def _untouched_zeros(shape: tuple[int, ...]) -> Floats:
    """Zeros of which only the pages that are written cost memory.

    NumPy would ask for huge pages, and the first rows of every head, spread over the whole buffer, would then make all
    of it resident.
    """
    size = 4 * math.prod(shape)
    if not hasattr(mmap, "MAP_ANONYMOUS"):  # Windows
        return np.zeros(shape, dtype=np.float32)
    buffer = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_NOHUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel built without huge pages has nothing to switch off
            buffer.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(buffer, dtype=np.float32).reshape(shape)
