"""Checkpoints: where a model's config, tensors and tokenizer files are read from.

Tensors are read in runs of rows, so that no matrix is ever whole in memory. A model folder is data by strangers:
nothing in it is ever imported or run, and its files are its own (see ``check_folder``).
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import ml_dtypes  # noqa: F401  (gives NumPy the bfloat16 that safetensors hands out)
import numpy as np
from safetensors import SafetensorError, safe_open

from ..errors import CheckpointError, UnsupportedModelError
from ..models.config import ModelConfig
from ..models.hf_config import from_hf
from ..models.tensors import rows_of
from .blocks import Blocks, Floats

MODEL_FILES = ("*.json", "*.safetensors", "*.jinja")
"""What is read of a model folder, and all that is fetched from the hub: no code, no pickles."""

_MB = 2**20
_LIMITS = {"tokenizer.json": 256 * _MB, "model.safetensors.index.json": 64 * _MB}
_TEXT_LIMIT = 16 * _MB  # of every other text file, and of a safetensors header
_READ = (
    "config.json", "generation_config.json", "tokenizer_config.json", "tokenizer.json", "chat_template.jinja",
    "model.safetensors.index.json", "special_tokens_map.json", "added_tokens.json",
)  # fmt: skip
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
        """Rows ``start`` to ``stop - 1``, of a tensor of three dimensions those of all its matrices in turn: Blocks
        where the file's own blocks can be carried over exactly."""

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

    def warnings(self) -> tuple[str, ...]:
        """What was not taken as the files say it, in words for the user."""


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file.

    Raises:
        CheckpointError: missing, unreadable, not JSON or not an object.
    """
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{path} is missing; a model folder needs it.") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({error}); download it again.") from error
    if not isinstance(data, dict):
        raise CheckpointError(f"{path} holds a {type(data).__name__}, where a JSON object was expected.")
    return data


def hub_repository(folder: Path) -> Path | None:
    """The models--org--name folder of a hub cache that ``folder`` is a snapshot of; None where it is none."""
    snapshots, repository = folder.parent, folder.parent.parent
    return repository if snapshots.name == "snapshots" and repository.name.startswith("models--") else None


def check_folder(folder: Path) -> None:
    """The files of a model folder are plain files of bearable size, and its own.

    A link may lead to a place inside the folder or, from a hub snapshot, inside its repository's cache folder. Anywhere
    else it could be a private file of the user's, whose text would then stand in an artifact that is passed on. A link
    to the whole folder is the user's own word.

    Raises:
        CheckpointError: names the file.
    """
    folder = folder.resolve()
    home = hub_repository(folder) or folder
    for file in sorted(p for pattern in MODEL_FILES for p in folder.glob(pattern)):
        target = file.resolve()
        if not target.is_relative_to(home):
            raise CheckpointError(
                f"{file} is a symbolic link to {target}, outside of the model's folder; copy the file into the folder, "
                "or pass the folder that holds it."
            )
        if not target.is_file():
            raise CheckpointError(f"{file} is no file, or a link to one that is missing; download it again.")
        limit = _LIMITS.get(file.name, _TEXT_LIMIT)
        if file.name in _READ and target.stat().st_size > limit:
            raise CheckpointError(f"{file} has {target.stat().st_size} bytes, more than any model's ({limit}).")


def _refuse_code(config: dict[str, Any], path: Path) -> None:
    """A config that points to Python files beside it may compute something else than its model type says."""
    if config.get("auto_map"):
        raise UnsupportedModelError(
            f"{path} asks for code of its own (auto_map), which is never run; if the model is a plain "
            f"{config.get('model_type')}, delete that key and export again."
        )


def _header_length(file: Path) -> int:
    """Raises: CheckpointError where the header would not fit the file; what it says is checked by the library."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
    if length > min(size - 8, _TEXT_LIMIT):
        raise CheckpointError(
            f"{file} is not a complete safetensors file (a header of {length} bytes in {size}); download it again."
        )
    return length


def _offsets(file: Path, header_length: int) -> dict[str, int]:
    """Tensor → where its values begin, of a file that the library has checked.

    Raises: CheckpointError where the header says it otherwise than files of this format do.
    """
    with file.open("rb") as opened:
        opened.seek(8)
        text = opened.read(header_length)
    try:
        header = json.loads(text)
        header.pop("__metadata__", None)
        return {name: 8 + header_length + int(facts["data_offsets"][0]) for name, facts in header.items()}
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:  # the library is less strict
        raise CheckpointError(f"{file} has a header that cannot be read ({error}); download it again.") from error


@contextlib.contextmanager
def _told(file: Path) -> Iterator[None]:
    """While a safetensors file is read.

    Raises:
        CheckpointError: it is gone, incomplete or damaged, or lacks what is read of it.
    """
    try:
        yield
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{file} is not a complete safetensors file ({error}); download it again.") from error


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
        check_folder(folder)
        config = read_json(folder / "config.json")
        _refuse_code(config, folder / "config.json")
        self.config = from_hf(config)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._types: dict[str, str] = {}
        self._files: dict[str, Path] = {}
        self._offsets: dict[str, int] = {}
        for file in self._weight_files():
            self._index(file)

    def _weight_files(self) -> list[Path]:
        index = self.path / "model.safetensors.index.json"
        if (self.path / "model.safetensors").exists():  # an index beside it is left over, as for transformers
            names = ["model.safetensors"]
        elif index.exists():
            names = _shard_names(index)
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
        length = _header_length(file)
        with _told(file), safe_open(file, framework="np") as handle:
            offsets = _offsets(file, length)
            for name in handle.keys():  # noqa: SIM118  (a handle, not a dict)
                view = handle.get_slice(name)
                kind = str(view.get_dtype())
                if kind not in _FLOAT_TYPES:
                    known = ", ".join(_FLOAT_TYPES)
                    raise UnsupportedModelError(f"{file}: {name} is stored as {kind}; only {known} can be exported.")
                self._shapes[name], self._types[name] = tuple(view.get_shape()), kind
                self._files[name], self._offsets[name] = file, offsets[name]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return self._shapes

    def stored_type(self, name: str) -> str:
        return self._types[name]

    def read(self, name: str, start: int, stop: int) -> Floats | Blocks:
        # Not mapped, as the library would: pages once touched stay resident, in the end all.
        file, shape, kind = self._files[name], self._shapes[name], np.dtype(_FLOAT_TYPES[self._types[name]])
        columns = shape[-1] if len(shape) > 1 else 1
        count = (min(stop, rows_of(shape)) - start) * columns
        with _told(file), file.open("rb") as opened:
            opened.seek(self._offsets[name] + start * columns * kind.itemsize)
            values = np.fromfile(opened, kind, count)
        if len(values) < count:
            raise CheckpointError(f"{file} is not a complete safetensors file ({name} is cut off); download it again.")
        return values.astype(np.float32, copy=False).reshape((-1, columns) if len(shape) > 1 else (-1,))

    def tokenizer_files(self) -> TokenizerSource:
        from .tokenizer import FolderTokenizer

        return FolderTokenizer(self.path, self.config.vocab_size)
