"""Runs a script of this folder in a process of its own, so that nothing but its work is in its figures of memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from selfspec.errors import SelfSpecError


def run_child(script: str, *arguments: str, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What ``script`` says: the last line of its stdout, a JSON object. Its stderr is ours; an interrupt ends it too.

    Args:
        environment: further variables.

    Raises:
        SelfSpecError: it failed; it has said why on stderr.
    """
    command = [sys.executable, str(Path(__file__).with_name(script)), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=os.environ | dict(environment or {}))
    lines = done.stdout.splitlines()
    if done.returncode or not lines:
        raise SelfSpecError(f"{script} {' '.join(arguments)} failed (exit code {done.returncode}); see above.")
    found: dict[str, Any] = json.loads(lines[-1])
    return found
