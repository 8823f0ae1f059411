"""docs/reference.md is what the code says."""

from __future__ import annotations

from pathlib import Path

from selfspec.cli import manual
from selfspec.errors import SelfSpecError

PAGE = Path(__file__).parents[2] / "docs" / "reference.md"


def test_the_page_in_the_repository_is_up_to_date() -> None:
    """An option that was added, renamed or described otherwise, and not written down: run make reference."""
    assert PAGE.read_text(encoding="utf-8") == manual.text()


def test_every_command_option_and_error_is_there() -> None:
    """A page made from half of the parsers would be up to date too."""
    page = manual.text()
    for name in (
        "selfspec-export",
        *(f"selfspec {c}" for c in ("generate", "chat", "info", "profile", "verify-artifact")),
    ):
        assert f"### {name}\n" in page
    for option in ("--precision", "--revision", "--logprobs", "--stop", "--min-p", "--system", "--exit-layer"):
        assert f"`{option} " in page
    for error in SelfSpecError.__subclasses__():
        assert f"`{error.__name__}`" in page
    assert "0x" not in page, "an address differs from run to run"
    assert ":class:" not in page


def test_it_is_written_where_it_is_asked_for(tmp_path: Path) -> None:
    assert manual.main([str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text(encoding="utf-8") == manual.text()
