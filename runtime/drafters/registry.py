"""All drafters there are. A new one is a module with a ``KIND``, and a line here."""

from __future__ import annotations

import re

from ...errors import UsageError, unknown_name
from ...models.manifest import Manifest
from ..paths import DraftPath
from . import auto, early_exit, fewer_experts, plain, prompt_lookup
from .kind import DrafterKind

_kinds: dict[str, DrafterKind] = {
    kind.name: kind
    for kind in (
        plain.KIND,
        prompt_lookup.KIND,
        early_exit.KIND,
        fewer_experts.KIND,
        auto.KIND,
    )
}


def kinds() -> tuple[DrafterKind, ...]:
    """Every drafter; where two arms of ``auto`` promise the same, the earlier one drafts."""
    return tuple(_kinds.values())


def names() -> tuple[str, ...]:
    """What users may type."""
    return tuple(_kinds)


def kind_named(name: str) -> DrafterKind:
    """Raises: UsageError for an unknown name; it lists the known ones."""
    if name not in _kinds:
        raise UsageError(f"`draft`: {unknown_name('drafter', name, _kinds)}", parameter="draft")
    return _kinds[name]


def register(kind: DrafterKind) -> None:
    """Add a drafter of your own: every command and every model of this process then knows it by its name.

    Raises:
        UsageError: there is a drafter of this name, or the name is not made of lower-case letters, digits and hyphens.
    """
    if not re.fullmatch("[a-z][a-z0-9-]*", kind.name):
        raise UsageError(
            f"a drafter cannot be called {kind.name!r}; use lower-case letters, digits and hyphens, a letter first."
        )
    if kind.name in _kinds:
        raise UsageError(f"there is a drafter {kind.name} already; give yours another name.")
    _kinds[kind.name] = kind


def candidates(manifest: Manifest) -> tuple[DraftPath, ...]:
    """The draft paths that a profile of this model measures, each once.

    Raises:
        UsageError: two different paths have one name.
    """
    found: dict[str, DraftPath] = {}
    for path in (path for kind in kinds() for path in kind.candidates(manifest)):
        if found.setdefault(path.name, path) != path:
            raise UsageError(f"two drafters call different paths {path.name}; give one of them another name.")
    return tuple(found.values())
