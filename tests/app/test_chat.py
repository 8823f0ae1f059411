"""A conversation with a person: commands, Ctrl-C, pipes; first with streams passed in, last as a real process."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfspec.cli.chat import Chat, Dialogue, History, PlainText
from selfspec.cli.main import main
from selfspec.errors import UsageError

TEMPLATE = (
    "{% for m in messages %}{% if m.content == 'refuse me' %}{{ raise_exception('I will not') }}{% endif %}"
    "<{{ m.role }}>{{ m.content }}\n{% endfor %}<assistant>"
)


@pytest.fixture(scope="module")
def toy(make_toy: Callable[..., Any], fp32: Any) -> Any:
    """Long enough a context to be interrupted in, and no end of sequence."""
    spec = type(fp32.spec)(context=16384, eos=None)
    return make_toy(spec, precision="fp32", exit_layers=(2, 4), chat_template=TEMPLATE)


def talk(
    toy: Any, lines: list[Any], history: History | None = None, out: io.StringIO | None = None, **options: Any
) -> tuple[Chat, str, str]:
    """Each of ``lines`` is typed, or raised where it is an exception; then Ctrl-D."""
    out, err, todo = out or io.StringIO(), io.StringIO(), iter(lines)

    def read() -> str:
        line = next(todo, EOFError())
        if isinstance(line, BaseException):
            raise line
        return str(line)

    defaults = {"max_new_tokens": 12, "draft": "none", "exact": True}
    chat = Chat(toy.model, history or Dialogue(), {**defaults, **options}, read, out, err)  # type: ignore[typeddict-item]
    chat.run()
    return chat, out.getvalue(), err.getvalue()


def answers(toy: Any, *turns: str, system: str | None = None) -> list[str]:
    """What a chat must say, each turn a generation of its own."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    said = []
    for turn in turns:
        messages.append({"role": "user", "content": turn})
        said.append(toy.model.generate(messages=messages, max_new_tokens=12, draft="none", exact=True).text)
        messages.append({"role": "assistant", "content": said[-1]})
    return said


@pytest.mark.parametrize("draft", ["none", "early-exit", "prompt-lookup", "auto"])
def test_every_turn_knows_the_earlier_ones_and_equals_a_run_of_its_own(toy: Any, draft: str) -> None:
    """History that is lost, doubled, or whose rows were kept wrongly."""
    _, out, _ = talk(toy, ["hello", "and then?", "why?"], Dialogue("Be brief."), draft=draft)
    assert out == "".join(f"{text}\n" for text in answers(toy, "hello", "and then?", "why?", system="Be brief."))


def test_plain_text_goes_on_where_the_model_ended(toy: Any) -> None:
    """Without a template the person continues the text and the model goes on from there."""
    _, out, _ = talk(toy, ["The keeper", " and then"], PlainText())
    options: dict[str, Any] = {"max_new_tokens": 12, "draft": "none", "exact": True}
    first = toy.model.generate("The keeper", **options).text
    second = toy.model.generate(f"The keeper{first} and then", **options).text
    assert out == f"{first}\n{second}\n"


def test_reset_forgets_all_but_the_system_message(toy: Any) -> None:
    _, out, err = talk(toy, ["hello", "/reset", "hello"], Dialogue("Be brief."))
    (once,) = answers(toy, "hello", system="Be brief.")
    assert out == f"{once}\n{once}\n"
    assert "forgotten" in err


def test_stats_describe_the_last_answer(toy: Any) -> None:
    _, _, err = talk(toy, ["/stats", "hello", "again", "/stats"])
    assert err.splitlines()[0] == "no answer yet"
    line = err.splitlines()[-1]
    for words in ("tok/s", "TTFT", "nothing drafted", "reused"):
        assert words in line


def test_an_unknown_command_names_the_known_ones_and_is_no_message(toy: Any) -> None:
    _, out, err = talk(toy, ["/rest", "/exit", "never read"])
    assert "unknown command '/rest': known are /exit, /help, /reset, /stats. Did you mean '/reset'?" in err
    assert "//" in err
    assert out == ""


def test_help_names_every_command(toy: Any) -> None:
    _, out, err = talk(toy, ["/help"])
    assert out == ""
    for words in ("/help", "/stats", "/reset", "/exit", "//", "Ctrl-C"):
        assert words in err


@pytest.mark.parametrize(("line", "message"), [("//etc/hosts, what is it?", "/etc/hosts, what is it?"), ("//", "/")])
def test_a_message_may_begin_with_a_slash(toy: Any, line: str, message: str) -> None:
    """A path, or a model's own switch such as /no_think."""
    _, out, err = talk(toy, [line])
    assert "unknown" not in err
    assert out == f"{answers(toy, message)[0]}\n"


def test_empty_lines_and_the_end_of_input(toy: Any) -> None:
    assert talk(toy, ["", "   "])[1:] == ("", "")


def test_ctrl_c_at_the_prompt_says_how_to_leave_and_goes_on(toy: Any) -> None:
    _, out, err = talk(toy, [KeyboardInterrupt(), "hello"])
    assert "/exit or Ctrl-D leaves" in err
    assert out == f"{answers(toy, 'hello')[0]}\n"


class InterruptsAt(io.StringIO):
    """Ctrl-C while the nth token is written."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._left = count

    def flush(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise KeyboardInterrupt
        super().flush()


@pytest.mark.parametrize("count", [1, 5])
def test_ctrl_c_stops_the_answer_and_what_was_said_stays(toy: Any, count: int) -> None:
    """The next turn must build on what the person has read, no more and no less."""
    _, shown, err = talk(toy, ["hello", "go on"], out=InterruptsAt(count), draft="early-exit")
    options: dict[str, Any] = {"max_new_tokens": 12, "draft": "none", "exact": True}
    messages = [{"role": "user", "content": "hello"}]
    tokens = list(toy.model.stream(messages=messages, **options))
    said = "".join(token.text for token in tokens[:count])
    messages += [{"role": "assistant", "content": said}, {"role": "user", "content": "go on"}]
    assert shown == f"{said}\n{toy.model.generate(messages=messages, **options).text}\n"
    assert "remembered" in err


def test_ctrl_c_before_the_answer_takes_the_message_back(toy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A question without an answer in the history: many templates refuse it."""
    from selfspec.runtime.conversation import Conversation

    original, calls = Conversation.prefill, [0]

    def slow(self: Conversation, ids: Any) -> Any:
        calls[0] += 1
        if calls[0] == 1:
            raise KeyboardInterrupt
        return original(self, ids)

    monkeypatch.setattr(Conversation, "prefill", slow)
    _, out, err = talk(toy, ["a long one", "hello"])
    monkeypatch.undo()
    assert out == f"\n{answers(toy, 'hello')[0]}\n"
    assert "taken back" in err


def test_a_refused_message_is_one_sentence_and_is_forgotten(toy: Any) -> None:
    _, out, err = talk(toy, ["refuse me", "hello"])
    assert "I will not" in err.splitlines()[0]
    assert out == f"{answers(toy, 'hello')[0]}\n"


def test_a_full_context_offers_to_begin_anew(make_toy: Callable[..., Any], fp32: Any) -> None:
    """The answer that meets the end, and the question that does not fit any more."""
    small = make_toy(type(fp32.spec)(layers=2, context=64, eos=None), precision="fp32", chat_template=TEMPLATE)
    _, out, err = talk(small, ["hello there", "more", "/reset", "hi"], max_new_tokens=60)
    lines = err.splitlines()
    assert lines[0] == "the text ends here because the model's context of 64 tokens is full; /reset begins anew"
    assert "holds 64" in lines[1]
    assert "/reset begins anew." in lines[1]
    assert len(out.splitlines()) >= 2


def test_options_that_cannot_work_are_found_before_the_first_question(toy: Any) -> None:
    for options in ({"top_p": 0.0}, {"stop": [""]}, {"draft": "none", "exit_layer": 2}, {"max_new_tokens": -1}):
        with pytest.raises(UsageError):
            talk(toy, [], **options)


@pytest.mark.parametrize(
    ("argv", "words"),
    [(["--top-k", "-1"], "--top-k -1"), (["--raw", "--system", "x"], "--system"), (["--stop", ""], "--stop")],
)
def test_a_wrong_option_is_one_sentence(
    toy: Any, argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["chat", str(toy.folder), "--threads", "1", "--draft", "none", *argv]) == 2
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert words in captured.err
    assert captured.out == ""


def test_a_model_without_a_template_says_what_to_do(fp32: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["chat", str(fp32.folder), "--threads", "1"]) == 2
    assert "--raw" in capsys.readouterr().err


def command(folder: Path, *more: str) -> list[str]:
    program = "from selfspec.cli.main import main; raise SystemExit(main())"
    return [sys.executable, "-c", program, "chat", str(folder), "--threads", "1", "--draft", "none", "--exact", *more]


def test_a_pipe_gets_answers_and_nothing_else_on_stdout(toy: Any) -> None:
    """Prompt characters in a file, or a crash where input ends without a line break."""
    done = subprocess.run(
        command(toy.folder, "--max-new-tokens", "12"), input="hello\n/stats\nwhy?", capture_output=True,
        encoding="utf-8", check=True,
    )  # fmt: skip
    assert done.stdout == "".join(f"{text}\n" for text in answers(toy, "hello", "why?"))
    assert "tok/s" in done.stderr
    assert "Traceback" not in done.stderr


def test_bytes_that_are_no_text_are_refused_and_the_chat_goes_on(toy: Any) -> None:
    done = subprocess.run(
        command(toy.folder, "--max-new-tokens", "12"), input=b"\xff\xfe\nhello\n", capture_output=True, check=True
    )
    assert b"not valid Unicode" in done.stderr
    assert done.stdout.decode() == f"{answers(toy, 'hello')[0]}\n"


@pytest.mark.skipif(sys.platform == "win32", reason="no SIGINT for another process there")
def test_sigint_in_mid_answer_stops_the_answer_and_not_the_program(toy: Any) -> None:
    """The person's Ctrl-C, as the terminal sends it."""
    process = subprocess.Popen(
        command(toy.folder, "--max-new-tokens", "16000"),
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(b"hello\n")
        process.stdin.flush()
        os.read(process.stdout.fileno(), 1)  # the answer has begun
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(b"/stats\n/exit\n", timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert b"stopped; what was said so far is remembered" in err
    assert b"(unfinished)" in err
    assert b"Traceback" not in err
    assert out.endswith(b"\n")
