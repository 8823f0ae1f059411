"""Logits of several rows, as the parts of a head leave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from .sampling import Floats


class LogitRows(Protocol):
    """[n, V]: an array, or what :class:`HeadOutput` puts together."""

    def __getitem__(self, row: int, /) -> Floats:
        """[V]."""

    def __len__(self) -> int: ...


class HeadOutput:
    """[n, V] logits in the head's own buffers, put together when they are asked for: of a wide vocabulary a copy of all
    rows would weigh megabytes, and a round that rejects its draft looks at few. Holds until the head runs again."""

    def __init__(self, parts: Sequence[tuple[slice, Floats]], width: int) -> None:
        """Args: parts: columns of the whole, and what stands there, [n, columns]."""
        self._parts = parts
        self._width = width

    def __len__(self) -> int:
        return len(self._parts[0][1])

    def __getitem__(self, row: int, /) -> Floats:
        """[V], a copy."""
        found = np.empty(self._width, dtype=np.float32)
        for columns, values in self._parts:
            found[columns] = values[row]
        return found

    def whole(self) -> Floats:
        """[n, V], a copy."""
        found = np.empty((len(self), self._width), dtype=np.float32)
        for columns, values in self._parts:
            found[:, columns] = values
        return found
