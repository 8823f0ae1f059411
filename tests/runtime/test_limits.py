"""What a process may use, from folder trees as kernels and containers show them, and from a control group made here."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from selfspec.cli.main import main
from selfspec.runtime import machine_key, threads
from selfspec.runtime.limits import Cpus, cpu_quota, cpus, memory_room
from selfspec.runtime.model import load

MB = 2**20
V1 = "33 31 0:30 {part} /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"
V1 += "35 31 0:32 {part} /sys/fs/cgroup/memory rw shared:4 - cgroup cgroup rw,memory\n"
V2 = "41 31 0:38 {part} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = "41 31 0:38 {part} /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def tree(root: Path, mounts: str, groups: str, files: dict[str, str], part: str = "/") -> Path:
    own = {"proc/self/mountinfo": mounts.format(part=part), "proc/self/cgroup": groups}
    return write(root, own | {f"sys/fs/cgroup/{name}": text for name, text in files.items()})


QUOTAS = {
    "version 2": (V2, "0::/\n", {"cpu.max": "150000 100000\n"}, "/", 1.5),
    "version 2, a service": (V2, "0::/a.slice/b\n", {"a.slice/b/cpu.max": "400000 100000\n"}, "/", 4.0),
    "no limit": (V2, "0::/\n", {"cpu.max": "max 100000\n"}, "/", None),
    "nested, the outer one less": (
        V2, "0::/a/b/c\n", {"a/cpu.max": "50000 100000", "a/b/cpu.max": "200000 100000", "a/b/c/cpu.max": "max 100000"},
        "/", 0.5,
    ),
    "version 1": (
        V1, "4:memory:/\n1:cpu,cpuacct:/q\n", {"cpu/q/cpu.cfs_quota_us": "100000", "cpu/q/cpu.cfs_period_us": "50000"},
        "/", 2.0,
    ),
    "version 1, no limit": (
        V1, "1:cpu,cpuacct:/q\n", {"cpu/q/cpu.cfs_quota_us": "-1", "cpu/q/cpu.cfs_period_us": "100000"}, "/", None,
    ),
    "version 1, a container that sees its own group only": (
        V1, "1:cpu,cpuacct:/docker/1f\n", {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000"},
        "/docker/1f", 3.0,
    ),
    "a group outside of what is mounted": (V2, "0::/../elsewhere\n", {"cpu.max": "100000 100000"}, "/", 1.0),
    "both, version 1 has the controller": (
        V1 + HYBRID, "1:cpu,cpuacct:/\n0::/x\n",
        {"cpu/cpu.cfs_quota_us": "25000", "cpu/cpu.cfs_period_us": "100000", "unified/x/cgroup.procs": "1"}, "/", 0.25,
    ),
    "both, the lesser counts": (
        V1 + HYBRID, "1:cpu,cpuacct:/\n0::/x\n",
        {"cpu/cpu.cfs_quota_us": "300000", "cpu/cpu.cfs_period_us": "100000", "unified/x/cpu.max": "2 1"}, "/", 2.0,
    ),
    "a name with a blank": (V2, "0::/my group\n", {"my group/cpu.max": "100000 100000"}, "/", 1.0),
    "half a file": (V2, "0::/\n", {"cpu.max": "100000"}, "/", None),
    "no numbers": (V2, "0::/\n", {"cpu.max": "many few"}, "/", None),
    "no period": (V2, "0::/\n", {"cpu.max": "100000 0"}, "/", None),
    "odd lines": ("x\n - \n" + V2, "nonsense\n0::/\n", {"cpu.max": "100000 100000"}, "/", 1.0),
}  # fmt: skip


@pytest.mark.parametrize("case", QUOTAS)
def test_the_least_quota_of_a_process_and_all_around_it_counts(case: str, tmp_path: Path) -> None:
    mounts, groups, files, part, expected = QUOTAS[case]
    assert cpu_quota(tree(tmp_path, mounts, groups, files, part)) == expected


def test_without_proc_and_sys_nothing_limits(tmp_path: Path) -> None:
    assert cpu_quota(tmp_path) is None
    assert memory_room(tmp_path) is None
    found = cpus(tmp_path)
    assert found.threads == found.cores == found.allowed


@pytest.mark.parametrize(
    ("cores", "quota", "expected"),
    [(2, 1.0, 1), (2, 0.5, 1), (64, 4.0, 4), (64, 3.99, 3), (2, 8.0, 2), (8, None, 8), (1, 1.5, 1)],
)
def test_threads_are_what_the_quota_pays_for_in_full(cores: int, quota: float | None, expected: int) -> None:
    assert Cpus(64, 64, cores, quota).threads == expected


def test_hyper_threads_of_a_core_count_once(tmp_path: Path) -> None:
    allowed = cpus().allowed
    name = "sys/devices/system/cpu/cpu{}/topology/thread_siblings_list"
    write(tmp_path, {name.format(cpu): "0-1023" for cpu in range(1024)})
    found = cpus(tmp_path)
    assert (found.cores, found.allowed, found.threads) == (1, allowed, 1)


def test_what_was_seen_is_said() -> None:
    assert str(Cpus(64, 64, 32, 4.0)) == "32 physical cores, 64 CPUs, a quota of 4 CPU(s)"
    assert str(Cpus(64, 2, 1, None)) == "1 physical core, may run on 2 of 64 CPUs"


MEMINFO = "MemTotal: 9000 kB\nMemAvailable:    8192 kB\nSwapFree: {swap} kB\n"
ROOMS = {
    "no group": (V2, "0::/\n", {}, 0, 8 * MB),
    "version 2: pages of files can be dropped": (
        V2, "0::/a\n",
        {"a/memory.max": f"{4 * MB}", "a/memory.current": f"{3 * MB}",
         "a/memory.stat": f"anon 5\ninactive_file {MB}\n"},
        0, 2 * MB,
    ),
    "version 2: max": (V2, "0::/\n", {"memory.max": "max", "memory.current": "1"}, 0, 8 * MB),
    "version 2: nested": (
        V2, "0::/a/b\n",
        {"a/memory.max": f"{2 * MB}", "a/memory.current": f"{MB}", "a/b/memory.max": "max", "a/b/memory.current": "5"},
        0, MB,
    ),
    "version 2: the machine's swap, but no more than the group's": (
        V2, "0::/\n",
        {"memory.max": f"{4 * MB}", "memory.current": f"{3 * MB}", "memory.swap.max": f"{3 * MB}",
         "memory.swap.current": f"{MB}"},
        8192, 3 * MB,
    ),
    "version 1": (
        V1, "2:memory:/m\n",
        {"memory/m/memory.limit_in_bytes": f"{5 * MB}", "memory/m/memory.usage_in_bytes": f"{3 * MB}",
         "memory/m/memory.stat": f"total_active_file {MB}\ntotal_inactive_file 0\n"},
        0, 3 * MB,
    ),
    "version 1: no limit is a huge number": (
        V1, "2:memory:/\n",
        {"memory/memory.limit_in_bytes": "9223372036854771712", "memory/memory.usage_in_bytes": "5"}, 0, 8 * MB,
    ),
    "version 1: memory and swap together": (
        V1, "2:memory:/\n",
        {"memory/memory.limit_in_bytes": f"{5 * MB}", "memory/memory.usage_in_bytes": f"{3 * MB}",
         "memory/memory.memsw.limit_in_bytes": f"{6 * MB}", "memory/memory.memsw.usage_in_bytes": f"{5 * MB}"},
        8192, MB,
    ),
    "more used than allowed": (V2, "0::/\n", {"memory.max": "5", "memory.current": "9"}, 0, 0),
    "half told": (V2, "0::/\n", {"memory.max": "5"}, 0, 8 * MB),
}  # fmt: skip


@pytest.mark.parametrize("case", ROOMS)
def test_room_is_what_the_tightest_limit_leaves(case: str, tmp_path: Path) -> None:
    mounts, groups, files, swap, expected = ROOMS[case]
    root = tree(write(tmp_path, {"proc/meminfo": MEMINFO.format(swap=swap)}), mounts, groups, files)
    found = memory_room(root)
    assert found is not None
    assert found.bytes == expected


def test_more_threads_than_the_quota_pays_for_are_obeyed_and_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "_warned", False)
    monkeypatch.setattr(threads, "cpus", lambda: Cpus(8, 8, 8, 2.0))
    assert threads.quota_warning(2) is None
    found = threads.quota_warning(4)
    assert found is not None
    assert "4 threads share a quota of 2 CPU(s)" in found
    assert "`threads` 2" in found
    assert threads.quota_warning(4) is None


def test_load_warns_of_a_quota_below_the_threads(fp32: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once a process, not for every model."""
    monkeypatch.setattr(threads, "_warned", False)
    monkeypatch.setattr(threads, "cpus", lambda: Cpus(8, 8, 8, 1.0))
    monkeypatch.setattr(threads, "_size", 2)
    notices: list[str] = []
    for _ in range(2):
        load(fp32.folder, notify=notices.append)
    assert len(notices) == 1
    assert "2 threads share a quota of 1 CPU(s)" in notices[0]


@pytest.mark.parametrize(("quota", "own"), [(None, False), (2.0, False), (4.0, False), (1.5, True)])
def test_a_profile_measured_under_a_quota_below_the_threads_is_kept_apart(
    quota: float | None, own: bool, fp32: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Threads that are stopped again and again take longer than those that are not."""
    artifact = fp32.model.artifact
    monkeypatch.setattr(machine_key, "cpus", lambda: Cpus(8, 8, 8, None))
    unlimited = machine_key.machine_key(artifact, 2)
    monkeypatch.setattr(machine_key, "cpus", lambda: Cpus(8, 8, 8, quota))
    assert (machine_key.machine_key(artifact, 2) != unlimited) == own


def test_info_says_what_it_saw(fp32: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("selfspec.cli.info.cpus", lambda: Cpus(64, 8, 4, 2.5))
    used = str(fp32.model.sessions.threads)
    assert main(["info", str(fp32.folder), "-t", used]) == 0
    expected = f"{used} (4 physical cores, may run on 8 of 64 CPUs, a quota of 2.5 CPU(s))"
    assert f"threads        {expected}\n" in capsys.readouterr().out
    assert main(["info", str(fp32.folder), "-t", used, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cpus"] == {"machine": 64, "allowed": 8, "cores": 4, "quota": 2.5}
    assert str(found["threads"]) == used


@pytest.fixture
def group() -> Iterator[Path]:
    """A control group of half a CPU, of whichever version this machine has."""
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()
    folder = Path("/sys/fs/cgroup" if version_2 else "/sys/fs/cgroup/cpu") / f"selfspec-test-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be made here ({error})")
    try:
        name, text = ("cpu.max", "50000 100000") if version_2 else ("cpu.cfs_quota_us", "50000")
        try:
            (folder / name).write_text(text)
        except OSError as error:
            pytest.skip(f"control groups have no quota here ({error})")
        yield folder
    finally:
        folder.rmdir()


def test_a_real_quota_is_seen(group: Path) -> None:
    """Half a CPU: one thread, whatever the machine has."""
    code = f"import os; open({str(group / 'cgroup.procs')!r}, 'w').write(str(os.getpid()))\n"
    code += "from selfspec.runtime.limits import cpus; print(cpus().quota, cpus().threads)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0.5", "1"]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="affinity cannot be set here")
def test_affinity_is_obeyed() -> None:
    code = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"
    code += "from selfspec.runtime.limits import cpus; print(cpus().allowed, cpus().threads)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "1"]
