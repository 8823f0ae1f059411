"""benchmarks.memory on a toy, whole; and its table, its picture and its choice of a second model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from benchmarks.memory import command as memory
from benchmarks.memory import plot as memory_plot
from benchmarks.memory.second_model import SecondModel, check_second, default_second
from benchmarks.memory.table import markdown
from selfspec.errors import SelfSpecError, UsageError
from selfspec.runtime.artifact import open_artifact

if TYPE_CHECKING:
    from tests.conftest import Toy, ToyMaker

MB = 10**6


def _row(arm: str, pss: int | None, anonymous: int | None, plain: int = 100) -> dict[str, Any]:
    return {
        "arm": arm, "prompt_tokens": 8, "new_tokens": 16, "drafted_tokens": 5, "peak_rss_bytes": 250 * MB,
        "pss_bytes": pss and pss * MB, "pss_ratio": pss and pss / plain,
        "rss_anon_bytes": anonymous and anonymous * MB, "rss_anon_ratio": anonymous and anonymous / plain,
    }  # fmt: skip


def _data(*rows: dict[str, Any]) -> dict[str, Any]:
    facts = {"threads": 2, "cpu": "a CPU", "onnxruntime": "1.0", "selfspec": "0.1", "date": "2026-01-01"}
    return {"machine": facts, "artifact": {"name": "toy", "precision": "fp32"}, "rows": list(rows)}


@pytest.fixture
def pair(make_toy: ToyMaker, tmp_path: Path) -> tuple[Path, Path]:
    """(fp32, int4) of one model, in one folder."""
    options: dict[str, Any] = {"exit_layers": (2, 4, 5), "hot_vocab": 256}
    made = [make_toy(precision=precision, **options).folder for precision in ("fp32", "int4")]
    first, second = (shutil.copytree(folder, tmp_path / name) for folder, name in zip(made, "ab", strict=True))
    return first, second


@pytest.mark.slow
def test_every_arm_is_measured_and_drawn(
    pair: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    output, picture = tmp_path / "out" / "memory.json", tmp_path / "memory.png"
    arguments = [str(pair[0]), "--max-new-tokens", "12", "--threads", "1", "-o", str(output), "--plot", str(picture)]
    assert memory.main(arguments) == 0
    rows = json.loads(output.read_text())["rows"]
    arms = [row["arm"].split()[0] for row in rows]
    assert arms == ["plain", "prompt-lookup", "early-exit", "auto", "second"]
    assert rows[-1]["arm"] == "second model (checkpoint int4)"
    assert {row["new_tokens"] for row in rows} == {12}
    assert rows[0]["drafted_tokens"] == 0
    assert rows[2]["drafted_tokens"] > 0
    assert rows[-1]["drafted_tokens"] > 0
    assert (rows[0]["pss_ratio"], rows[0]["rss_anon_ratio"]) == (1.0, 1.0)
    table = capfd.readouterr().out
    assert table.startswith("| arm |")
    assert all(f"| {row['arm']} |" in table for row in rows)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_table_shows_ratios_and_what_is_not_known() -> None:
    lines = markdown(_data(_row("plain", 100, 100), _row("second", 150, None))).splitlines()
    assert lines[2] == "| plain | 16 | 5 | 100 | 1.000 | 100 | 1.000 | 250 |"
    assert lines[3] == "| second | 16 | 5 | 150 | 1.500 | - | - | 250 |"
    assert lines[5].startswith("toy fp32 after 8 + 16 tokens, 2 thread(s) of a CPU")


def test_the_picture_labels_every_bar_in_megabytes() -> None:
    figure = memory_plot.figure_of(_data(_row("plain", 100, 60), _row("second", 150, 149)))
    texts = [text.get_text() for text in figure.axes[0].texts]
    assert {"60", "40", "100 MB\n1.00×", "149", "150 MB\n1.50×"} == set(texts)  # 1 MB has no room for its number


def test_a_picture_of_what_the_system_does_not_say_is_refused() -> None:
    with pytest.raises(SelfSpecError, match="nothing is drawn"):
        memory_plot.figure_of(_data(_row("plain", None, None)))


def test_a_second_model_drafts_what_the_target_says_itself(fp32: Toy) -> None:
    """The same model as its own draft must always be right; one row off in following the target would show."""
    found = fp32.run(SecondModel(fp32.model, 3), count=40)
    assert found.tokens == fp32.run(SecondModel(fp32.model, 1), count=40).tokens
    assert found.drafted == found.accepted > 20


def test_a_second_model_that_errs_follows_the_target_again(toy: Toy, fp32: Toy) -> None:
    found = fp32.run(SecondModel(toy.model, 5), count=40)
    assert found.tokens == fp32.run(SecondModel(fp32.model), count=40).tokens


def test_the_second_model_is_another_precision_beside_the_first(pair: tuple[Path, Path]) -> None:
    assert default_second(open_artifact(pair[0])) == pair[1].resolve()


def test_no_other_precision_beside_is_told(pair: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    """A broken neighbour is told and does not stop the search."""
    (pair[1] / "manifest.json").write_text("{}")
    with pytest.raises(UsageError, match=r"there is no other precision of checkpoint beside .* --second"):
        default_second(open_artifact(pair[0]))
    assert f"{pair[1].resolve()} is passed over" in capsys.readouterr().err


def test_a_second_model_of_another_vocabulary_is_refused(fp32: Toy, tiny: Toy) -> None:
    with pytest.raises(UsageError, match="has another tokenizer"):
        check_second(fp32.model.artifact, tiny.model.artifact)


def test_too_few_tokens_are_refused(fp32: Toy, capsys: pytest.CaptureFixture[str]) -> None:
    assert memory.main([str(fp32.folder), "--max-new-tokens", "2"]) == 2
    assert "--max-new-tokens 2: it must be 3 or more" in capsys.readouterr().err
