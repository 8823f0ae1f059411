"""What was measured while generating, and what the process weighs."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .drafters.base import Round


@dataclass(frozen=True, slots=True)
class Stats:
    """One generation. Seconds are wall-clock; ``decode_seconds`` excludes the prompt (TTFT)."""

    prompt_tokens: int
    generated_tokens: int
    ttft_seconds: float
    decode_seconds: float
    rounds: int
    drafted_tokens: int
    accepted_tokens: int
    reused_prompt_tokens: int = 0
    """Of the prompt's, those whose KV rows the conversation already had."""
    touched_experts: int = 0
    """Summed over rounds: experts that ran in a round, each counted once in each layer. 0 where there are none."""

    @property
    def tokens_per_second(self) -> float:
        """After the first token."""
        return max(0, self.generated_tokens - 1) / self.decode_seconds if self.decode_seconds > 0 else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted ÷ drafted tokens."""
        return self.accepted_tokens / self.drafted_tokens if self.drafted_tokens else 0.0

    @property
    def tokens_per_round(self) -> float:
        return max(0, self.generated_tokens - 1) / self.rounds if self.rounds else 0.0

    @property
    def experts_per_round(self) -> float:
        """Distinct experts of all layers that a round reads."""
        return self.touched_experts / self.rounds if self.rounds else 0.0

    @classmethod
    def of(
        cls,
        prompt_tokens: int,
        generated_tokens: int,
        ttft_seconds: float,
        decode_seconds: float,
        rounds: Iterable[Round],
        reused_prompt_tokens: int = 0,
    ) -> Stats:
        """Sum up the rounds. ``generated_tokens`` has the first one too, which the prompt predicts without a round."""
        all_rounds = list(rounds)
        return cls(
            prompt_tokens=prompt_tokens,
            generated_tokens=generated_tokens,
            ttft_seconds=ttft_seconds,
            decode_seconds=decode_seconds,
            rounds=len(all_rounds),
            drafted_tokens=sum(r.num_drafted for r in all_rounds),
            accepted_tokens=sum(r.num_accepted for r in all_rounds),
            reused_prompt_tokens=reused_prompt_tokens,
            touched_experts=sum(r.experts for r in all_rounds),
        )

    def to_dict(self) -> dict[str, Any]:
        derived = ("tokens_per_second", "acceptance_rate", "tokens_per_round", "experts_per_round")
        return asdict(self) | {name: getattr(self, name) for name in derived}


def peak_rss_bytes() -> int:
    """The process's largest resident size so far.

    Linux's VmHWM where there is one: getrusage also counts what the parent weighed when it forked. getrusage counts
    bytes on macOS, KiB elsewhere. On Windows the largest working set.
    """
    high_water = memory_bytes("VmHWM")
    if high_water is not None:
        return high_water
    if sys.platform == "win32":
        return _peak_working_set()
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def _peak_working_set() -> int:
    """Windows; 0 where it does not say."""
    import ctypes

    class Counters(ctypes.Structure):
        """PROCESS_MEMORY_COUNTERS."""

        _fields_ = (
            ("size", ctypes.c_uint32),
            ("page_faults", ctypes.c_uint32),
            ("peak_working_set", ctypes.c_size_t),
            ("others", ctypes.c_size_t * 7),
        )

    kernel: Any = ctypes.WinDLL("kernel32")  # type: ignore[attr-defined,unused-ignore]
    kernel.GetCurrentProcess.restype = ctypes.c_void_p
    kernel.K32GetProcessMemoryInfo.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint32]
    found = Counters(size=ctypes.sizeof(Counters))
    done = kernel.K32GetProcessMemoryInfo(kernel.GetCurrentProcess(), ctypes.byref(found), found.size)
    return int(found.peak_working_set) if done else 0


def reset_peak_rss() -> bool:
    """Let :func:`peak_rss_bytes` begin anew; False where the system cannot (not Linux, or a kernel that refuses)."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def memory_bytes(field: str) -> int | None:
    """'Pss', 'RssAnon' or 'VmHWM' of this process; None where the kernel does not say (not Linux)."""
    path = Path("/proc/self/smaps_rollup" if field == "Pss" else "/proc/self/status")
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, _, value = line.partition(":")
        if name == field:
            return int(value.split()[0]) * 1024
    return None
