"""What running and exporting cost in memory, each measured in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]

ArtifactOf = Callable[..., Path]

_GENERATE = """
import json, sys
from selfspec import load
from selfspec.runtime.stats import memory_bytes, peak_rss_bytes
model = load(sys.argv[1], threads=1)
model.generate("The harbour was quiet, and the harbour was", max_new_tokens=96, draft=sys.argv[2])
print(json.dumps({"pss": memory_bytes("Pss"), "peak": peak_rss_bytes()}))
"""
_EXPORT = """
import json, sys
from pathlib import Path
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.source import open_model
from selfspec.runtime.stats import peak_rss_bytes
checkpoint, name = open_model("smollm2-135m")
export_model(checkpoint, name, Path(sys.argv[1]), ExportOptions(precision=sys.argv[2], kernels="ort"))
print(json.dumps({"peak": peak_rss_bytes()}))
"""


_SESSIONS = """
import json, sys
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.sessions import Sessions
from selfspec.runtime.stats import memory_bytes
from selfspec.runtime.threads import use_threads
use_threads(1)
before = memory_bytes("RssAnon")
sessions = Sessions(open_artifact(sys.argv[1]), 1)
sessions.load_all()
print(json.dumps({"anonymous": memory_bytes("RssAnon") - before}))
"""


def _measure(code: str, *arguments: str) -> dict[str, int]:
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, check=True)
    measured: dict[str, int] = json.loads(done.stdout.splitlines()[-1])
    return measured


def test_plain_int4_stays_below_350_megabytes_from_import_to_exit(real_artifact: ArtifactOf) -> None:
    assert _measure(_GENERATE, str(real_artifact("int4")), "none")["peak"] <= 350e6


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="PSS is a Linux figure")
@pytest.mark.parametrize("draft", ["early-exit", "prompt-lookup"])
def test_drafting_needs_no_memory_of_its_own(draft: str, real_artifact: ArtifactOf) -> None:
    """A second copy of any weight would be 20 % and more."""
    plain = _measure(_GENERATE, str(real_artifact("int4")), "none")["pss"]
    assert _measure(_GENERATE, str(real_artifact("int4")), draft)["pss"] <= 1.03 * plain


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="RssAnon is a Linux figure")
def test_native_weights_stay_in_the_file(real_artifact: ArtifactOf) -> None:
    """A repacked copy of int4 weights would be 100 MB; graphs and their sessions alone take 4."""
    assert _measure(_SESSIONS, str(real_artifact("int4", "native")))["anonymous"] <= 10e6


@pytest.mark.parametrize("precision", ["fp32", "int4"])
def test_an_export_stays_below_700_megabytes(precision: str, tmp_path: Path) -> None:
    assert _measure(_EXPORT, str(tmp_path / "out"), precision)["peak"] <= 700e6
