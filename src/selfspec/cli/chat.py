"""``selfspec chat``: a conversation with a person. Lines in, streamed answers out; all else goes to ``err``."""

from __future__ import annotations

import argparse
import contextlib
import io
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TextIO

from ..errors import ContextLengthError, SelfSpecError, UsageError, unknown_name
from ..runtime.generation import Generation, TokenStream
from ..runtime.messages import Message
from ..runtime.model import GenerationOptions, Model
from .options import context_sentence, load_model, options_of, statistics_line, template_arguments

_COMMANDS = {
    "/help": "says this",
    "/stats": "tells what the last answer cost",
    "/reset": "forgets what was said, all but the system message",
    "/exit": "leaves, as Ctrl-D does",
}
_HELP = "; ".join(f"{name} {does}" for name, does in _COMMANDS.items()) + (
    "; a line that begins with // is a message that begins with /; Ctrl-C stops an answer"
)
_LEAVE = "/exit or Ctrl-D leaves"
_BEGIN_ANEW = "/reset begins anew"


class History(Protocol):
    """What was said so far, in the shape that the model is asked in."""

    def request(self, text: str) -> dict[str, Any]:
        """The prompt arguments of :meth:`Model.stream` with ``text`` said now; remembers nothing."""

    def record(self, text: str, answer: str) -> None: ...

    def reset(self) -> None: ...


class Dialogue:
    """Messages, put through the model's chat template."""

    def __init__(self, system: str | None = None, template: Mapping[str, Any] | None = None) -> None:
        """Args: template: what else :meth:`Model.stream` takes for the template."""
        self._template = dict(template or {})
        self._begin: list[Message] = [] if system is None else [{"role": "system", "content": system}]
        self._messages = list(self._begin)

    def request(self, text: str) -> dict[str, Any]:
        return {"messages": [*self._messages, {"role": "user", "content": text}], **self._template}

    def record(self, text: str, answer: str) -> None:
        self._messages += [{"role": "user", "content": text}, {"role": "assistant", "content": answer}]

    def reset(self) -> None:
        self._messages = list(self._begin)


class PlainText:
    """One text that the person and the model continue in turn: for models without a chat template."""

    def __init__(self) -> None:
        self._text = ""

    def request(self, text: str) -> dict[str, Any]:
        return {"prompt": self._text + text}

    def record(self, text: str, answer: str) -> None:
        self._text += text + answer

    def reset(self) -> None:
        self._text = ""


class Chat:
    """Reads, answers, and obeys commands until told to leave."""

    def __init__(
        self,
        model: Model,
        history: History,
        options: GenerationOptions,
        read: Callable[[], str],
        out: TextIO,
        err: TextIO,
    ) -> None:
        """Args: read: returns the next line; raises EOFError where there is none, KeyboardInterrupt at Ctrl-C.

        Raises:
            UsageError, RuntimeSetupError: an option cannot work; found now and not at the first question.
        """
        conversation = model.conversation(exact=bool(options.get("exact")))
        self._model = model
        self._history = history
        self._options: GenerationOptions = {**options, "conversation": conversation}
        self._read = read
        self._out = out
        self._err = err
        self._last: Generation | None = None
        self._model.stream_ids([0], **self._options)  # checks; it never begins

    def run(self) -> None:
        """Until /exit or the end of the input."""
        going = True
        while going:
            try:
                going = self._turn()
            except EOFError:
                going = False
            except KeyboardInterrupt:  # at the prompt; an answer stops by itself
                self._tell(f"\n{_LEAVE}")

    def _turn(self) -> bool:
        line = self._read()
        if line.startswith("//"):
            line = line[1:]
        elif line.startswith("/"):
            return self._command(line.strip())
        if line.strip():
            self._answer(line)
        return True

    def _command(self, name: str) -> bool:
        if name == "/exit":
            return False
        if name == "/help":
            self._tell(_HELP)
        elif name == "/reset":
            self._history.reset()
            self._tell("forgotten")
        elif name == "/stats":
            last = self._last
            self._tell("no answer yet" if last is None else statistics_line(last))
        else:
            self._tell(f"{unknown_name('command', name, _COMMANDS)} A message that begins with / is typed with //.")
        return True

    def _answer(self, text: str) -> None:
        try:
            stream = self._model.stream(**self._history.request(text), **self._options)
        except SelfSpecError as error:
            hint = f" {_BEGIN_ANEW.capitalize()}." if isinstance(error, ContextLengthError) else ""
            self._tell(f"{error}{hint}")
            return
        interrupted = self._show(stream)
        result = self._last = stream.result
        if interrupted and not result.token_ids:
            self._tell("stopped before the answer began; your message is taken back")
            return
        self._history.record(text, result.text)
        if interrupted:
            self._tell("stopped; what was said so far is remembered")
        elif result.finish_reason == "context":
            limit = self._model.artifact.manifest.model.context_length
            self._tell(f"{context_sentence(limit)}; {_BEGIN_ANEW}")
        elif result.finish_reason == "length":
            self._tell(f"stopped after {len(result.token_ids)} tokens (--max-new-tokens)")

    def _show(self, stream: TokenStream) -> bool:
        """Streams an answer; whether Ctrl-C stopped it."""
        interrupted = False
        try:
            for token in stream:
                self._out.write(token.text)
                self._out.flush()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            stream.close()
        self._out.write("\n")
        self._out.flush()
        return interrupted

    def _tell(self, sentence: str) -> None:
        print(sentence, file=self._err, flush=True)


def _read_terminal() -> str:
    try:
        return input("> ")
    except EOFError:
        print()  # the shell's own prompt belongs on a line of its own
        raise


def main(args: argparse.Namespace) -> None:
    """The command, with the options that ``cli`` has read.

    Raises:
        UsageError: the model has no chat template, or an option cannot work.
    """
    if args.raw and args.system is not None:
        raise UsageError("--system has no effect with --raw, which has no messages.")
    model = load_model(args)
    if not args.raw and not model.codec.has_chat_template:
        raise UsageError(
            "this model has no chat template, so it was hardly trained to chat; with --raw it continues plain text."
        )
    template = template_arguments(args, chat=not args.raw)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # started in the background, it would be ignored
    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(
            encoding="utf-8", errors="surrogateescape"
        )  # the codec refuses in a sentence what is left
    interactive = sys.stdin.isatty() and sys.stdout.isatty()
    if interactive:
        with contextlib.suppress(ImportError):  # not on Windows: then without history and editing
            import readline  # noqa: F401
    history: History = PlainText() if args.raw else Dialogue(args.system, template)
    read = _read_terminal if interactive else input
    chat = Chat(model, history, options_of(args, model), read, sys.stdout, sys.stderr)
    if interactive:
        print(f"{model.artifact.manifest.name}: {', '.join(_COMMANDS)}; Ctrl-C stops an answer.", file=sys.stderr)
    chat.run()
