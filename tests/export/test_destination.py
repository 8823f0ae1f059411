"""What appears at the output while an export runs is not the exporter's to remove."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.errors import ArtifactError
from selfspec.export import renaming
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.destination import destination
from selfspec.export.renaming import rename_to_free_name
from selfspec.export.source import open_model
from selfspec.runtime.artifact import compare_files, open_artifact

if TYPE_CHECKING:
    from tests.conftest import Tools


@pytest.fixture(scope="module")
def source(tools: Tools, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tools.write(tmp_path_factory.mktemp("destination") / "model", tools.spec(layers=2, hidden=32, ff=64))


def write(place: Path, files: dict[str, str]) -> None:
    place.mkdir(parents=True)
    for name, text in files.items():
        (place / name).write_text(text)


def link(out: Path) -> None:
    write(out.with_name("far"), {"a": "b"})
    out.symlink_to("far")


def tree(folder: Path) -> dict[str, str | None]:
    """Every path below ``folder``: the text of files, where links go, None for folders."""
    return {
        p.relative_to(folder).as_posix(): f"-> {p.readlink()}"
        if p.is_symlink()
        else p.read_text()
        if p.is_file()
        else None
        for p in folder.rglob("*")
    }


def export(source: Path, output: Path, meanwhile: Callable[[], object] = lambda: None, **options: Any) -> None:
    """Export; ``meanwhile`` happens when the output was found free and nothing is written yet."""

    def progress(specs: list[Any]) -> Iterable[Any]:
        meanwhile()
        return specs

    export_model(*open_model(str(source)), output, ExportOptions(kernels="ort", **options), progress)


APPEARING: dict[str, Callable[[Path], object]] = {
    "folder": lambda out: write(out, {"thesis.txt": "the only copy"}),
    "empty folder": lambda out: out.mkdir(),
    "file": lambda out: out.write_text("the only copy"),
    "dangling link": lambda out: out.symlink_to("nowhere"),
    "link to a folder": link,
}


@pytest.mark.parametrize("appears", APPEARING)
def test_what_appeared_meanwhile_is_refused_and_left_as_it_is(source: Path, tmp_path: Path, appears: str) -> None:
    """An export takes minutes; what somebody put there in them was renamed away and removed, with exit code 0."""
    write(tmp_path / "expected", {})
    APPEARING[appears](tmp_path / "expected" / "out")
    with pytest.raises(ArtifactError, match=r"out exists by now, .* left as it is"):
        export(source, tmp_path / "here" / "out", lambda: APPEARING[appears](tmp_path / "here" / "out"))
    assert tree(tmp_path / "here") == tree(tmp_path / "expected")


@pytest.mark.parametrize("appears", APPEARING)
def test_force_removes_nothing_that_took_the_artifacts_place(source: Path, tmp_path: Path, appears: str) -> None:
    """--force was given for the artifact that stood there, and that was another thing."""
    out = tmp_path / "here" / "out"
    export(source, out)
    write(tmp_path / "expected", {})
    APPEARING[appears](tmp_path / "expected" / "out")

    def swap() -> None:
        shutil.rmtree(out)
        APPEARING[appears](out)

    with pytest.raises(ArtifactError, match=r"out is no artifact by now, .* left as it is"):
        export(source, out, swap, force=True)
    assert tree(tmp_path / "here") == tree(tmp_path / "expected")


def test_force_does_not_choose_between_a_link_and_its_artifact(source: Path, tmp_path: Path) -> None:
    """latest -> v1: the link was replaced by a folder."""
    export(source, tmp_path / "v1")
    (tmp_path / "latest").symlink_to("v1")
    with pytest.raises(ArtifactError, match="is no artifact, so `force` does not replace it"):
        export(source, tmp_path / "latest", force=True)
    assert (tmp_path / "latest").readlink() == Path("v1")


def test_a_dangling_link_is_found_before_the_work(source: Path, tmp_path: Path) -> None:
    (tmp_path / "out").symlink_to("nowhere")
    with pytest.raises(ArtifactError, match="out exists already"):
        export(source, tmp_path / "out", lambda: pytest.fail("three minutes later"))


def test_the_slower_of_two_exports_to_one_name_is_refused(source: Path, tmp_path: Path) -> None:
    """Both said 'wrote out', each over the other."""
    out = tmp_path / "here" / "out"
    with pytest.raises(ArtifactError, match="out exists by now"):
        export(source, out, lambda: export(source, out, precision="int8"), precision="fp32")
    assert open_artifact(out).manifest.precision == "int8"
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_of_many_exports_to_one_name_one_wins(source: Path, tmp_path: Path) -> None:
    out, together = tmp_path / "out", Barrier(4)

    def one(index: int) -> str:
        try:
            export(source, out, lambda: together.wait(60), exit_layers=(), precision=("fp32", "int8")[index % 2])
        except ArtifactError as error:
            return str(error)
        return "wrote"

    with ThreadPoolExecutor(4) as pool:
        said = sorted(pool.map(one, range(4)))
    assert said.pop() == "wrote"
    assert all("out exists by now" in words for words in said)
    assert not [problem for _, problem in compare_files(out) if problem]
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


def test_an_artifact_moved_away_for_nothing_is_kept_though_its_place_is_taken(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames of --force the name is free for a moment, and somebody takes it."""
    out = tmp_path / "out"
    export(source, out, precision="int8")

    def taken(source: Path, target: Path) -> None:
        target.mkdir(exist_ok=True)
        rename_to_free_name(source, target)

    monkeypatch.setattr("selfspec.export.workspace.rename_to_free_name", taken)
    with pytest.raises(ArtifactError, match="could not be put back") as caught:
        export(source, out, force=True)
    monkeypatch.undo()
    kept = Path(str(caught.value).split("; it is ")[1].removesuffix(" now."))
    assert open_artifact(kept).manifest.precision == "int8"
    assert list(out.iterdir()) == []
    out.rmdir()
    with pytest.raises(ArtifactError, match="exists already"):  # the next export has put it back
        export(source, out)
    assert open_artifact(out).manifest.precision == "int8"


def test_a_successor_that_was_removed_is_not_followed_by_what_it_replaced(source: Path, tmp_path: Path) -> None:
    """Killed right after the second rename, and the new artifact then deleted: the old one must not rise again."""
    write(tmp_path / ".out.abcdefgh.selfspec-export" / "replaced", {"manifest.json": "{}"})
    export(source, tmp_path / "out")
    assert [p.name for p in tmp_path.iterdir()] == ["out"]


# What stands above the output.


def test_folders_above_the_output_that_vanish_are_one_sentence(source: Path, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="out cannot be written"):
        export(source, tmp_path / "a" / "b" / "out", lambda: shutil.rmtree(tmp_path / "a"))
    assert list(tmp_path.iterdir()) == []


def test_a_folder_above_the_output_that_becomes_a_file_is_one_sentence(source: Path, tmp_path: Path) -> None:
    def swap() -> None:
        shutil.rmtree(tmp_path / "a")
        (tmp_path / "a").write_text("mine")

    with pytest.raises(ArtifactError, match="out cannot be written"):
        export(source, tmp_path / "a" / "out", swap)
    assert tree(tmp_path) == {"a": "mine"}


def test_a_folder_that_another_process_made_is_not_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was missing when we looked and there when we wanted to make it, so it is not ours to remove."""
    original = Path.mkdir

    def overtaken(path: Path, *arguments: Any, **options: Any) -> None:
        if path.name == "theirs":
            original(path)
        original(path, *arguments, **options)

    monkeypatch.setattr(Path, "mkdir", overtaken)
    with pytest.raises(RuntimeError), destination(tmp_path / "theirs" / "ours" / "out", force=False):
        raise RuntimeError
    assert tree(tmp_path) == {"theirs": None}


# The rename itself, with and without the kernel's help.


@pytest.mark.parametrize("answer", [None, errno.ENOSYS, errno.EINVAL])
def test_a_rename_takes_no_place_that_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: int | None
) -> None:
    """os.rename replaces an empty folder without a word. NFS and old kernels know no RENAME_NOREPLACE."""
    if answer is not None:
        monkeypatch.setattr(renaming, "_rename_noreplace", lambda source, target: answer)
    write(tmp_path / "new", {"a": "b"})
    for index, appear in enumerate(APPEARING.values()):
        place = tmp_path / str(index) / "out"
        place.parent.mkdir()
        appear(place)
        before = tree(place.parent)
        with pytest.raises(FileExistsError):
            rename_to_free_name(tmp_path / "new", place)
        assert tree(place.parent) == before
    with pytest.raises(FileNotFoundError):
        rename_to_free_name(tmp_path / "missing", tmp_path / "free")
    rename_to_free_name(tmp_path / "new", tmp_path / "free")
    assert tree(tmp_path / "free") == {"a": "b"}
