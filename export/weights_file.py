"""weights.bin while it is written: appended to, aligned, and hashed as it goes. Knows no tensor."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from ..models.tensors import ALIGNMENT, Segment
from .blocks import Codes, Floats


class WeightsFile:
    """A context manager."""

    def __init__(self, path: Path) -> None:
        self._file: BinaryIO = path.open("wb")
        self._digest = hashlib.sha256()
        self._offset = 0

    def __enter__(self) -> WeightsFile:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self._file.close()

    @property
    def size(self) -> int:
        return self._offset

    def sha256(self) -> str:
        return self._digest.hexdigest()

    def begin(self, dtype: str, shape: tuple[int, ...]) -> Segment:
        """The place of a tensor whose values are appended next."""
        self._append(bytes(-self._offset % ALIGNMENT))
        return Segment(dtype, shape, self._offset)

    def append(self, values: Floats | Codes) -> None:
        self._append(np.ascontiguousarray(values).data.cast("B"))

    def segment(self, values: Floats | Codes) -> Segment:
        """A whole tensor."""
        place = self.begin(values.dtype.name, values.shape)
        self.append(values)
        return place

    def _append(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self._offset += len(data)
