"""Checked access to values of a foreign configuration, for its translators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import CheckpointError


@dataclass(frozen=True, slots=True)
class Settings:
    """A mapping and where it came from; ``prefix`` stands in front of every key."""

    data: Mapping[str, Any]
    where: str
    prefix: str = ""

    def get(self, key: str) -> Any:
        return self.data.get(self.prefix + key)

    def whole(self, key: str, default: int | None = None) -> int:
        """Raises: CheckpointError when it is absent without a default, or no whole number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            raise self._wrong(key, value, "a whole number")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        """Raises: CheckpointError when it is absent without a default, or no number."""
        value = self._value(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self._wrong(key, value, "a number")
        try:
            return float(value)
        except OverflowError:
            raise CheckpointError(f"{self.where}: {self.prefix + key!r} is too large for a number.") from None

    def flag(self, key: str, default: bool) -> bool:
        """Raises: CheckpointError when it is neither true nor false."""
        value = self._value(key, default)
        if not isinstance(value, bool):
            raise self._wrong(key, value, "true or false")
        return value

    def _value(self, key: str, default: Any) -> Any:
        value = self.get(key)
        value = default if value is None else value
        if value is None:
            raise CheckpointError(
                f"{self.where} has no {self.prefix + key!r}; without it the model's shape is unknown."
            )
        return value

    def _wrong(self, key: str, value: Any, expected: str) -> CheckpointError:
        shown = repr(value) if len(repr(value)) < 80 else repr(value)[:77] + "..."
        return CheckpointError(f"{self.where}: {self.prefix + key!r} is {shown}, where {expected} was expected.")
