"""What test_emulated.py runs on another processor: whether `exact` holds there for each artifact named. A line of JSON
each: the passes that the probe found, or null, and the drafts whose text is not plain decoding's."""

import json
import sys
from pathlib import Path

from selfspec import load
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import Drafter, NoDrafter
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.drafters.prompt_lookup import PromptLookup
from selfspec.runtime.engine import decode
from selfspec.runtime.invariance import exact_passes
from selfspec.runtime.paths import exit_path
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.sessions import Sessions
from selfspec.runtime.stack import Passes

PROMPT = [5, 9, 7, 300, 5, 9, 7, 300, 5, 9]


def text(sessions: Sessions, passes: Passes, drafter: Drafter) -> list[int]:
    conversation = Conversation(sessions, passes)
    decoding = decode(conversation, conversation.prefill(PROMPT), drafter, Sampling(0.8, seed=2), 12, frozenset())
    return list(decoding.tokens())


def main(folder: str) -> None:
    model = load(folder, threads=1, notify=lambda line: None)
    passes, other = exact_passes(model.sessions), list[str]()
    if passes is not None:
        layers = model.artifact.manifest.model.num_layers
        drafters: dict[str, Drafter] = {
            "one layer": PathDrafter(exit_path(1), 4, rule=Threshold(0.0)),
            "all layers": PathDrafter(exit_path(layers), 5, rule=Threshold(0.0)),
            "prompt lookup": PromptLookup(),
        }
        plain = text(model.sessions, passes, NoDrafter())
        other = [name for name, drafter in drafters.items() if text(model.sessions, passes, drafter) != plain]
    library = model.sessions.kernels
    print(json.dumps({
        "artifact": Path(folder).name, "passes": None if passes is None else str(passes), "other texts": other,
        "kernels": None if library is None else library.name,
    }))  # fmt: skip


for each in sys.argv[1:]:
    main(each)
