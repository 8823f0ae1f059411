"""A peer's own virtual environment and its own form of the model: made once, kept, made anew when what they are made
with changes."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..child import run_group
from .roster import Peer

INSTALL_SECONDS = 3600
PREPARE_SECONDS = 1800
WORKERS = Path(__file__).parent / "workers"

_COMPLETE = "complete.txt"  # in a folder that is: what it was made with


class PeerError(Exception):
    """A peer cannot run, or not go on; the text is the reason that is listed."""


def make_environment(folder: Path, peer: Peer) -> Path:
    """The interpreter of ``folder``/``peer.environment``, with ``peer.requirements`` installed.

    Raises:
        PeerError: the installation failed.
    """
    target = folder / peer.environment
    python = target / ("Scripts" if os.name == "nt" else "bin") / "python"
    made_with = "\n".join([sys.version, *peer.install_options, *peer.requirements])
    if _is_complete(target, made_with):
        return python
    shutil.rmtree(target, ignore_errors=True)
    run([sys.executable, "-m", "venv", str(target)], environment(), INSTALL_SECONDS, "the virtual environment")
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *peer.install_options]
    for group in install_groups(peer.requirements):
        run([*pip, *group], environment(), INSTALL_SECONDS, "the installation")
    (target / _COMPLETE).write_text(made_with, encoding="utf-8")
    return python


def install_groups(requirements: Sequence[str]) -> list[list[str]]:
    """torch alone and first, so that nothing that depends on it chooses another; then the rest."""
    torch = [r for r in requirements if r.split("==")[0] == "torch"]
    rest = [r for r in requirements if r not in torch]
    return [group for group in (torch, rest) if group]


def prepare(peer: Peer, python: Path, spec: dict[str, Any]) -> None:
    """Let the worker make its form of the model in ``spec["folder"]``, unless it is there.

    Raises:
        PeerError: it could not; nothing of it is left.
    """
    script, folder = WORKERS / peer.worker, Path(spec["folder"])
    lasting = {key: value for key, value in spec.items() if key != "threads"}
    source = hashlib.sha256(script.read_bytes()).hexdigest()
    made_with = "\n".join([source, json.dumps(lasting, sort_keys=True), *peer.requirements])
    if _is_complete(folder, made_with):
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        run([str(python), str(script), "prepare", json.dumps(spec)], environment(spec["threads"]), PREPARE_SECONDS,
            "the conversion")  # fmt: skip
        (folder / _COMPLETE).write_text(made_with, encoding="utf-8")
    except PeerError:
        shutil.rmtree(folder)
        raise


def run(command: Sequence[str], env: dict[str, str], seconds: float, what: str) -> None:
    """Run to the end.

    Raises:
        PeerError: it failed, or took longer than ``seconds``; with what it said last.
    """
    try:
        done = run_group(
            command,
            seconds,
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        raise PeerError(f"{what} was not done after {seconds:g} s") from None
    if done.returncode:
        raise PeerError(f"{what} failed: {last_words(done.stdout) or last_words(done.stderr) or done.returncode}")


def last_words(text: str) -> str:
    """Of what a program printed: the error that a worker tells, else pip's error lines, else the last line."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in reversed(lines):
        if line.startswith('{"error"'):
            with contextlib.suppress(ValueError, KeyError):  # half a line, of a worker that was ended
                return str(json.loads(line)["error"])
    errors = [line for line in lines if line.startswith("ERROR")]
    return " ".join(errors[-1:] or lines[-1:])[:300]


def without_folders(text: str, *folders: Path) -> str:
    """``text`` with "~" where it names one of ``folders``: results are published."""
    for folder in sorted({str(f) for f in folders if f != Path(f.anchor)}, key=len, reverse=True):
        text = re.sub(re.escape(folder) + r"(?![\w.-])", "~", text)
    return text


def environment(threads: int | None = None) -> dict[str, str]:
    """Of a peer's process: ours without our import path, offline once it runs, and with ``threads`` threads."""
    found = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    if threads is not None:
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
        found |= dict.fromkeys(names, str(threads)) | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    return found


def _is_complete(folder: Path, made_with: str) -> bool:
    try:
        return (folder / _COMPLETE).read_text(encoding="utf-8") == made_with
    except OSError:
        return False
