"""What this process may use of the machine: CPUs, processor time and memory.

A container, a batch system or ``taskset`` gives a process less than the machine has. Affinity and control groups
(version 1, version 2, and both at once) say how much. Everything is read from files of the kernel; whatever is missing
or not understood limits nothing. ``root`` is where the file system begins, for tests.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_ROOT = Path("/")
_UNLIMITED = 2**60  # version 1 writes a huge number where version 2 writes "max"


@dataclass(frozen=True, slots=True)
class Cpus:
    """``machine``: CPUs of the machine. ``allowed``: those that this process may run on. ``cores``: the physical ones
    among these. ``quota``: how many CPUs' time its control groups pay for, None where they do not say."""

    machine: int
    allowed: int
    cores: int
    quota: float | None

    @property
    def threads(self) -> int:
        """As many as are of use: the physical cores, and no more than the quota pays for in full; at least one."""
        return max(1, self.cores if self.quota is None else min(self.cores, int(self.quota)))

    def __str__(self) -> str:
        """For people: what ``threads`` follows from."""
        facts = [_counted(self.cores, "physical core")]
        if self.allowed < self.machine:
            facts.append(f"may run on {self.allowed} of {_counted(self.machine, 'CPU')}")
        else:
            facts.append(_counted(self.machine, "CPU"))
        if self.quota is not None:
            facts.append(f"a quota of {self.quota:g} CPU(s)")
        return ", ".join(facts)


@dataclass(frozen=True, slots=True)
class Room:
    """How many bytes of memory this process can still take, and ``why`` no more, as words that follow "because"."""

    bytes: int
    why: str


def cpus(root: Path = _ROOT) -> Cpus:
    """What this process may use of the processors, now."""
    machine = os.cpu_count() or 1
    allowed = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else list(range(machine))
    return Cpus(max(machine, len(allowed)), len(allowed), _physical(allowed, root), cpu_quota(root))


def cpu_quota(root: Path = _ROOT) -> float | None:
    """CPUs' worth of time that this process's control group and those around it pay for: the least of them."""
    return min((found for folder in _groups("cpu", root) if (found := _quota(folder)) is not None), default=None)


def memory_room(root: Path = _ROOT) -> Room | None:
    """Memory that this process can still take before the system kills someone for it; swap counts, and so do pages of
    files, which the system can drop. None where nothing says."""
    meminfo = _table(root / "proc/meminfo")
    swap = meminfo.get("SwapFree", 0) * 1024
    rooms = [room for folder in _groups("memory", root) if (room := _group_room(folder, swap)) is not None]
    if "MemAvailable" in meminfo:
        rooms.append(Room(meminfo["MemAvailable"] * 1024 + swap, "that is all the memory this machine has available"))
    return min(rooms, key=lambda room: room.bytes, default=None)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _physical(allowed: list[int], root: Path) -> int:
    """How many cores these CPUs are: hyper-threads of one core count once."""
    siblings = set()
    for cpu in allowed:
        path = root / f"sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list"
        try:
            siblings.add(path.read_text(encoding="ascii"))
        except (OSError, ValueError):  # not Linux, or hidden in a container: every CPU counts
            siblings.add(str(cpu))
    return max(1, len(siblings))


def _quota(folder: Path) -> float | None:
    words = _read(folder / "cpu.max").split()  # version 2: "max 100000" or "150000 100000"
    if not words:
        words = [_read(folder / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")]
    try:
        quota, period = int(words[0]), int(words[1])
    except (ValueError, IndexError):  # "max", or no such file
        return None
    return quota / period if quota > 0 and period > 0 else None


def _group_room(folder: Path, swap: int) -> Room | None:
    """What one control group leaves. ``swap``: bytes that the machine has free."""
    found = _table(folder / "memory.stat")
    if (limit := _number(folder / "memory.max")) is not None:
        used = _number(folder / "memory.current")
        files = found.get("active_file", 0) + found.get("inactive_file", 0)
        most = _number(folder / "memory.swap.max")
        if most is not None:
            swap = min(swap, max(0, most - (_number(folder / "memory.swap.current") or 0)))
        left = None if used is None else limit - used + swap
    else:
        limit, used = _number(folder / "memory.limit_in_bytes"), _number(folder / "memory.usage_in_bytes")
        files = found.get("total_active_file", 0) + found.get("total_inactive_file", 0)
        if limit is None or used is None:
            return None
        both, both_used = (_number(folder / f"memory.memsw.{name}_in_bytes") for name in ("limit", "usage"))
        left = limit - used + swap
        if both is not None and both_used is not None:
            left = min(left, both - both_used)
    if left is None:
        return None
    why = f"its control group (a container's, as a rule) may have {limit / 1e6:.0f} MB of memory"
    return Room(max(0, left + files), why)


@cache  # a process stays in its groups, as a rule, and this is asked for every conversation
def _groups(controller: str, root: Path) -> tuple[Path, ...]:
    """Folders of the control groups that this process is in, each followed by those around it, as far as they can be
    seen from here. A limit of any of them counts."""
    found: list[Path] = []
    for mount, top in _mounts(controller, root):
        for path in _paths(controller, root, version_2=mount.version_2):
            inside = _below(path, mount.part)
            folder = top.joinpath(*inside.split("/")) if inside else top
            while folder != top:
                found.append(folder)
                folder = folder.parent
            found.append(top)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Mount:
    """``part``: the group that is seen at the mount point; in a container often not the first of all."""

    part: str
    version_2: bool


def _mounts(controller: str, root: Path) -> Iterator[tuple[_Mount, Path]]:
    """Where control groups that may limit ``controller`` are mounted."""
    for line in _read(root / "proc/self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        fields, kind = before.split(), after.split()
        if len(fields) < 5 or len(kind) < 3:
            continue
        version_2 = kind[0] == "cgroup2"
        if version_2 or (kind[0] == "cgroup" and controller in kind[2].split(",")):
            part, point = (re.sub(r"\\([0-7]{3})", lambda m: chr(int(m[1], 8)), text) for text in fields[3:5])
            yield _Mount(part, version_2), root / point.lstrip("/")


def _paths(controller: str, root: Path, *, version_2: bool) -> Iterator[str]:
    """The groups of this process in hierarchies of that version."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        number, _, rest = line.partition(":")
        names, _, path = rest.partition(":")
        if (number == "0" and not names) if version_2 else controller in names.split(","):
            yield path


def _below(path: str, part: str) -> str:
    """``path`` as seen from ``part``; nothing where it lies elsewhere, as in a container that sees its own group only
    under another name."""
    part = part.rstrip("/")
    if ".." in path.split("/") or not f"{path}/".startswith(f"{part}/"):
        return ""
    return path[len(part) :].strip("/")


def _read(path: Path) -> str:
    with contextlib.suppress(OSError):
        return path.read_text(encoding="utf-8", errors="surrogateescape")
    return ""


def _number(path: Path) -> int | None:
    """None for what is not there, not a number ("max"), or as good as no limit."""
    with contextlib.suppress(ValueError):
        number = int(_read(path))
        return number if 0 <= number < _UNLIMITED else None
    return None


def _table(path: Path) -> dict[str, int]:
    """Lines "name number", or "name: number kB"."""
    found = {}
    for line in _read(path).splitlines():
        words = line.replace(":", " ").split()
        with contextlib.suppress(ValueError, IndexError):
            found[words[0]] = int(words[1])
    return found
