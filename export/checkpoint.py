"""Checkpoints: where a model's config, tensors and tokenizer files are read from.

Tensors are read in runs of rows, so that no matrix is ever whole in memory.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (gives NumPy the bfloat16 that safetensors hands out)
import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError, UnsupportedModelError
from ..models.config import ModelConfig, from_hf
from .blocks import Blocks, Floats

_FLOAT_TYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}


class Checkpoint(Protocol):
    """A readable model. Names are Hugging Face's, whatever the file format."""

    path: Path
    config: ModelConfig

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Every tensor and its shape, matrices as [out, in]."""

    def stored_type(self, name: str) -> str:
        """What the file holds: 'F32', 'BF16', 'Q4_1', ..."""

    def read(self, name: str, start: int, stop: int) -> Floats | Blocks:
        """Rows ``start`` to ``stop - 1``: Blocks where the file's own blocks can be carried over exactly."""

    def tokenizer_files(self) -> TokenizerSource:
        """Everything known about text."""


class TokenizerSource(Protocol):
    """Raw tokenizer facts of a checkpoint."""

    def tokenizer_json(self) -> str: ...

    def chat_template(self) -> str | None: ...

    def generation_config(self) -> dict[str, Any]: ...

    def eos_token_ids(self) -> tuple[int, ...]: ...

    def bos_token_id(self) -> int | None: ...
    def special_tokens(self) -> dict[str, str]: ...


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: missing, unreadable, not JSON or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; a model folder needs it.") from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); download it again.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, where a JSON object was expected.")
    return data


def _shard_names(index: Path) -> list[str]:
    """File names in a shard index, each a plain name: an index must not lead out of its folder."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict):
        raise CheckpointError(f"{index} has no weight_map; download it again.")
    names = list(weight_map.values())
    for name in names:
        if not isinstance(name, str) or Path(name).name != name:
            raise CheckpointError(f"{index} names the shard {name!r}, which is not a file of this folder.")
    return sorted(set(names))


class SafetensorsCheckpoint:
    """A folder with config.json and one or more .safetensors files."""

    def __init__(self, folder: Path) -> None:
        """Read config and tensor headers.

        Raises:
            CheckpointError: a file is missing or damaged.
            UnsupportedModelError: the config asks for something unknown.
        """
        self.path = folder
        self.config = from_hf(read_json(folder / "config.json"))
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        self._handles: dict[str, Any] = {}
        for file in self._weight_files():
            self._index(file)

    def _weight_files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if index.exists():
            names = _shard_names(index)
        elif (self.path / "model.safetensors").exists():
            names = ["model.safetensors"]
        else:
            names = sorted(p.name for p in self.path.glob("*.safetensors"))
        if not names:
            hint = " Pickled .bin weights are not read, because loading them can run code." if any(
                self.path.glob("*.bin")
            ) else ""  # fmt: skip
            raise CheckpointError(f"{self.path} has no .safetensors file to read weights from.{hint}")
        for name in names:
            if not (self.path / name).is_file():
                raise CheckpointError(f"{self.path / name} is missing; the index lists it. Download it again.")
        return [self.path / name for name in names]

    def _index(self, file: Path) -> None:
        try:
            handle = safe_open(file, framework="np")
        except (SafetensorError, OSError) as error:
            raise CheckpointError(f"{file} is not a complete safetensors file ({error}); download it again.") from error
        for name in handle.keys():  # noqa: SIM118  (a handle, not a dict)
            view = handle.get_slice(name)
            kind = str(view.get_dtype())
            if kind not in _FLOAT_TYPES:
                known = ", ".join(_FLOAT_TYPES)
                raise UnsupportedModelError(f"{file}: {name} is stored as {kind}; only {known} can be exported.")
            self._shapes[name], self._types[name] = tuple(view.get_shape()), kind
            self._handles[name] = handle

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def stored_type(self, name: str) -> str:
        return self._types[name]

    def read(self, name: str, start: int, stop: int) -> Floats | Blocks:
        rows = self._handles[name].get_slice(name)[start:stop]
        return np.ascontiguousarray(rows).astype(np.float32, copy=False)

    def tokenizer_files(self) -> TokenizerSource:
        from .tokenizer import FolderTokenizer

        return FolderTokenizer(self.path, self.config.vocab_size)
