"""What the documentation tells people to type: every command line of README and CONTRIBUTING is one that exists."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import pytest

from selfspec.cli.export import build_parser as export_parser
from selfspec.cli.main import build_parser
from selfspec.runtime.drafters.spec import parse, parse_list

ROOT = Path(__file__).parents[2]


def command_lines(page: str) -> list[list[str]]:
    """Commands in indented and fenced blocks, without their comments; ``a && b`` is two."""
    found = []
    for line in (ROOT / page).read_text(encoding="utf-8").splitlines():
        if re.match(r" {4}(\w+=\S+ )*(selfspec|selfspec-export|python3?|pip|pytest|make) ", line):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="&")
            lexer.whitespace_split = True
            command: list[str] = []
            for word in [*lexer, "&&"]:
                if word == "&&":
                    found.append([w for w in command if not re.match(r"\w+=", w)])
                    command = []
                else:
                    command.append(word)
    return found


COMMANDS = [words for page in ("README.md", "CONTRIBUTING.md") for words in command_lines(page)]


def test_there_is_a_tour() -> None:
    """A change of the page's form must not leave the tests below without commands."""
    named = {tuple(words[:2]) for words in COMMANDS if words[0] == "selfspec"}
    assert {("selfspec", name) for name in ("generate", "chat", "bench", "info", "profile", "verify-artifact")} <= named
    assert ["python3", "-m", "venv", ".venv"] in COMMANDS
    assert ["selfspec-export", "smollm2-135m"] in COMMANDS


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "selfspec"], ids=" ".join)
def test_a_command_of_selfspec_is_understood(words: list[str]) -> None:
    """An option that was renamed, a draft that is none."""
    args = build_parser().parse_args(words[1:])
    if args.name == "bench":
        assert parse_list(args.draft)
    elif hasattr(args, "draft"):
        flags = {"exit_layer": args.exit_layer, "num_draft_tokens": args.num_draft_tokens}
        assert parse(args.draft, **flags, draft_experts=args.draft_experts)


@pytest.mark.parametrize("words", [words for words in COMMANDS if words[0] == "selfspec-export"], ids=" ".join)
def test_a_command_of_selfspec_export_is_understood(words: list[str]) -> None:
    assert export_parser().parse_args(words[1:])


def exists(module: str) -> bool:
    path = ROOT / module.replace(".", "/")
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file() or module in sys.stdlib_module_names


def test_modules_that_are_run_exist() -> None:
    """In the README, and where a docstring says how its module is called."""
    named = [words[2] for words in COMMANDS if words[1:2] == ["-m"]]
    for folder in ("benchmarks", "tests", "src/selfspec"):
        for path in (ROOT / folder).rglob("*.py"):
            named += re.findall(
                r"^ {4}python -m (benchmarks\S*|tests\S*)", path.read_text(encoding="utf-8"), re.MULTILINE
            )
    assert len(named) > 5
    assert [module for module in named if not exists(module) and module != "pytest"] == []


def test_make_targets_exist() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for words in COMMANDS:
        if words[0] == "make":
            assert re.search(rf"^{words[1]}:", makefile, re.MULTILINE), words
