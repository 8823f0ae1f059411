"""Standard streams that are closed, of another encoding or no terminal, and paths that are no text."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from selfspec.bench.command import print_table
from selfspec.bench.prompts import load_prompts
from selfspec.cli.command import run_command
from selfspec.cli.export import main as export_main
from selfspec.cli.main import main
from selfspec.cli.output import carried, print_csv, print_json

THREADS = ["--threads", "1"]
FEW = ["--draft", "none", "--max-new-tokens", "4", *THREADS]
STAR = "caf\u00e9 \U0001f31f"
ESCAPED = '"caf\\u00e9 \\ud83c\\udf1f"'


@pytest.fixture(scope="module")
def toy(make_toy: Callable[..., Any]) -> Any:
    return make_toy(precision="fp32", exit_layers=(2, 4))


class Stream(io.TextIOWrapper):
    """A pipe of some encoding, as run_command sets it up."""

    def __init__(self, encoding: str) -> None:
        self.bytes = io.BytesIO()
        super().__init__(self.bytes, encoding=encoding, errors="replace", newline="\n")

    def written(self) -> bytes:
        self.flush()
        return self.bytes.getvalue()


@pytest.fixture(params=["cp1252", "ascii", "latin-1", "utf-8"])
def pipe(request: pytest.FixtureRequest) -> Stream:
    """Of encodings that lack characters, and of one that does not."""
    return Stream(request.param)


def test_json_keeps_every_character_in_any_encoding(pipe: Stream) -> None:
    """With errors="replace" an answer of emoji became "????", exit code 0."""
    with redirect_stdout(pipe):
        print_json({"text": STAR, "path": os.fsdecode(b"bad\xff")})
    assert json.loads(pipe.written().decode(pipe.encoding)) == {"text": STAR, "path": "bad\udcff"}


@pytest.mark.parametrize(
    ("text", "encoding", "expected"),
    [
        (f'"{STAR}"', "utf-8", f'"{STAR}"'),
        (f'"{STAR}"', "cp1252", ESCAPED),
        ('"caf\u00e9"', "cp1252", '"caf\u00e9"'),
        (f'"{STAR}"', "no such encoding", ESCAPED),
        ('"a\udcff"', "utf-8", '"a\\udcff"'),
        ('{"a": "\\n"}', "ascii", '{"a": "\\n"}'),
    ],
)
def test_json_is_escaped_where_need_be_only(text: str, encoding: str, expected: str) -> None:
    stream = type("Named", (io.StringIO,), {"encoding": encoding})()
    assert carried(text, stream) == expected


@pytest.mark.parametrize("form", ["json", "jsonl"])
def test_benchmarks_in_json_keep_every_character(form: str, pipe: Stream) -> None:
    with redirect_stdout(pipe):
        print_table(json.dumps({"category": STAR}, ensure_ascii=False) + "\n", form)
    assert json.loads(pipe.written().decode(pipe.encoding)) == {"category": STAR}


def test_csv_is_utf_8_where_the_encoding_lacks_a_character_and_says_so(
    pipe: Stream, capsys: pytest.CaptureFixture[str]
) -> None:
    with redirect_stdout(pipe):
        print_csv(f"name\n{STAR}\n")
    assert pipe.written() == f"name\n{STAR}\n".encode()
    assert ("is in UTF-8" in capsys.readouterr().err) == (pipe.encoding != "utf-8")


def test_csv_keeps_what_is_no_text(pipe: Stream) -> None:
    with redirect_stdout(pipe):
        print_csv("name\nbad\udcff\n")
    assert pipe.written() == b"name\nbad\\udcff\n"


def test_csv_that_the_encoding_holds_is_left_alone() -> None:
    stream = Stream("cp1252")
    with redirect_stdout(stream):
        print_csv("caf\u00e9\n")
    assert stream.written() == b"caf\xe9\n"


def test_an_answer_in_json_is_the_same_in_any_encoding(toy: Any, pipe: Stream) -> None:
    """The toy says half characters, which are U+FFFD: cp1252 has no such character."""
    argv = ["generate", str(toy.folder), "-p", "hello", "--json", "--logprobs", "2", *FEW]
    argv[argv.index("4")] = "40"
    with redirect_stdout(pipe):
        assert main(argv) == 0
    data = json.loads(pipe.written().decode(pipe.encoding))
    assert data["text"] == toy.model.codec.decode(data["token_ids"])
    assert not data["text"].isascii()
    assert [entry["text"] for entry in data["logprobs"]] == [toy.model.codec.decode([i]) for i in data["token_ids"]]


def test_names_in_json_of_info_are_kept(toy: Any, pipe: Stream, tmp_path: Path) -> None:
    artifact = shutil.copytree(toy.folder, tmp_path / "artifact")
    manifest = artifact / "manifest.json"
    manifest.write_text(json.dumps(json.loads(manifest.read_text()) | {"name": STAR}))
    with redirect_stdout(pipe):
        assert main(["info", str(artifact), "--json", *THREADS]) == 0
    assert json.loads(pipe.written().decode(pipe.encoding))["name"] == STAR


def test_log_probabilities_on_stderr_tell_tokens_apart_in_any_encoding(toy: Any) -> None:
    """'?' for every character that the terminal lacks."""
    argv = ["generate", str(toy.folder), "-p", "hello", "--logprobs", "0", *FEW]
    code = f"from selfspec.cli.main import main; raise SystemExit(main({argv!r}))"
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, env=environment, check=True)
    texts = [json.loads(line.rpartition(" ")[0]) for line in done.stderr.decode("ascii").splitlines()[:4]]
    ids = toy.model.generate(
        toy.model.codec.decode(toy.model.codec.encode("hello")), max_new_tokens=4, draft="none"
    ).token_ids  # fmt: skip
    assert texts == [toy.model.codec.decode([i]) for i in ids]


posix = pytest.mark.skipif(os.name != "posix", reason="streams are closed by a POSIX shell")
RUN = "import sys; from selfspec.cli.{0} import main; raise SystemExit(main(sys.argv[1:]))"


def with_closed(redirections: str, module: str, *argv: str) -> subprocess.CompletedProcess[str]:
    command = ["sh", "-c", f'exec "$@" {redirections}', "sh", sys.executable, "-c", RUN.format(module), *argv]
    return subprocess.run(command, capture_output=True, text=True, input="hello\n", check=False)


@posix
@pytest.mark.parametrize(
    ("streams", "argv", "code", "words"),
    [
        (">&-", ["info"], 1, "standard output is closed"),
        (">&-", ["verify-artifact"], 1, "standard output is closed"),
        (">&-", ["generate", "-p", "hi", *FEW], 1, "standard output is closed"),
        (">&-", ["generate", "-p", "hi", "--json", *FEW], 1, "standard output is closed"),
        (">&-", ["profile", "--json", *THREADS], 1, "standard output is closed"),
        (">&-", ["bench", "-p", "0", "-n", "3", "-r", "1", *THREADS], 1, "standard output is closed"),
        (">&-", ["chat", "--raw", *FEW], 1, "standard output is closed"),
        ("<&-", ["generate", "-p", "-", *FEW], 2, "the prompt is empty"),
        ("<&-", ["chat", "--raw", *FEW], 0, ""),
        ("<&-", ["verify-artifact"], 0, ""),
    ],
)
def test_a_closed_stream_is_a_sentence_or_does_not_matter(
    streams: str, argv: list[str], code: int, words: str, toy: Any
) -> None:
    """Python has None there: cron jobs, some supervisors."""
    done = with_closed(streams, "main", argv[0], str(toy.folder), *argv[1:])
    assert done.returncode == code
    assert "Traceback" not in done.stderr
    assert words in (done.stderr.splitlines() or [""])[-1]


@posix
def test_the_demo_finds_a_closed_output_before_it_exports(tmp_path: Path) -> None:
    done = with_closed(">&-", "demo", "--artifacts", str(tmp_path / "artifacts"))
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "standard output is closed" in done.stderr
    assert list(tmp_path.iterdir()) == []


@posix
@pytest.mark.parametrize("streams", [">&-", "2>&-", "<&- >&- 2>&-"])
def test_an_export_that_was_published_is_a_success(streams: str, toy: Any, tmp_path: Path) -> None:
    done = with_closed(streams, "export", str(toy.checkpoint), str(tmp_path / "out"), "--kernels", "ort")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    assert "Traceback" not in done.stderr
    assert (tmp_path / "out/manifest.json").is_file()


@posix
@pytest.mark.parametrize(
    ("module", "argv", "code"),
    [
        ("main", ["info", "nowhere"], 1),
        ("main", ["generate", "--no-such-flag"], 2),
        ("export", ["nowhere"], 1),
        ("demo", ["--no-such-flag"], 2),
    ],
)
def test_what_would_be_said_on_a_closed_stderr_does_not_go_to_stdout(module: str, argv: list[str], code: int) -> None:
    """print(file=None) is standard output."""
    done = with_closed("2>&-", module, *argv)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", "")


def test_text_goes_to_stdout_alone_where_stderr_is_closed(toy: Any) -> None:
    done = with_closed("2>&-", "main", "generate", str(toy.folder), "-p", "hello", *FEW)
    assert done.returncode == 0
    assert "tok/s" not in done.stdout


def test_a_program_without_streams_has_exit_codes(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """pythonw: all three are None."""
    for name in ("stdin", "stdout", "stderr"):
        monkeypatch.setattr(sys, name, None)
    assert main(["generate", str(toy.folder), "-p", "-", *FEW]) == 2
    assert main(["generate", str(toy.folder), "-p", "hi", *FEW]) == 1
    assert main(["info", "nowhere"]) == 1


def test_a_model_says_nothing_on_stdout_where_there_is_no_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from selfspec.runtime.model import notify_stderr

    monkeypatch.setattr(sys, "stderr", None)
    notify_stderr("warning")
    assert capsys.readouterr().out == ""


@pytest.fixture
def odd(tmp_path: Path) -> Path:
    """A folder whose name is no UTF-8, as an old archive or a Latin-1 disk has them."""
    folder = tmp_path / os.fsdecode(b"caf\xe9")
    try:
        folder.mkdir()
    except OSError:
        pytest.skip("this file system has no such names")
    return folder


def test_an_artifact_runs_from_a_path_that_is_no_text(
    odd: Path, toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    artifact = str(shutil.copytree(toy.folder, odd / "artifact"))
    assert main(["info", artifact, *THREADS]) == 0
    capsys.readouterr()
    assert main(["generate", artifact, "-p", "hello", "--json", *FEW]) == 0
    found = json.loads(capsys.readouterr().out)["token_ids"]
    assert main(["generate", str(toy.folder), "-p", "hello", "--json", *FEW]) == 0
    assert json.loads(capsys.readouterr().out)["token_ids"] == found
    assert main(["verify-artifact", artifact]) == 0


def test_an_export_takes_and_makes_folders_whose_names_are_no_text(odd: Path, toy: Any) -> None:
    """Its name goes into the manifest, which is text."""
    source, output = odd / os.fsdecode(b"mod\xe8le"), odd / "out"
    shutil.copytree(toy.checkpoint, source)
    assert export_main([str(source), str(output), "--kernels", "ort"]) == 0
    assert json.loads((output / "manifest.json").read_text())["name"] == "mod?le"


def test_prompts_lie_in_folders_whose_names_are_no_text(odd: Path) -> None:
    (odd / "prompts.txt").write_text("hello there\n")
    assert [prompt.text for prompt in load_prompts(odd / "prompts.txt")] == ["hello there"]


@pytest.mark.parametrize("argv", [["--stop", "\udcff"], ["-p", "a\udcffb"]])
def test_an_argument_that_is_no_text_is_one_sentence(
    argv: list[str], toy: Any, capsys: pytest.CaptureFixture[str]
) -> None:  # fmt: skip
    assert main(["generate", str(toy.folder), "-p", "hi", *FEW, *argv]) in (1, 2)
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "UTF-8" in err


def test_what_cannot_be_encoded_anywhere_is_one_sentence(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:  # fmt: skip
    def write() -> None:
        (tmp_path / "file").write_text("x" * 5000 + "\udcff", encoding="utf-8")

    assert run_command(write, "selfspec") == 1
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert len(err) < 200


def test_a_log_file_has_no_progress_bar(toy: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A bar rewrites its line: in a log it is one line of thousands of characters."""
    assert export_main([str(toy.checkpoint), str(tmp_path / "out"), "--kernels", "ort"]) == 0
    err = capsys.readouterr().err
    assert "\r" not in err
    assert err.startswith("wrote ")
