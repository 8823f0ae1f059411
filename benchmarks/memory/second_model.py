"""A second model as draft, which is what selfspec does without: real, so that what it weighs can be measured."""

from __future__ import annotations

from pathlib import Path

from selfspec.errors import ArtifactError, UsageError
from selfspec.models.manifest import MANIFEST_NAME, WEIGHTS_NAME, Manifest
from selfspec.runtime.artifact import Artifact
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Draft, Round
from selfspec.runtime.model import Model, notify_stderr

DEFAULT_DRAFT_TOKENS = 4


class SecondModel:
    """Drafts greedily with another model (Leviathan et al. 2211.17192) in a conversation of its own, which follows the
    target's tokens."""

    def __init__(self, model: Model, num_draft_tokens: int = DEFAULT_DRAFT_TOKENS) -> None:
        self._conversation = model.conversation()
        self._limit = num_draft_tokens

    def propose(self, conversation: Conversation, max_tokens: int) -> Draft:
        own, drafted = self._conversation, list[int]()
        kept = own.resume(conversation.tokens)
        pending = conversation.tokens[kept:]
        for _ in range(min(self._limit, max_tokens)):
            drafted.append(int(own.prefill(pending).argmax()))
            pending = drafted[-1:]
        return Draft(tuple(drafted))

    def observe(self, result: Round) -> None:
        """What was not accepted is taken back when the next proposal follows the target."""


def check_second(target: Artifact, second: Artifact) -> None:
    """Raises: UsageError where the two do not share token ids, or the second one's context is shorter."""
    first, other = target.manifest.model, second.manifest.model
    if target.manifest.files["tokenizer.json"].sha256 != second.manifest.files["tokenizer.json"].sha256:
        raise UsageError(
            f"{second.path} has another tokenizer than {target.path}, so its tokens mean something else; name an "
            "artifact of the same model in another precision, or of a model of the same vocabulary."
        )
    if other.context_length < first.context_length:
        raise UsageError(
            f"{second.path} has a context of {other.context_length} tokens, less than the target's "
            f"{first.context_length}; name another artifact."
        )


def default_second(target: Artifact) -> Path:
    """The smallest artifact beside ``target`` of the same model in another precision; others' folders, and artifacts
    of another format version, are told and passed over.

    Raises:
        UsageError: there is none.
    """
    own, found = target.manifest, list[tuple[int, Path]]()
    for path in sorted(target.path.resolve().parent.glob(f"*/{MANIFEST_NAME}")):
        try:
            manifest = Manifest.from_json(path.read_text(encoding="utf-8"))
        except (ArtifactError, UnicodeDecodeError) as error:
            notify_stderr(f"{path.parent} is passed over: {error}")
            continue
        if manifest.name == own.name and manifest.precision != own.precision:
            found.append((manifest.files[WEIGHTS_NAME].size, path.parent))
    if not found:
        raise UsageError(
            f"there is no other precision of {own.name} beside {target.path}; export one there, or name the second "
            "model with --second."
        )
    return min(found)[1]
