"""GGUF files of the hub: which one a quantisation names, all its parts, and the cache where there is no network."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import huggingface_hub
import pytest
from huggingface_hub.utils._paths import filter_repo_objects
from tests.export.test_gguf import write_gguf

from selfspec.cli.export import main as export_main
from selfspec.errors import CheckpointError
from selfspec.export.hub import choose, hub_model, quantisation_of
from selfspec.export.source import open_model
from selfspec.runtime.artifact import open_artifact

if TYPE_CHECKING:
    from tests.conftest import Tools

COMMIT = "0123456789abcdef0123456789abcdef01234567"
QUANTISED = ["toy-Q4_0.gguf", "toy-Q4_K_M.gguf", "toy-Q8_0.gguf"]


@pytest.fixture
def file(tools: Tools, tmp_path: Path) -> Path:
    spec = tools.spec(layers=1, hidden=32, ff=64, heads=2, kv_heads=1, head_dim=16)
    return write_gguf(tmp_path / "one.gguf", spec, tools.weights(spec), tokenizer=tools.byte_tokenizer(spec.vocab))


def cached(hub: Path, file: Path, *names: str, repository: str = "org/toy-GGUF") -> Path:
    """A cache as huggingface_hub lays it out, with ``file`` under each of ``names``."""
    home = hub / f"models--{repository.replace('/', '--')}"
    snapshot = home / "snapshots" / COMMIT
    for name in names:
        (snapshot / name).parent.mkdir(parents=True, exist_ok=True)
        (snapshot / name).write_bytes(file.read_bytes())
    (home / "refs").mkdir(exist_ok=True)
    (home / "refs" / "main").write_text(COMMIT)
    return snapshot


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)


# Names.


@pytest.mark.parametrize(
    ("model_id", "repository", "quantisation"),
    [
        ("org/name", "org/name", None),
        ("org/name-1.5:Q4_0", "org/name-1.5", "Q4_0"),
        ("bartowski/SmolLM2-135M-Instruct-GGUF:Q4_0", "bartowski/SmolLM2-135M-Instruct-GGUF", "Q4_0"),
        ("org/name:UD-Q4_K_XL", "org/name", "UD-Q4_K_XL"),
    ],
)
def test_ids_by_hand(model_id: str, repository: str, quantisation: str | None) -> None:
    """As llama.cpp's -hf takes them."""
    found = hub_model(model_id, None, None)
    assert found is not None
    assert (found.repository, found.quantisation) == (repository, quantisation)


@pytest.mark.parametrize(
    "path",
    ["C:\\models\\toy.gguf", "C:/models/toy", "C:toy", "C:\\a", "org/name:", "org/name:a/b", "a:b", "org/na:m:e"],
)
def test_paths_of_windows_and_others_are_no_ids(path: str) -> None:
    """C: is a drive and not a repository."""
    assert hub_model(path, None, None) is None
    with pytest.raises(CheckpointError, match="there is no"):
        open_model(path)


def test_a_local_path_with_a_colon_is_that_path(file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there comes before what could be fetched."""
    (tmp_path / "org").mkdir()
    file.rename(tmp_path / "org" / "name:Q4_0")
    monkeypatch.chdir(tmp_path)
    assert open_model("org/name:Q4_0")[1] == "name:Q4_0"


def test_what_a_name_says_of_the_quantisation() -> None:
    """Words of the file's name, a dot or a dash before them."""
    for name, expected in (
        ("SmolLM2-135M-Instruct-Q4_K_M.gguf", "Q4_K_M"), ("toy.Q8_0.gguf", "Q8_0"), ("toy-f16.gguf", "f16"),
        ("Q4_0/toy-Q4_0-00001-of-00002.gguf", "Q4_0"), ("toy-UD-IQ2_XXS.gguf", "UD-IQ2_XXS"), ("toy.gguf", None),
    ):  # fmt: skip
        assert quantisation_of(name) == expected


def test_a_quantisation_names_its_file() -> None:
    """Q4_0 is neither Q4_0_4_4 nor IQ4_0, in whatever case, nor the projector beside the model."""
    files = ["toy-Q4_0_4_4.gguf", "toy-IQ4_0.gguf", "mmproj-toy-Q4_0.gguf", "toy-q4_0.gguf", "toy-UD-Q4_0.gguf"]
    assert choose(files, "Q4_0", "org/toy") == "toy-q4_0.gguf"
    assert choose(files, "q4_0_4_4", "org/toy") == "toy-Q4_0_4_4.gguf"
    parts = [f"Q8_0/toy-Q8_0-0000{i}-of-00002.gguf" for i in (2, 1)]
    assert choose(parts, "q8_0", "org/toy") == parts[1]


def test_without_a_quantisation_what_loses_least_is_taken() -> None:
    """Rounding twice where once would do."""
    assert choose(QUANTISED, None, "org/toy") == "toy-Q8_0.gguf"
    assert choose(QUANTISED[:2], None, "org/toy") == "toy-Q4_0.gguf"
    assert choose(["toy-Q2_K.gguf", "imatrix.gguf"], None, "org/toy") == "toy-Q2_K.gguf"


def test_an_unknown_quantisation_lists_those_there_are() -> None:
    """Someone guesses Q5_0, and wants to know what there is."""
    with pytest.raises(CheckpointError, match=r"org/toy has no .*'Q5_0'; there are Q4_0, Q4_K_M, Q8_0\."):
        choose(QUANTISED, "Q5_0", "org/toy")
    with pytest.raises(CheckpointError, match="no GGUF file of a model at all"):
        choose(["mmproj-f16.gguf"], "Q8_0", "org/toy")


# The hub and its cache.


@pytest.mark.usefixtures("offline")
@pytest.mark.parametrize(("model_id", "taken"), [("org/toy-GGUF:q4_0", "toy-Q4_0"), ("org/toy-GGUF", "toy-Q8_0")])
def test_offline_the_cache_is_enough(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], model_id: str, taken: str
) -> None:
    """An export of a hub id, which says what it took and is called after it."""
    cached(tmp_path / "hub", file, *QUANTISED)
    command = [model_id, str(tmp_path / "out"), "--cache-dir", str(tmp_path / "hub"), "--precision", "fp32"]
    assert export_main(command) == 0
    assert f"reading {taken}.gguf" in capsys.readouterr().err
    assert open_artifact(tmp_path / "out").manifest.name == taken


@pytest.mark.usefixtures("offline")
def test_what_the_cache_lacks_is_one_sentence(file: Path, tmp_path: Path) -> None:
    """Neither the repository, nor the quantisation, nor the second part."""
    cached(tmp_path / "hub", file, "toy-Q4_0.gguf", "toy-F16-00001-of-00002.gguf")
    for model_id, words in (
        ("org/other:Q4_0", "the hub did not give it"), ("org/toy-GGUF:Q8_0", "there are F16, Q4_0"),
    ):  # fmt: skip
        with pytest.raises(CheckpointError, match=words) as caught:
            open_model(model_id, None, tmp_path / "hub")
        assert "\n" not in str(caught.value)


@pytest.mark.usefixtures("offline")
def test_safetensors_come_before_ggufs_and_a_quantisation_before_both(tools: Tools, file: Path, tmp_path: Path) -> None:
    """A repository with both: the id alone meant the folder before there were quantisations."""
    plain = tools.write(tmp_path / "plain", tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1))
    snapshot = cached(tmp_path / "hub", file, "toy-Q4_0.gguf")
    for source in plain.iterdir():
        (snapshot / source.name).write_bytes(source.read_bytes())
    assert open_model("org/toy-GGUF", None, tmp_path / "hub")[0].config.num_layers == 2
    assert open_model("org/toy-GGUF:Q4_0", None, tmp_path / "hub")[0].config.num_layers == 1


def test_online_only_the_files_asked_for_are_fetched(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not the twenty other quantisations; of a split one, every part."""
    names = [*QUANTISED, "toy-F16-00001-of-00002.gguf", "toy-F16-00002-of-00002.gguf", "README.md"]
    snapshot, fetched = cached(tmp_path / "hub", file, *names), list[str]()

    def download(repository: str, **options: Any) -> str:
        fetched.extend(filter_repo_objects(names, allow_patterns=options["allow_patterns"]))
        return str(snapshot)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    monkeypatch.setattr(huggingface_hub, "list_repo_files", lambda repository, revision: names)
    for quantisation, expected in (("Q8_0", ["toy-Q8_0.gguf"]), ("F16", names[3:5])):
        fetched.clear()
        open_model(f"org/toy-GGUF:{quantisation}")
        assert fetched == expected
