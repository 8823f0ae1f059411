"""Opens an artifact in this process, answers one token, and says what that took: for benchmarks.kernels.beside_ort.

    python -m benchmarks.kernels.opening ARTIFACT [THREADS]

The last line of stdout is a JSON object. Anonymous memory is what was added to that of Python with everything
imported: by all graphs, then with the tokenizer too, then behind the answer. ``kv_bytes``: of the rows it wrote.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from selfspec.cli.command import run_command
from selfspec.errors import SelfSpecError
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.model import Model, notify_stderr
from selfspec.runtime.sessions import Sessions
from selfspec.runtime.stats import memory_bytes

PROMPT = 16


def opening(artifact: str, threads: str | None = None) -> dict[str, Any]:
    before = _anonymous()
    started = time.perf_counter()
    opened = open_artifact(artifact)
    sessions = Sessions(opened, None if threads is None else int(threads))
    sessions.load_all()
    graphs = _anonymous()
    model = Model(opened, sessions, notify_stderr)
    seconds = time.perf_counter() - started
    after = _anonymous()
    conversation = model.conversation()
    conversation.prefill(list(range(300, 300 + PROMPT)))
    config = model.artifact.manifest.model
    return {
        "seconds": seconds,
        "graphs_anonymous_bytes": graphs - before,
        "anonymous_bytes": after - before,
        "answer_anonymous_bytes": _anonymous() - before,
        "kv_bytes": 8 * PROMPT * config.num_layers * config.num_kv_heads * config.head_dim,
    }


def _anonymous() -> int:
    found = memory_bytes("RssAnon")
    if found is None:
        raise SelfSpecError("this system does not tell anonymous memory; run this on Linux.")
    return found


if __name__ == "__main__":
    sys.exit(run_command(lambda: print(json.dumps(opening(*sys.argv[1:3]))), "python -m benchmarks.kernels.opening"))
