"""The README's Python, word for word, over the artifact that its tour makes."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]

README = Path(__file__).parents[2] / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
RECORDER = """
import io, json, sys
class Terminal(io.StringIO):
    shown = [""]
    def flush(self):  # a person sees what was flushed
        if self.getvalue() != self.shown[-1]:
            self.shown.append(self.getvalue())
own, sys.stdout = sys.stdout, Terminal()
exec(compile(sys.argv[1], "README.md", "exec"))
sys.stdout.flush()
json.dump(sys.stdout.shown, own)
"""


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: str(BLOCKS.index(block)))
def test_python_of_the_readme_prints_text_as_it_comes(block: str, real_artifact: Callable[..., Path]) -> None:
    """Its first loop printed nothing: the model ended at once. And without flush a terminal shows whole lines."""
    artifact = real_artifact("int4", "auto")
    assert artifact.name in block
    done = subprocess.run(
        [sys.executable, "-c", RECORDER, block], cwd=artifact.parent, capture_output=True, encoding="utf-8", check=True
    )
    shown = json.loads(done.stdout)
    assert len(shown) > 32, shown
    streamed = next(text for text in shown if len(text) > 60)
    assert re.search(r"\w+ \w+ \w+", streamed)
    steps = [len(later) - len(earlier) for earlier, later in itertools.pairwise(shown)]
    assert max(steps[:32]) < 40, "the first text came at once, not token by token"


def test_there_is_python_in_the_readme() -> None:
    assert BLOCKS
