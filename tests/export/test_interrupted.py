"""Exports that end in the middle: killed, out of room, not allowed to write. Whole, or not there, and nothing left."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from selfspec.errors import ArtifactError
from selfspec.export import workspace as workspaces
from selfspec.export.renaming import rename_to_free_name
from selfspec.export.workspace import clean_up, publish, workspace
from selfspec.runtime.artifact import compare_files, open_artifact

if TYPE_CHECKING:
    from tests.conftest import Tools


@pytest.fixture(scope="module")
def source(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1)
    return tools.write(tmp_path_factory.mktemp("interrupted") / "model", spec)


def whole(folder: Path) -> str:
    """The precision of an artifact of which every byte is right."""
    assert not [problem for _, problem in compare_files(folder) if problem]
    return open_artifact(folder).manifest.precision


def hidden(folder: Path) -> list[Path]:
    return [p for p in folder.iterdir() if p.name.startswith(".")]


@pytest.mark.parametrize("mode", ["new", "force"])
def test_a_killed_export_leaves_nothing_that_opens_by_halves(
    tools: Tools, source: Path, tmp_path: Path, mode: str
) -> None:
    """kill -9 and power cuts ask nobody. At ten points and more: the old artifact, the new one, or one put back by the
    next export; and what a dead export left is gone after that one."""
    script = Path(__file__).with_name("kill_points.py")
    command = [sys.executable, str(script), str(source), str(tmp_path), mode]
    cases = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert sum(status == signal.SIGKILL for _, _, status in cases) >= 10
    seen = set()
    for name, point, status in cases:
        folder, out = tmp_path / name, tmp_path / name / "out"
        at_once = whole(out) if out.exists() else None
        assert status != 0 or at_once == "fp32", (point, "it was not killed, and is not there")
        kept = at_once is not None or mode == "force"
        with pytest.raises(ArtifactError, match="exists already") if kept else contextlib.nullcontext():
            tools.export(source, out, precision="int8")
        found = whole(out)
        assert found == (at_once or ("int4" if mode == "force" else "int8")), point
        assert [p.name for p in folder.iterdir()] == ["out"], point
        seen.add((at_once, found))
    expected = {(None, "int8"), ("fp32", "fp32")} if mode == "new" else {("int4", "int4"), ("fp32", "fp32")}
    assert seen >= expected
    if mode == "force":
        assert (None, "int4") in seen, "no point between the two renames"


def test_the_folder_of_a_running_export_is_left_alone(tools: Tools, source: Path, tmp_path: Path) -> None:
    """Two exports to one place: the second must not remove what the first still writes."""
    with workspace(tmp_path / "out") as running:
        (running / "new").mkdir()
        tools.export(source, tmp_path / "out")
        assert (running / "new").is_dir()
        clean_up(tmp_path / "out")
        assert (running / "new").is_dir()
    assert hidden(tmp_path) == []


def test_only_our_own_leftovers_are_removed(tools: Tools, source: Path, tmp_path: Path) -> None:
    """.out.backup is the user's, and .out-2.* another output's."""
    names = [".out.backup", ".out.", ".out-2.abcdefgh.selfspec-export", ".out.abc.selfspec-export", ".outx"]
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "precious").mkdir()
    (tmp_path / ".out.aaaaaaaa.selfspec-export").symlink_to(tmp_path / "precious")
    (tmp_path / ".out.abcdefgh.selfspec-export").mkdir()
    tools.export(source, tmp_path / "out")
    assert {p.name for p in hidden(tmp_path)} == {*names, ".out.aaaaaaaa.selfspec-export"}
    assert (tmp_path / "precious").is_dir()


def test_an_old_artifact_outlives_a_rename_that_fails(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old one moved away, the new one refused: and then the cleaning up takes the only one there is."""
    out = tools.export(source, tmp_path / "out", precision="int4")
    original, refused = rename_to_free_name, {"new", "replaced"}

    def rename(path: Path, target: Path) -> None:
        if path.name in refused:
            raise OSError(5, "Input/output error")
        original(path, target)

    with monkeypatch.context() as patch:
        patch.setattr(workspaces, "rename_to_free_name", rename)
        with pytest.raises(ArtifactError, match=r"not replaced .*\(Input/output error\); it is .*/replaced now"):
            tools.export(source, out, precision="fp32", force=True)
    assert not out.exists()
    with pytest.raises(ArtifactError, match="exists already"):  # put back by the next export
        tools.export(source, out, precision="fp32")
    assert whole(out) == "int4"
    refused.remove("replaced")
    with monkeypatch.context() as patch:
        patch.setattr(workspaces, "rename_to_free_name", rename)
        with pytest.raises(ArtifactError, match="cannot be written"):
            tools.export(source, out, precision="fp32", force=True)
    assert whole(out) == "int4"
    assert hidden(tmp_path) == []


def test_everything_is_on_the_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power cut a file system may know the new name and not the bytes: an artifact with holes."""
    synced: list[str] = []
    original = workspaces._sync

    def sync(path: Path) -> None:
        synced.append(path.relative_to(tmp_path).as_posix() if path != tmp_path else "")
        assert (tmp_path / "out").exists() == (path == tmp_path)
        original(path)

    monkeypatch.setattr(workspaces, "_sync", sync)
    with workspace(tmp_path / "out") as folder:
        (folder / "new" / "graphs").mkdir(parents=True)
        (folder / "new" / "graphs" / "a.onnx").write_bytes(b"x")
        (folder / "new" / "weights.bin").write_bytes(b"y")
        publish(folder, tmp_path / "out")
        below = f"{folder.name}/new"
    assert sorted(synced[:-1]) == [below, f"{below}/graphs", f"{below}/graphs/a.onnx", f"{below}/weights.bin"]
    assert synced[-2:] == [below, ""]


# File systems of their own, in a namespace where mounting is allowed.


def mounted(folder: Path, options: str, script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a Python script with a tmpfs at ``folder``."""
    folder.mkdir(exist_ok=True)
    mount = f'mount -t tmpfs -o {options} none "$0" && exec "$@"'
    namespace = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare here to make a file system with")
    if subprocess.run([*namespace, mount, str(folder), "true"], capture_output=True).returncode:
        pytest.skip("no user namespace here in which a tmpfs can be mounted")
    command = [*namespace, mount, str(folder), sys.executable, "-c", script, str(folder), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True)


EXPORT = """
import os, sys
from selfspec.cli.export import main as export_main
folder, source, *more = sys.argv[1:]
code = export_main([source, folder + '/deep/out', *more])
print(code, os.listdir(folder))
"""


@pytest.mark.parametrize("size", ["8k", "100k", "180k", "208k"])
def test_a_full_disk_is_one_sentence_and_leaves_nothing(source: Path, tmp_path: Path, size: str) -> None:
    """Out of room in the weights, in a graph, in the tokenizer, in the manifest: the toy needs 212 kB."""
    done = mounted(tmp_path / "disk", f"size={size}", EXPORT, source, "--precision", "fp32")
    assert done.stdout == "1 []\n", done.stderr
    seen = done.stderr.splitlines()[-1]  # before it, the progress bar was wiped away
    assert seen.startswith("selfspec-export: ")
    assert seen.endswith("cannot be written (the disk is full); nothing was left behind.")


def test_there_is_room_in_the_end(source: Path, tmp_path: Path) -> None:
    """Otherwise the test above would prove nothing."""
    assert mounted(tmp_path / "disk", "size=8m", EXPORT, source, "--precision", "fp32").stdout == "0 ['deep']\n"


def test_a_read_only_output_is_one_sentence(source: Path, tmp_path: Path) -> None:
    """OSError: [Errno 30]."""
    done = mounted(tmp_path / "disk", "ro", EXPORT, source)
    assert done.stdout == "1 []\n", done.stderr
    assert "cannot be written" in done.stderr
    assert "Read-only file system" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


FORCED = """
import os, sys
from pathlib import Path
from selfspec.cli.export import main as export_main
from selfspec.cli.main import main
folder, source = sys.argv[1:]
assert export_main([source, folder + '/out', '--precision', 'int4']) == 0
code = export_main([source, folder + '/out', '--precision', 'fp32', '--force'])
print(code, os.listdir(folder), main(['verify-artifact', folder + '/out']))
"""


def test_a_full_disk_costs_no_old_artifact(source: Path, tmp_path: Path) -> None:
    """Room for one artifact and not for two: removed first, written afterwards."""
    done = mounted(tmp_path / "disk", "size=220k", FORCED, source)
    assert done.stdout.splitlines()[-1] == "1 ['out'] 0", done.stdout + done.stderr


CACHE = """
import os, sys
from pathlib import Path
os.environ['SELFSPEC_CACHE'] = sys.argv[1] + '/cache'
from selfspec import load
said = []
model = load(sys.argv[2], threads=1, notify=said.append)
try:
    (Path(sys.argv[1]) / 'fill').write_bytes(bytes(10**6))
except OSError:
    pass
assert model.generate('The wind', draft='auto', max_new_tokens=4).token_ids
assert load(sys.argv[2], threads=1, notify=said.append).generate('The', draft='none', max_new_tokens=2).token_ids
left = [p.name for p in Path(sys.argv[1]).rglob('*.tmp')]
print(sum('cannot be kept' in line for line in said), left)
"""


@pytest.mark.parametrize("options", ["size=4k,nr_inodes=9", "ro"])
def test_a_cache_without_room_costs_time_only(tools: Tools, source: Path, tmp_path: Path, options: str) -> None:
    """No profile and no checksum can be kept: one warning, half a file nowhere, and text all the same."""
    out = tools.export(source, tmp_path / "out")
    done = mounted(tmp_path / "disk", options, CACHE, out)
    assert done.stdout == "1 []\n", done.stdout + done.stderr
