"""Tools and template variables: from the command line, a chat and Python into the model's chat template."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from selfspec.cli.chat import Chat, Dialogue
from selfspec.cli.main import main
from selfspec.errors import UsageError

TEMPLATE = (
    "{% if tools %}{% for tool in tools %}{{ tool | tojson }}{% endfor %}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}{% if no_thinking %}<think></think>{% endif %}A:"
)
HI = [{"role": "user", "content": "hi"}]
TOOLS = [{"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}]
QUIET = {"no_thinking": True}


@pytest.fixture(scope="module")
def toy(make_toy: Callable[..., Any], fp32: Any) -> Any:
    return make_toy(type(fp32.spec)(layers=2), precision="fp32", chat_template=TEMPLATE)


def test_python_hands_them_on(toy: Any) -> None:
    codec = toy.model.codec
    expected = json.dumps(TOOLS[0]) + "user: hi\n<think></think>A:"
    assert codec.decode(codec.encode_chat(HI, TOOLS, QUIET)) == expected
    result = toy.model.generate(messages=HI, tools=TOOLS, chat_template_kwargs=QUIET, max_new_tokens=2, draft="none")
    assert result.stats.prompt_tokens == len(codec.encode(expected))


def prompt_tokens(capsys: pytest.CaptureFixture[str], toy: Any, *flags: str) -> int:
    argv = ["generate", str(toy.folder), "-p", "hi", "-t", "1", "--json", "--draft", "none", "--max-new-tokens", "1"]
    assert main([*argv, *flags]) == 0
    return int(json.loads(capsys.readouterr().out)["stats"]["prompt_tokens"])


def test_the_command_line_hands_them_on(capsys: pytest.CaptureFixture[str], toy: Any, tmp_path: Path) -> None:
    path, codec = tmp_path / "tools.json", toy.model.codec
    path.write_text(json.dumps(TOOLS))
    assert prompt_tokens(capsys, toy) == len(codec.encode_chat(HI))
    assert prompt_tokens(capsys, toy, "--chat-template-kwargs", '{"no_thinking": true}') == len(
        codec.encode_chat(HI, variables=QUIET)
    )
    assert prompt_tokens(capsys, toy, "--tools", str(path)) == len(codec.encode_chat(HI, TOOLS))


def test_a_chat_hands_them_on_every_turn(toy: Any) -> None:
    lines = iter(["hi", "so?"])
    out, err = io.StringIO(), io.StringIO()
    history = Dialogue(None, {"tools": TOOLS, "chat_template_kwargs": QUIET})

    def read() -> str:
        try:
            return next(lines)
        except StopIteration:
            raise EOFError from None

    chat = Chat(toy.model, history, {"draft": "none", "max_new_tokens": 3}, read, out, err)
    chat.run()
    assert chat._last is not None
    first = toy.model.generate(
        messages=HI, tools=TOOLS, chat_template_kwargs=QUIET, draft="none", max_new_tokens=3
    ).text
    messages = [*HI, {"role": "assistant", "content": first}, {"role": "user", "content": "so?"}]
    ids = toy.model.codec.encode_chat(messages, TOOLS, QUIET)
    assert chat._last.stats.prompt_tokens == len(ids)


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--chat-template-kwargs", "{"], "is no JSON"),
        (["--chat-template-kwargs", "[1]"], "is no JSON object"),
        (["--chat-template-kwargs", '{"no_thinkin": true}'], "Did you mean 'no_thinking'?"),
        (["--chat-template-kwargs", '{"messages": []}'], "--chat-template-kwargs sets 'messages'"),
        (["--chat-template-kwargs", "{}", "--raw"], "--chat-template-kwargs is for the model's chat template"),
        (["--tools", "FILE"], "--tools FILE: it is no JSON"),
        (["--tools", "TOOL"], "--tools is dict"),
        (["--tools", "TOOL", "--raw"], "--tools is for the model's chat template"),
    ],
)
def test_mistakes_are_one_sentence(
    capsys: pytest.CaptureFixture[str], toy: Any, tmp_path: Path, flags: list[str], words: str
) -> None:
    (tmp_path / "FILE").write_bytes(b"\xff")
    (tmp_path / "TOOL").write_text(json.dumps(TOOLS[0]))
    flags = [str(tmp_path / flag) if flag in ("FILE", "TOOL") else flag for flag in flags]
    try:
        code = main(["generate", str(toy.folder), "-p", "hi", "-t", "1", "--draft", "none", *flags])
    except SystemExit as stop:  # argparse
        code = int(stop.code or 0)
    err = capsys.readouterr().err.replace(f"{tmp_path}/", "")
    assert code == 2
    assert words in err
    assert err.count("\n") == 1


def test_without_messages_they_are_refused(toy: Any) -> None:
    for name, value in (("tools", TOOLS), ("chat_template_kwargs", QUIET)):
        with pytest.raises(UsageError, match=f"`{name}` goes through the chat template") as caught:
            toy.model.stream("hi", **{name: value})
        assert caught.value.parameter == name
