"""Hub ids: a repository's model folder, or one of its GGUF files; downloaded, or from the cache.

``org/name`` is the folder, or, where the repository holds none but GGUF files, the one that loses least;
``org/name:Q4_0`` is the file of that quantisation, as llama.cpp's -hf takes it.
"""

from __future__ import annotations

import glob
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import CheckpointError, UsageError
from .checkpoint import MODEL_FILES
from .gguf_parts import part_names

_HUB_ID = re.compile(r"(?P<repository>[\w.-]+/[\w.-]+)(:(?P<quantisation>[\w.-]+))?")
_REVISION = re.compile(r"\w[\w.-]*(/\w[\w.-]*)*")
_PREFERRED = ("Q8_0", "BF16", "F16", "F32", "Q4_0", "Q4_1", "Q6_K", "Q5_K_M", "Q4_K_M")
"""Where no quantisation is named: eight bits come over exactly, or lose nothing that shows before being rounded to
four; four bits that come over exactly follow; what would be rounded twice is last."""
_QUANTISATION = re.compile(r"(?:UD-)?(?:I?Q\d\w*|TQ\d\w*|MXFP4\w*|BF16|F16|F32)", re.IGNORECASE)
_NO_MODELS = ("mmproj", "imatrix")  # parts for images, and data for quantising


@dataclass(frozen=True, slots=True)
class HubModel:
    """A repository, and a quantisation where one is named; ``revision``: a branch, tag or commit."""

    repository: str
    quantisation: str | None
    revision: str | None = None
    cache_dir: Path | None = None

    def __post_init__(self) -> None:
        if self.revision is not None and not _REVISION.fullmatch(self.revision):
            raise UsageError(f"`revision` {self.revision!r} can be no branch, tag or commit.", "revision")
        if self.cache_dir is not None and not self.cache_dir.is_dir():
            raise UsageError(
                f"`cache_dir` {self.cache_dir} is no folder; name the one that holds models--* folders.", "cache_dir"
            )

    def fetch(self) -> Path:
        """A model folder or a .gguf file.

        Raises:
            CheckpointError: neither hub nor cache has it, or no file of that quantisation.
        """
        if self.quantisation is None:
            folder = self._snapshot(allow_patterns=list(MODEL_FILES), ignore_patterns=["*/*"])
            if any(folder.glob("*.safetensors")):  # of the top level only: below stand other formats of the same
                return folder
        files = self._gguf_files()
        if self.quantisation is None and not files:
            return folder
        parts = part_names(choose(files, self.quantisation, self.repository))
        folder = self._snapshot(allow_patterns=[glob.escape(part) for part in parts])
        if not (folder / parts[0]).is_file():
            raise CheckpointError(f"{self.repository}: {parts[0]} is not in the cache; go online to download it.")
        return folder / parts[0]

    def _gguf_files(self) -> list[str]:
        """The .gguf files of the repository, or of the cache where the hub cannot be reached."""
        from huggingface_hub import list_repo_files

        try:
            names = list_repo_files(self.repository, revision=self.revision)
        except Exception:  # the errors of huggingface_hub and of its HTTP client share no base class
            folder = self._snapshot(allow_patterns=["*.gguf"], local_files_only=True)
            names = [file.relative_to(folder).as_posix() for file in folder.rglob("*.gguf")]
        return [name for name in names if name.lower().endswith(".gguf") and ".." not in PurePosixPath(name).parts]

    def _snapshot(self, **patterns: Any) -> Path:
        from huggingface_hub import snapshot_download  # reads HF_HUB_OFFLINE, HF_HOME and HF_HUB_CACHE when imported

        try:
            return Path(
                snapshot_download(self.repository, revision=self.revision, cache_dir=self.cache_dir, **patterns)
            )
        except Exception as error:  # the errors of huggingface_hub and of its HTTP client share no base class
            reason = str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
            raise CheckpointError(
                f"{self.repository!r} is no local path, and the hub did not give it ({reason}); check the name and the "
                "network, or download the folder yourself and pass its path."
            ) from error


def hub_model(model_id: str, revision: str | None, cache_dir: Path | None) -> HubModel | None:
    """None where ``model_id`` can be no hub id."""
    found = _HUB_ID.fullmatch(model_id)
    return None if found is None else HubModel(found["repository"], found["quantisation"], revision, cache_dir)


def choose(files: list[str], quantisation: str | None, repository: str) -> str:
    """The file, or first part, of a quantisation; without one, of the first of those preferred that there is.

    Raises:
        CheckpointError: there is none; the message lists those that there are.
    """
    models = sorted((f for f in files if part_names(f)[0] == f and not _no_model(f)), key=lambda f: (len(f), f))
    for wanted in _PREFERRED if quantisation is None else (quantisation,):
        found = [file for file in models if _is_of(file, wanted)]
        if found:
            return found[0]
    if quantisation is None and models:
        return models[0]
    there = sorted({name.upper() for file in models if (name := quantisation_of(file))}) or models
    raise CheckpointError(
        f"{repository} has no GGUF file of the quantisation {quantisation!r}; "
        + (f"there are {', '.join(there)}." if there else "it has no GGUF file of a model at all.")
    )


def quantisation_of(file: str) -> str | None:
    """What a file's name says of its quantisation, last word first: 'model-Q4_K_M.gguf' → 'Q4_K_M'."""
    words = re.split(r"(?<!UD)[-./]", part_names(file)[0].removesuffix(".gguf"))
    return next((word for word in reversed(words) if _QUANTISATION.fullmatch(word)), None)


def _is_of(file: str, wanted: str) -> bool:
    return re.search(rf"(^|[-._/]){re.escape(wanted)}([-.]|$)", file, re.IGNORECASE) is not None


def _no_model(file: str) -> bool:
    return any(word in file.lower() for word in _NO_MODELS)
