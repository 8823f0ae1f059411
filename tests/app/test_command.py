"""What every command runs in: how a library error reaches the terminal."""

from __future__ import annotations

import pytest

from selfspec.cli.command import Parser, run_command
from selfspec.cli.main import build_parser
from selfspec.errors import ArtifactError, UsageError
from selfspec.runtime.sampling import Sampling


def parser() -> Parser:
    made = Parser(prog="toy")
    made.add_argument("artifact")
    made.add_argument("-t", "--threads")
    made.add_argument("--quant-block-size", dest="block_size")
    return made


def test_a_parameter_is_named_by_its_flag_and_one_without_a_flag_stays() -> None:
    assert parser().spelled("`threads` 0: use `block_size` 32, or `messages`, or `artifact`, or threads.") == (
        "--threads 0: use --quant-block-size 32, or `messages`, or `artifact`, or threads."
    )


def test_python_reads_the_parameter_and_the_command_line_the_flag(capsys: pytest.CaptureFixture[str]) -> None:
    """'--top-p 2' in a Python traceback, or in the answer of a server that has no flags."""
    with pytest.raises(UsageError) as caught:
        Sampling(top_p=2.0)
    assert (str(caught.value), caught.value.parameter) == (
        "`top_p` 2.0: it must be above 0 and at most 1.",
        "top_p",
    )
    generate = build_parser().parse_args(["generate", "a", "-p", "b"]).parser

    def refuse() -> None:
        raise caught.value

    assert run_command(refuse, generate.prog, generate) == 2
    assert capsys.readouterr().err == "selfspec generate: --top-p 2.0: it must be above 0 and at most 1.\n"


def test_every_error_may_name_parameters(capsys: pytest.CaptureFixture[str]) -> None:
    def refuse() -> None:
        raise ArtifactError("it is there; pass `threads`.")

    assert run_command(refuse, "toy", parser()) == 1
    assert run_command(refuse, "script.py") == 1
    assert capsys.readouterr().err == "toy: it is there; pass --threads.\nscript.py: it is there; pass `threads`.\n"
