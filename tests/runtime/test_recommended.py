"""What generation_config.json recommends, read as untrusted input; and what of it counts beside given options."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfspec.errors import ArtifactError, UsageError
from selfspec.runtime.artifact import Artifact, open_artifact
from selfspec.runtime.model import load
from selfspec.runtime.recommended import FILE, applied, described, recommended


@pytest.fixture
def artifact(tools: Any, fp32: Any, tmp_path: Path) -> Callable[[Any], Artifact]:
    def with_config(config: Any) -> Artifact:
        data = config if isinstance(config, bytes) else json.dumps(config).encode()
        return open_artifact(tools.changed_copy(fp32.folder, tmp_path / "copy", FILE, data))

    return with_config


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, {}),
        ({"eos_token_id": [1], "do_sample": None, "temperature": None}, {}),
        # Qwen3's, Gemma 3's (no temperature: 1), Llama 2's with a switch that says no, a penalty alone
        (
            {"do_sample": True, "temperature": 0.6, "top_k": 20, "top_p": 0.95},
            {"temperature": 0.6, "top_k": 20, "top_p": 0.95},
        ),
        ({"do_sample": True, "top_k": 64, "top_p": 0.95}, {"temperature": 1.0, "top_k": 64, "top_p": 0.95}),
        ({"do_sample": False, "temperature": 0.9, "top_p": 0.6}, {"temperature": 0.0}),
        (
            {"do_sample": False, "top_k": 5, "repetition_penalty": 1.05},
            {"temperature": 0.0, "repetition_penalty": 1.05},
        ),
        ({"repetition_penalty": 1.1}, {"repetition_penalty": 1.1}),
        ({"min_p": 0.05}, {"temperature": 1.0, "min_p": 0.05}),
        ({"temperature": 0.0}, {"temperature": 0.0}),
        ({"temperature": 0.7, "top_k": 40.0, "num_beams": 4, "penalty_alpha": "x"}, {"temperature": 0.7, "top_k": 40}),
    ],
)
def test_what_is_recommended(artifact: Callable[[Any], Artifact], config: Any, expected: dict[str, Any]) -> None:
    found = recommended(artifact(config))
    assert found == expected
    assert all(type(found[name]) is type(value) for name, value in expected.items())  # type: ignore[literal-required]


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"temperature": -1}, "temperature -1: it must be"),
        ({"temperature": "0.7"}, "temperature is '0.7'"),
        ({"temperature": True}, "temperature is True"),
        ({"temperature": [0.7]}, r"temperature is \[0.7\]"),
        ({"temperature": "x" * 5000}, r"temperature is 'x+\.\.\."),
        ({"top_p": 7}, "top_p 7"),
        ({"top_p": float("nan")}, "top_p nan"),
        ({"top_k": 2.5}, "top_k 2.5"),
        ({"top_k": -1}, "top_k -1"),
        ({"min_p": 10**400}, "min_p 1000"),
        ({"repetition_penalty": 1e9}, "repetition_penalty"),
        ({"do_sample": "yes"}, "do_sample is 'yes'"),
        ([], "no JSON object"),
        (b"{", "no JSON"),
        (b"\xff", "no JSON"),
        (b"[" * 100_000, "no JSON"),
        (b'{"top_k": ' + b"9" * 5000 + b"}", "no JSON"),
    ],
)
def test_what_cannot_be_is_one_sentence(artifact: Callable[[Any], Artifact], config: Any, words: str) -> None:
    """An artifact may be anyone's; the model itself still runs."""
    found = artifact(config)
    with pytest.raises(ArtifactError, match=f"recommends no usable sampling .*{words}") as caught:
        recommended(found)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 1000


def test_an_artifact_without_the_file_recommends_nothing(artifact: Callable[[Any], Artifact]) -> None:
    folder = artifact({}).path
    manifest = json.loads((folder / "manifest.json").read_text())
    del manifest["files"][FILE]
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert recommended(open_artifact(folder)) == {}


QWEN: Any = {"temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05}


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, QWEN),
        ({"top_p": 0.5, "seed": 3}, {"temperature": 0.7, "top_k": 20, "repetition_penalty": 1.05}),
        ({"temperature": 0.0}, {"repetition_penalty": 1.05}),
        (dict(QWEN), {}),
    ],
)
def test_options_that_are_given_win(given: Any, expected: Any) -> None:
    """Made greedy by hand, the rest of a recommendation would be warned of as having no effect."""
    assert applied(QWEN, given) == expected


def test_a_given_option_that_cannot_be_is_the_users_mistake() -> None:
    with pytest.raises(UsageError, match="`top_p` 2"):
        applied(QWEN, {"top_p": 2.0})


def test_words() -> None:
    assert described({}) == "nothing"
    assert described({"temperature": 0.0}) == "greedy"
    assert described(QWEN) == "temperature 0.7, top_p 0.8, top_k 20, repetition_penalty 1.05"


def test_a_model_can_be_asked_and_followed(artifact: Callable[[Any], Artifact]) -> None:
    model = load(artifact({"do_sample": True, "temperature": 1.5, "top_k": 7}).path, threads=1)
    assert model.recommended == {"temperature": 1.5, "top_k": 7}
    options: dict[str, Any] = {"draft": "none", "max_new_tokens": 12, "exact": True, "seed": 5}
    followed = model.generate("hello", **model.recommended, **options)
    assert followed.token_ids == model.generate("hello", temperature=1.5, top_k=7, **options).token_ids
    assert followed.seed == 5
