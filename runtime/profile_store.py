"""Profiles in the user's cache, under the artifact's digest and a machine key. Whatever is damaged counts as absent."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import UsageError
from .artifact import Artifact
from .cache import cache_folder, read_entry, write_entry
from .costs import Profile
from .machine_key import machine_key

PROFILE_VERSION = 7


def load_profile(artifact: Artifact, threads: int, paths: Iterable[str]) -> Profile | None:
    """The stored profile of this artifact on this machine, if there is one that measured all ``paths``."""
    found = _stored(artifact).get(_key(artifact, threads))
    try:
        profile = None if found is None else Profile.from_dict(found)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, UsageError):
        return None
    return profile if profile is not None and profile.covers(paths) else None


def store_profile(artifact: Artifact, threads: int, profile: Profile) -> Path:
    """Keep a profile; returns its file.

    Raises:
        OSError: the cache cannot be written.
    """
    path = _path(artifact)
    machines = _stored(artifact) | {_key(artifact, threads): profile.to_dict()}
    write_entry(path, PROFILE_VERSION, {"machines": machines})
    return path


def _path(artifact: Artifact) -> Path:
    return cache_folder() / "profiles" / f"{artifact.digest}.json"


def _key(artifact: Artifact, threads: int) -> str:
    return json.dumps(machine_key(artifact, threads), sort_keys=True)


def _stored(artifact: Artifact) -> dict[str, Any]:
    """machine key → profile; empty where nothing usable is stored, since measuring again repairs it."""
    machines = read_entry(_path(artifact), PROFILE_VERSION).get("machines")
    return machines if isinstance(machines, dict) else {}
