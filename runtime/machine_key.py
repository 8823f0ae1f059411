"""What a measurement depends on besides the artifact itself: processor, libraries and threads."""

from __future__ import annotations

import platform
from pathlib import Path

import onnxruntime as ort

from .artifact import Artifact
from .kernels import kernel_library
from .limits import cpus


def machine_key(artifact: Artifact, threads: int) -> dict[str, str]:
    """The key under which a profile of ``artifact`` is kept on this machine."""
    key = {"cpu": cpu_name(), "onnxruntime": ort.__version__, "threads": str(threads)}
    quota = cpus().quota
    if quota is not None and quota < threads:  # then threads are stopped, and passes take as long as they are
        key["cpu_quota"] = f"{quota:g}"
    facts = artifact.manifest.kernels
    if facts is None:
        return key
    library = kernel_library(facts)
    return key | {"kernels": library.name, "kernels_sha256": library.sha256}


def cpu_name() -> str:
    """The processor's model name and its vector instructions, where the system tells."""
    name, vector = cpu_facts()
    return " ".join([name, *vector])


def cpu_facts() -> tuple[str, tuple[str, ...]]:
    """(model name, flags of its vector instructions), where the system tells."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return platform.processor() or platform.machine(), ()
    return parse_cpuinfo(text)


def parse_cpuinfo(text: str) -> tuple[str, tuple[str, ...]]:
    """The same from the text of /proc/cpuinfo.

    Every kind of core counts, in an order of its own: a phone lists its big and little cores in any order.
    """
    lines = [(key.strip(), value.strip()) for key, found, value in map(_halves, text.splitlines()) if found]

    def values(name: str) -> set[str]:
        return {value for key, value in lines if key == name and value}

    names = values("model name") or values("CPU part")
    flags = {flag for value in values("flags") | values("Features") for flag in value.split()}
    vector = [f for f in flags if f.startswith(("avx", "amx", "asimd", "sve", "i8mm"))]
    return " + ".join(sorted(names)) or platform.machine(), tuple(sorted(vector))


def _halves(line: str) -> tuple[str, str, str]:
    return line.partition(":")
