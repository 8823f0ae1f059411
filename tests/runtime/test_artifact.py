"""Opening an artifact: whatever is missing, cut short or changed is one clear sentence, before anything runs."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec import load
from selfspec.errors import ArtifactError, RuntimeSetupError, UsageError
from selfspec.models.manifest import FORMAT_VERSION
from selfspec.runtime.artifact import open_artifact
from selfspec.runtime.sessions import Sessions

if TYPE_CHECKING:
    from tests.conftest import Toy


@pytest.fixture
def folder(fp32: Toy, tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    return Path(shutil.copytree(fp32.folder, tmp_path / "copy"))


def edit(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    path.write_text(json.dumps(data), encoding="utf-8")


def refused(folder: Path, *named: str) -> str:
    with pytest.raises(ArtifactError) as caught:
        open_artifact(folder)
    message = str(caught.value)
    for name in named:
        assert name in message
    assert "\n" not in message
    return message


def test_an_untouched_copy_opens(folder: Path, fp32: Toy) -> None:
    """Otherwise every refusal below would prove nothing. The digest names the content, not the place."""
    artifact = open_artifact(str(folder))
    assert artifact.digest == fp32.model.artifact.digest
    assert artifact.has("tokenizer.json")
    assert not artifact.has("chat_template.jinja")
    with pytest.raises(ArtifactError, match=r"no chat_template\.jinja"):
        artifact.read("chat_template.jinja")


def test_a_missing_folder_is_answered_with_the_command_that_makes_one(tmp_path: Path) -> None:
    """FileNotFoundError with a traceback."""
    refused(tmp_path / "nowhere", "nowhere", "selfspec-export")


def test_a_folder_or_file_that_is_no_artifact_is_refused(tmp_path: Path) -> None:
    """A checkpoint folder passed where its export was meant."""
    refused(tmp_path, "manifest.json")
    (tmp_path / "file").write_text("x")
    refused(tmp_path / "file", "manifest.json")


@pytest.mark.parametrize("text", ["", "{", "null", "[]", '"x"', "{}", "\x00", '{"format_version": 1}'])
def test_a_manifest_that_is_none_is_refused(folder: Path, text: str) -> None:
    """A download that broke off, or another tool's manifest.json."""
    (folder / "manifest.json").write_text(text)
    refused(folder, "manifest.json")


def test_a_manifest_that_is_not_text_is_refused(folder: Path) -> None:
    """UnicodeDecodeError is a ValueError, not an error of ours."""
    (folder / "manifest.json").write_bytes(b"\xff\xfe{}")
    refused(folder, "UTF-8")


def test_a_newer_format_is_refused_with_both_versions(folder: Path) -> None:
    """Read as if it were this version, a newer artifact gives wrong text instead of an error."""
    edit(folder, lambda m: m.update(format_version=FORMAT_VERSION + 1))
    refused(folder, f"version {FORMAT_VERSION + 1}", f"versions 3 and {FORMAT_VERSION}")


@pytest.mark.parametrize(
    "name", ["weights.bin", "graphs/cpu/embed.onnx", "graphs/cpu/head_rest.onnx", "tokenizer.json"]
)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    """A graph that is only missed when the first draft runs it."""
    (folder / name).unlink()
    refused(folder, name, "missing")


@pytest.mark.parametrize("name", ["weights.bin", "graphs/cpu/block_002_004.onnx"])
def test_a_file_of_another_size_is_named_with_both_sizes(folder: Path, name: str) -> None:
    """A copy that ran out of disk: ONNX Runtime would map what is not there."""
    path = folder / name
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[:-1])
    refused(folder, name, str(size), str(size - 1))


@pytest.mark.parametrize("name", ["graphs/cpu/block_000_002.onnx", "tokenizer.json", "generation_config.json"])
def test_a_changed_byte_in_a_small_file_is_noticed(folder: Path, name: str) -> None:
    """A graph edited by hand, or a bit flipped: size alone does not show it."""
    path = folder / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    refused(folder, name, "sha256")


def test_a_path_that_leaves_the_folder_is_refused(folder: Path) -> None:
    """An artifact from a stranger must not make us read, or hash, files of the user's."""
    edit(folder, lambda m: m["files"].update({"../../secret": {"size": 1, "sha256": "0" * 64}}))
    refused(folder, "../../secret")


@pytest.mark.parametrize(
    ("data", "named"),
    [(b"not a graph", "is not loaded: it is no ONNX graph"), (b"", "cannot be loaded by ONNX Runtime")],
)
def test_a_graph_that_is_none_is_one_sentence(folder: Path, data: bytes, named: str) -> None:
    """A traceback out of a C++ exception."""
    path = folder / "graphs/cpu/block_002_004.onnx"
    path.write_bytes(data)
    facts = {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    edit(folder, lambda m: m["files"].update({"graphs/cpu/block_002_004.onnx": facts}))
    with pytest.raises(ArtifactError, match=rf"block_002_004\.onnx {named}"):
        load(folder, threads=1)


def test_an_artifact_for_another_device_is_refused(fp32: Toy) -> None:
    """CPU graphs on a session of another provider."""
    with pytest.raises(ArtifactError, match="exported for cpu, not for cuda"):
        Sessions(fp32.model.artifact, 1, device="cuda")


def test_the_pools_size_is_set_once(fp32: Toy) -> None:
    """A second load with another thread count that silently runs with the first one's."""
    assert load(fp32.folder).sessions.threads == 1
    with pytest.raises(RuntimeSetupError, match=r"already runs with 1 threads.* to 2"):
        load(fp32.folder, threads=2)
    with pytest.raises(UsageError, match="`threads` 0"):
        load(fp32.folder, threads=0)


def test_loading_changes_nothing_in_the_artifact(fp32: Toy) -> None:
    """Artifacts are immutable: what is measured on a machine lives in the cache."""
    before = {p: p.read_bytes() for p in fp32.folder.rglob("*") if p.is_file()}
    model = load(fp32.folder, threads=1, notify=lambda _: None)
    model.generate("The", max_new_tokens=3, draft="auto", exact=True)
    assert {p: p.read_bytes() for p in fp32.folder.rglob("*") if p.is_file()} == before


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["model"].update(num_kv_heads=1),
        lambda m: m["model"].update(head_dim=32),
        lambda m: m["model"].update(hidden_size=128),
        lambda m: m.update(embed_graph=m["head"]["hot_graph"], head=m["head"] | {"hot_graph": m["embed_graph"]}),
    ],
)
def test_a_manifest_that_its_graphs_contradict_is_refused(
    fp32: Toy, tmp_path: Path, change: Callable[[dict[str, Any]], Any]
) -> None:
    """It would be a C++ error in the middle of a generation, or no error at all."""
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    manifest = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.raises(ArtifactError, match="not the graph that the manifest describes"):
        load(folder, threads=1)


def test_a_file_behind_a_link_is_refused(fp32: Toy, tmp_path: Path) -> None:
    """ONNX Runtime refuses it too, with a sentence about escaping that nobody understands."""
    folder = Path(shutil.copytree(fp32.folder, tmp_path / "copy"))
    (folder / "weights.bin").unlink()
    (folder / "weights.bin").symlink_to(fp32.folder / "weights.bin")
    with pytest.raises(ArtifactError, match="symbolic link"):
        load(folder, threads=1)


def test_more_context_than_rotary_tables_is_one_sentence(folder: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The weights are large enough for it, so only the kernel notices: a RuntimeError in the middle of a text."""
    edit(folder, lambda m: m["model"].update(context_length=1000))
    model = load(folder, threads=1)
    assert model.generate("The", max_new_tokens=2, draft="none").token_ids
    with pytest.raises(ArtifactError, match="cannot run"):
        model.generate("The wind " * 150, max_new_tokens=2, draft="none")
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("said", ["std::bad_alloc", "Failed to allocate memory for requested buffer of size 9"])
def test_memory_that_runs_out_is_not_the_artifacts_fault(fp32: Toy, monkeypatch: pytest.MonkeyPatch, said: str) -> None:
    """'Export the model again' helps nobody whose memory is full."""

    def full(*_: object, **__: object) -> None:
        raise RuntimeError(said)

    monkeypatch.setattr("selfspec.runtime.sessions.ort.InferenceSession", full)
    with pytest.raises(RuntimeSetupError, match=r"memory ran out .* smaller model or precision"):
        load(fp32.folder, threads=1)
