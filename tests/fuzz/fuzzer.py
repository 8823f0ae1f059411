"""Run by test_fuzz.py in a process of its own, because what it looks for may end or swell a process.

    python -m tests.fuzz.fuzzer KIND SOURCE SCRATCH FIRST COUNT

Damages SOURCE with the seeds FIRST to FIRST + COUNT - 1 and takes each through the real path. Success and a library
error of one line are fine; anything else is printed with its seed. The address space is limited to what the process has
after one undamaged run, and the file's size, and 200 MB.
"""

from __future__ import annotations

import faulthandler
import gc
import hashlib
import json
import os
import random
import resource
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
from tests.fuzz import mutations

from selfspec import load
from selfspec.errors import SelfSpecError
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model
from selfspec.runtime.stack import Plan

ROOM = 200 * 2**20
HANGS_AFTER = 20  # seconds: a slow machine is not a hang


def export(path: Path, scratch: Path) -> None:
    """What selfspec-export does: config, tensors, tokenizer, and the artifact where all of them pass."""
    checkpoint, name = open_model(str(path))
    text = checkpoint.tokenizer_files()
    text.tokenizer_json(), text.chat_template(), text.generation_config(), text.eos_token_ids(), text.bos_token_id()
    export_model(checkpoint, name, scratch / "out", ExportOptions("fp32", force=True))


def generate(path: Path, scratch: Path) -> None:
    model = load(path, threads=1)
    model.generate("The", max_new_tokens=1, draft="none")
    stack, manifest = model.conversation().stack, model.artifact.manifest
    hidden = stack.embed(np.asarray([3]))
    for head in manifest.draft_heads:
        stack.draft_logits(head.name, hidden)
    for unit in manifest.units[-2:]:  # of the finest cut, which nothing has run yet
        stack.run(Plan(tuple(unit.sublayers)), hidden, 0)


def generate_sealed(path: Path, scratch: Path) -> None:
    """With a manifest that agrees with the damaged weights: prefill, one-row steps, and passes over drafts."""
    manifest, weights = path / "manifest.json", (path / "weights.bin").read_bytes()
    data = json.loads(manifest.read_text())
    data["files"]["weights.bin"] = {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()}
    manifest.write_text(json.dumps(data))
    model = load(path, threads=1)
    for draft in ("none", "prompt-lookup"):
        model.generate("The wind that, the wind that", max_new_tokens=6, draft=draft)


def target_of(kind: str, source: Path, scratch: Path) -> tuple[Path, Path, Callable[[Path, Path], None]]:
    """(what is opened, the file that is damaged, the path it is taken through)."""
    copy = scratch / source.name
    if kind == "gguf":
        shutil.copyfile(source, copy)
        return copy, copy, export
    shutil.copytree(source, copy)
    if kind.endswith("manifest"):
        return copy, copy / "manifest.json", generate
    if kind.endswith("weights"):
        return copy, copy / "weights.bin", generate_sealed
    return copy, copy / ("model.safetensors" if kind == "safetensors" else kind), export


def mutation_of(kind: str, original: bytes) -> mutations.Mutation:
    if kind == "gguf":
        header = original.rindex(b"output_norm.weight") + 60  # the last names stand in the tensor table
        return lambda data, rng: mutations.gguf(data, rng, header)
    if kind.endswith("weights"):
        return mutations.weights
    return mutations.safetensors if kind == "safetensors" else mutations.text


def outcome_of(work: Callable[[], None]) -> tuple[str, str | None]:
    """(what happened, what is wrong with that)."""
    try:
        work()
    except SelfSpecError as error:
        message = str(error)
        fine = message and "\n" not in message and message.isprintable() and len(message) < 2000
        return "refused", None if fine else f"no sentence: {message!r}"
    except BaseException as error:
        return "failed", f"{type(error).__name__}: {str(error)[:300]}"
    return "accepted", None


def main(kind: str, source: Path, scratch: Path, first: int, count: int) -> int:
    opened, damaged, path = target_of(kind, source, scratch)
    original = damaged.read_bytes()
    mutate = mutation_of(kind, original)
    path(opened, scratch)
    said = os.open(scratch / "stderr", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    real_stderr = os.fdopen(os.dup(2), "w")
    os.dup2(said, 2)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + len(original) + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    outcomes: Counter[str] = Counter()
    for seed in range(first, first + count):
        data = mutate(original, random.Random(f"{kind} {seed}"))
        damaged.unlink()  # never truncated under the sessions of an earlier seed, which map it
        damaged.write_bytes(data)
        (scratch / "seed").write_text(str(seed))
        faulthandler.dump_traceback_later(HANGS_AFTER, exit=True, file=real_stderr)
        outcome, wrong = outcome_of(lambda: path(opened, scratch))
        faulthandler.cancel_dump_traceback_later()
        outcomes[outcome] += 1
        noise = os.pread(said, 500, 0)
        os.ftruncate(said, 0)
        os.lseek(said, 0, os.SEEK_SET)
        for problem in filter(None, (wrong, f"stderr: {noise!r}" if noise else None)):
            print(f"{kind} seed {seed}: {problem}", flush=True)
        if seed % 50 == 0:
            gc.collect()
    print(json.dumps(outcomes))
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
