"""Hub cache folders: found offline by id, a snapshot's links followed, and nothing but a model's own data read."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from selfspec.cli.export import main as export_main
from selfspec.errors import CheckpointError, SelfSpecError, UnsupportedModelError, UsageError
from selfspec.export.checkpoint import check_folder
from selfspec.export.source import open_model
from selfspec.runtime.artifact import open_artifact

if TYPE_CHECKING:
    from tests.conftest import Tools

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "f" * 40


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """huggingface_hub reads its variables when it is imported, which some earlier test may have done."""
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)


@pytest.fixture
def plain(tools: Tools, tmp_path: Path) -> Path:
    return tools.write(tmp_path / "plain", tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1), shards=3)


@pytest.fixture
def cache(plain: Path, tmp_path: Path) -> Path:
    """A cache as huggingface_hub lays it out: one repository, one snapshot, the branch main."""
    add_snapshot(tmp_path / "hub", plain, COMMIT, "main")
    return tmp_path / "hub"


def add_snapshot(hub: Path, source: Path, commit: str, branch: str) -> Path:
    repository = hub / "models--org--toy-1.5"
    snapshot = repository / "snapshots" / commit
    for folder in (repository / "blobs", repository / "refs", snapshot):
        folder.mkdir(parents=True, exist_ok=True)
    for file in source.iterdir():
        blob = repository / "blobs" / hashlib.sha256(file.read_bytes()).hexdigest()
        blob.write_bytes(file.read_bytes())
        (snapshot / file.name).symlink_to(Path("../../blobs") / blob.name)
    (repository / "refs" / branch).write_text(commit)
    return snapshot


def snapshot_of(cache: Path) -> Path:
    return cache / "models--org--toy-1.5" / "snapshots" / COMMIT


def refused(*arguments: Any, kind: type[SelfSpecError] = CheckpointError) -> str:
    with pytest.raises(kind) as caught:
        open_model(*arguments)
    return str(caught.value)


def test_a_hub_id_is_found_in_the_cache(tools: Tools, plain: Path, cache: Path, tmp_path: Path) -> None:
    """The same bytes as from the folder itself, shards and all, under the model's name and not its commit's."""
    code = export_main(["org/toy-1.5", str(tmp_path / "out"), "--cache-dir", str(cache), "--precision", "fp32"])
    assert code == 0
    expected = tools.export(plain, tmp_path / "expected", precision="fp32")
    assert (tmp_path / "out" / "weights.bin").read_bytes() == (expected / "weights.bin").read_bytes()
    assert (tmp_path / "out" / "tokenizer.json").read_bytes() == (plain / "tokenizer.json").read_bytes()
    assert open_artifact(tmp_path / "out").manifest.name == "toy-1.5"


def test_the_environment_says_where_the_cache_is(cache: Path, tmp_path: Path) -> None:
    """HF_HOME, HF_HUB_CACHE and HF_HUB_OFFLINE, as every other tool of the hub reads them."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "hub").symlink_to(cache)
    command = [sys.executable, "-c", "from selfspec.cli.export import main; raise SystemExit(main())"]
    for name, value in (("HF_HUB_CACHE", cache), ("HF_HOME", tmp_path / "home")):
        kept = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
        environment = kept | {"HF_HUB_OFFLINE": "1", name: str(value)}
        done = subprocess.run(
            [*command, "org/toy-1.5", str(tmp_path / name)], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        assert (tmp_path / name / "manifest.json").is_file()


def test_a_revision_is_the_one_asked_for(tools: Tools, cache: Path, tmp_path: Path) -> None:
    """Always the newest, whatever was said; by branch or by commit."""
    older = tools.write(tmp_path / "older", tools.spec(layers=1, hidden=32, ff=64, heads=2, kv_heads=1))
    add_snapshot(cache, older, OLDER, "v1")
    for revision, layers in ((None, 2), ("main", 2), (COMMIT, 2), ("v1", 1), (OLDER, 1)):
        assert open_model("org/toy-1.5", revision, cache)[0].config.num_layers == layers


def test_a_snapshot_given_as_a_path_is_called_after_its_repository(cache: Path) -> None:
    """./0123456789abcdef0123456789abcdef01234567-int4."""
    checkpoint, name = open_model(str(snapshot_of(cache)))
    assert (name, checkpoint.config.num_layers) == ("toy-1.5", 2)


@pytest.mark.parametrize("name", ["config.json", "model-00002-of-00003.safetensors", "tokenizer.json"])
def test_a_partial_snapshot_is_one_sentence_that_names_the_file(cache: Path, tmp_path: Path, name: str) -> None:
    """A download that broke off leaves a snapshot with the files that had come by then."""
    (snapshot_of(cache) / name).unlink()
    with pytest.raises(CheckpointError, match=name) as caught:
        open_model("org/toy-1.5", None, cache)[0].tokenizer_files().tokenizer_json()
    assert "missing" in str(caught.value)


def test_a_snapshot_whose_blob_is_gone_is_one_sentence(cache: Path) -> None:
    """Someone made room in blobs/ by hand: the link is there, and leads nowhere."""
    (snapshot_of(cache) / "config.json").resolve().unlink()
    assert "config.json" in refused("org/toy-1.5", None, cache)


@pytest.mark.parametrize(
    ("model_id", "revision"), [("org/other", None), ("org/toy-1.5", "v9"), ("org/toy-1.5", OLDER), ("a--b/c", None)]
)
def test_what_is_not_in_the_cache_is_one_sentence(cache: Path, model_id: str, revision: str | None) -> None:
    """LocalEntryNotFoundError, or an id that the library's own check refuses with a ValueError."""
    message = refused(model_id, revision, cache)
    assert model_id in message
    assert "the hub did not give it" in message


@pytest.mark.parametrize("revision", ["../../x", "/etc/passwd", "", "a b", "refs/../x", "-x", "a\n"])
def test_a_revision_that_can_be_none_is_refused(cache: Path, revision: str) -> None:
    """The library joins it to the cache's path and reads what is there."""
    assert "`revision`" in refused("org/toy-1.5", revision, cache, kind=UsageError)


@pytest.mark.parametrize("option", [["--revision", "main"], ["--cache-dir", "/tmp"]])
def test_options_of_the_hub_are_refused_where_nothing_is_fetched(
    plain: Path, capsys: pytest.CaptureFixture[str], option: list[str]
) -> None:
    """--revision silently ignored: another model than the one asked for."""
    for model_id in (str(plain), "smollm2-135m"):
        assert export_main([model_id, *option]) == 2
        error = capsys.readouterr().err
        assert option[0] in error
        assert len(error.splitlines()) == 1


def test_a_cache_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    """huggingface_hub would make it and download into it."""
    assert "`cache_dir`" in refused("org/toy", None, tmp_path / "nowhere", kind=UsageError)
    assert not (tmp_path / "nowhere").exists()


def test_only_data_of_the_top_level_is_fetched(monkeypatch: pytest.MonkeyPatch, plain: Path) -> None:
    """No code, no pickles, not the other formats that stand in subfolders. Asked of the library's own filter."""
    import huggingface_hub
    from huggingface_hub.utils._paths import filter_repo_objects

    names = [
        "config.json", "model.safetensors", "chat_template.jinja", "modeling_toy.py", "pytorch_model.bin", "x.pkl",
        "onnx/config.json", "original/model.safetensors", "README.md", "model.gguf", "tokenizer.model",
    ]  # fmt: skip
    fetched: list[str] = []

    def snapshot(model_id: str, **options: Any) -> str:
        patterns = {key: options[key] for key in ("allow_patterns", "ignore_patterns")}
        fetched.extend(filter_repo_objects(names, **patterns))
        return str(plain)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot)
    open_model("org/toy")
    assert fetched == ["config.json", "model.safetensors", "chat_template.jinja"]


# What a folder by a stranger may hold.


@pytest.mark.parametrize("name", ["generation_config.json", "chat_template.jinja", "model-00001-of-00003.safetensors"])
def test_a_link_to_a_file_elsewhere_is_refused(plain: Path, tmp_path: Path, name: str) -> None:
    """A downloaded folder whose template is a link to the user's keys: they would stand in an artifact passed on."""
    (tmp_path / "private").write_text('{"token": "secret"}')
    (plain / name).unlink(missing_ok=True)
    (plain / name).symlink_to(tmp_path / "private")
    message = refused(str(plain))
    assert f"{name} is a symbolic link to" in message
    assert "outside" in message


def test_a_link_out_of_a_snapshot_is_refused(cache: Path, tmp_path: Path) -> None:
    """blobs/ of its own repository, and nothing else of the cache."""
    other = cache / "models--org--other" / "blobs" / "x"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    (snapshot_of(cache) / "generation_config.json").unlink()
    (snapshot_of(cache) / "generation_config.json").symlink_to(other)
    assert "outside" in refused("org/toy-1.5", None, cache)


def test_links_within_the_folder_and_to_it_are_followed(plain: Path, tmp_path: Path) -> None:
    """Who links a folder, or a file inside it, is not attacking himself."""
    (plain / "data").mkdir()
    (plain / "config.json").rename(plain / "data" / "c")
    (plain / "config.json").symlink_to("data/c")
    (tmp_path / "link").symlink_to(plain)
    assert open_model(str(tmp_path / "link"))[0].config.num_layers == 2


def test_what_is_no_file_is_refused(plain: Path) -> None:
    """Reading a pipe never ends."""
    (plain / "tokenizer_config.json").unlink(missing_ok=True)
    os.mkfifo(plain / "tokenizer_config.json")
    assert "tokenizer_config.json is no file" in refused(str(plain))


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "generation_config.json", "chat_template.jinja"])
def test_a_text_larger_than_any_models_is_refused_unread(plain: Path, name: str) -> None:
    """Read whole and parsed into Python objects, ten times its size."""
    with (plain / name).open("ab") as file:
        file.truncate(300 * 2**20)  # sparse: takes no room
    assert "more than any model's" in refused(str(plain))


def test_other_files_may_be_as_large_as_they_like(plain: Path) -> None:
    """A trainer's log beside the model is nobody's business."""
    with (plain / "trainer_state.json").open("wb") as file:
        file.truncate(300 * 2**20)
    check_folder(plain)


@pytest.mark.parametrize("length", [2**63, 2**64 - 1, 10**6, 0])
def test_a_safetensors_header_of_an_impossible_length_is_refused(plain: Path, length: int) -> None:
    """Eight bytes that name a size to allocate."""
    path = plain / "model-00001-of-00003.safetensors"
    path.write_bytes(length.to_bytes(8, "little") + path.read_bytes()[8:])
    assert "safetensors" in refused(str(plain))


def test_a_model_that_brings_its_own_code_is_refused_and_none_of_it_runs(plain: Path, tmp_path: Path) -> None:
    """auto_map with a known model type: the code may compute something else, and nothing of it is ever imported."""
    (plain / "modeling_toy.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    config = json.loads((plain / "config.json").read_text())
    (plain / "config.json").write_text(json.dumps(config | {"auto_map": {"AutoModel": "modeling_toy.Toy"}}))
    message = refused(str(plain), kind=UnsupportedModelError)
    assert "auto_map" in message
    assert "never run" in message
    (plain / "config.json").write_text(json.dumps(config))
    tokenizer = {"auto_map": {"AutoTokenizer": ["modeling_toy.Tok", None]}, "tokenizer_class": "Tok"}
    (plain / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    open_model(str(plain))[0].tokenizer_files().tokenizer_json()  # tokenizer.json is data, whoever names code beside it
    assert not (tmp_path / "ran").exists()


@pytest.mark.reference
def test_verify_runs_no_code_of_the_folder(tools: Tools, plain: Path, cache: Path, tmp_path: Path) -> None:
    """--verify hands the same folder to transformers, which can import code from it, and unpickles where it must."""
    from selfspec.check.parity import verify_export

    for folder in (plain, snapshot_of(cache)):
        (folder / "modeling_toy.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
        (folder / "pytorch_model.bin").write_bytes(b"\x80\x04cos\nsystem\n(S'touch ran'\ntR.")
        tokenizer = {"auto_map": {"AutoTokenizer": ["modeling_toy.Tok", None]}}
        (folder / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    artifact = tools.export(plain, tmp_path / "out", precision="fp32")
    verify_export(open_model("org/toy-1.5", None, cache)[0], artifact)
    assert not (tmp_path / "ran").exists()
