"""The tables of README and log are what the committed results make of them, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from benchmarks import tables
from benchmarks.child import importable
from benchmarks.kernels import table as kernels_table

ROW: dict[str, Any] = {
    "test": "prompts", "draft": "auto", "category": "qa", "prompts": 4, "repeats": 3, "median": 20.04, "roofline": None,
    "speed_up": 1.5, "speed_up_low": 1.25, "speed_up_high": 1.75, "acceptance_rate": 0.5, "tokens_per_round": 2.25,
    "acceptance_by_position": [0.9, 0.8, 0.7, 0.6, 0.5], "draft_share": 0.0123, "ttft_ms": 12.6, "pss_bytes": 250e6,
}  # fmt: skip
PLAIN = ROW | {
    "draft": "plain", "median": 10.0, "speed_up": None, "speed_up_low": None, "speed_up_high": None,
    "acceptance_rate": None, "tokens_per_round": 1.0, "acceptance_by_position": [], "draft_share": 0.0,
}  # fmt: skip
BENCH: dict[str, Any] = {
    "prompt_set": "built-in", "new_tokens": 64, "date": "2026-01-02", "selfspec": "9.9",
    "artifact": {
        "name": "smollm2-135m", "precision": "int4", "kernels": "ONNX Runtime's", "digest": "0123456789abcdef",
    },
    "machine": {"cpu": "Fast", "cores": 2, "threads": 2, "bandwidth": 3.2e10, "onnxruntime": "1.2", "numpy": "2.3"},
    "costs": {"verify": {"1": 1.0, "2": 1.25}, "draft": {"early-exit:layer=20": 0.6}, "best_exit": None},
    "turns": {"run": 90, "used": 70, "disturbed": 3},
    "rows": [
        {"test": "pp512", "category": None, "draft": "plain", "median": 1000.4, "speed_up": None},
        {"test": "tg64", "category": None, "draft": "plain", "median": 12.0, "roofline": 0.482, "speed_up": None,
         "pss_bytes": 250e6},
        PLAIN, ROW, PLAIN | {"category": "all", "prompts": 24}, ROW | {"category": "all", "prompts": 24},
    ],
}  # fmt: skip
CONDITIONS = (
    "24 prompts (built-in), greedy, at most 64 new tokens, alternating runs. 2026-01-02, selfspec 9.9: Fast, "
    "2 core(s), 2 thread(s), ONNX Runtime 1.2, NumPy 2.3."
)


def region(name: str, text: str = "") -> str:
    return f"before\n<!-- results: {name} -->\n{text}<!-- end of results -->\nbehind\n"


def test_speed() -> None:
    found = tables.fill(region("speed", "old\n"), {"bench-smollm2-135m-int4": BENCH})
    expected = (
        f"{CONDITIONS}\n\n|  | plain tok/s | of bandwidth | auto |\n| --- | --- | --- | --- |\n"
        "| SmolLM2-135M int4 (ort) | 12 | 48% of 32 GB/s | 1.50× [1.25, 1.75] |\n"
    )
    assert found == region("speed", expected)


def test_categories() -> None:
    found = tables.fill(region("categories"), {"bench-smollm2-135m-int4": BENCH})
    assert found == region(
        "categories", "|  | qa |\n| --- | --- |\n| SmolLM2-135M int4 (ort), auto | 1.50× [1.25, 1.75] |\n"
    )


def test_details() -> None:
    found = tables.fill(region("details"), {"bench-smollm2-135m-int4": BENCH})
    assert "| SmolLM2-135M int4 (ort) | plain | 10.0 |  |  |  | 1.00 | 0.000 | 13 |\n" in found
    assert "| auto | 20.0 | 1.50× [1.25, 1.75] | 0.50 | 0.90 0.80 0.70 0.60 | 2.25 | 0.012 | 13 |\n" in found
    assert (
        "V(m) 1: 1.00, 2: 1.25; c by path early-exit:layer=20: 0.60; prompt of 512 tokens at 1000 tok/s; "
        "turns: 70 used of 90 run, 3 of the used disturbed; 2026-01-02, sha256 01234" in found
    )


def test_spec_bench_is_a_line_a_model_and_what_its_noise_was() -> None:
    again = PLAIN | {"draft": "none", "category": "all", "speed_up": 1.0, "speed_up_low": 0.98, "speed_up_high": 1.02}
    auto = ROW | {"category": "all", "prompts": 24, "same_text": 23}
    rows = [PLAIN, ROW, PLAIN | {"category": "all", "prompts": 24}, again, auto]
    found = tables.fill(region("spec"), {"spec-a": BENCH | {"rows": rows}})
    assert found == region(
        "spec",
        f"{CONDITIONS}\n\n|  | qa | all |\n| --- | --- | --- |\n"
        "| SmolLM2-135M int4 (ort) | 1.50× [1.25, 1.75] | 1.50× [1.25, 1.75] |\n\n"
        "- SmolLM2-135M int4 (ort): plain again 1.00× [0.98, 1.02]; texts of auto equal to plain's: 23 of 24; "
        "2.25 tokens a round; turns: 70 used of 90 run, 3 of the used disturbed.\n",
    )


def test_native_beside_ort() -> None:
    """Ratios are ort's time over native's; both times, seconds and megabytes are native / ort."""
    passes = [{"rows": rows, "native_ms": 2.0, "ort_ms": 3.0, "low": 1.4, "high": 1.6} for rows in kernels_table.ROWS]
    opening = {
        "seconds": 0.09,
        "graphs_anonymous_bytes": 4.3e6,
        "anonymous_bytes": 44e6,
        "answer_anonymous_bytes": 45e6,
    }
    data = {
        "settings": {"model": "m", "precision": "int4", "kernels": "selfspec-kernels 9"},
        "machine": BENCH["machine"] | {"date": "2026-01-02"},
        "passes": passes,
        "prefill": {"tokens": 512, "native_ms": 100.0, "ort_ms": 200.0},
        "native_open": opening,
        "ort_open": opening | {"seconds": 0.2, "graphs_anonymous_bytes": 123e6},
    }
    found = tables.fill(region("beside"), {"beside-m-int4": data})
    assert "| m int4 | 1.50× [1.40, 1.60] (2.00 / 3.00 ms) |" in found
    assert "| 2.00× (100.00 / 200.00 ms) | 0.09 / 0.20 | 4.3 / 123.0 | 44.0 / 44.0 | 45.0 / 45.0 |" in found
    assert "\n\nselfspec-kernels 9, 2026-01-02: Fast, 2 core(s)" in found


def test_quality_takes_resident_memory_from_the_bench() -> None:
    row = {
        "name": "smollm2-135m",
        "precision": "int4",
        "weights_bytes": 102e6,
        "agreement": 0.815,
        "kl": 0.21,
        "tokens": 9,
        "digest": "0123456789abcdef",
        "kernels": "ONNX Runtime's",
    }
    results = {"quality": {"rows": [row]}}
    assert "\n| int4 (ort) | 102 MB | 81.5% | 0.2100 |  |\n" in tables.fill(region("quality"), results)
    with_bench = results | {"bench-smollm2-135m-int4": BENCH}
    assert "\n| int4 (ort) | 102 MB | 81.5% | 0.2100 | 250 MB |\n" in tables.fill(region("quality"), with_bench)
    other = {"quality": {"rows": [row | {"digest": "f"}]}, "bench-smollm2-135m-int4": BENCH}
    assert "| 0.2100 |  |\n" in tables.fill(region("quality"), other), "the memory of another artifact"


def test_one_category_has_no_rows_over_all_and_is_shown_all_the_same() -> None:
    one = BENCH | {"rows": [row for row in BENCH["rows"] if row["category"] != "all"]}
    for name in ("speed", "categories", "details"):
        assert "| SmolLM2-135M int4 (ort)" in tables.fill(region(name), {"bench-a": one})


def test_a_category_that_one_model_lacks_is_an_empty_cell() -> None:
    more = BENCH | {
        "rows": [*BENCH["rows"][:2], PLAIN | {"category": "rag"}, ROW | {"category": "rag"}, *BENCH["rows"][2:]]
    }
    gemma = BENCH | {"artifact": BENCH["artifact"] | {"name": "gemma3-270m"}}
    found = tables.fill(region("categories"), {"bench-a": more, "bench-b": gemma})
    assert "| Gemma-3-270M int4 (ort), auto |  | 1.50× [1.25, 1.75] |" in found


def test_what_was_measured_under_other_conditions_is_a_table_of_its_own() -> None:
    other = BENCH | {"machine": BENCH["machine"] | {"cpu": "Slow"}}
    found = tables.fill(region("speed"), {"bench-a": BENCH, "bench-b": other})
    assert found.count("| plain tok/s |") == 2
    assert "Slow, 2 core(s)" in found


def test_models_come_in_one_order() -> None:
    fp32 = BENCH | {"artifact": BENCH["artifact"] | {"precision": "fp32"}}
    gemma = BENCH | {"artifact": BENCH["artifact"] | {"name": "gemma3-270m"}}
    found = tables.fill(region("speed"), {"bench-a": gemma, "bench-b": BENCH, "bench-c": fp32})
    names = [line.split(" | ")[0] for line in found.splitlines() if line.startswith(("| Smol", "| Gemma"))]
    assert names == ["| SmolLM2-135M fp32", "| SmolLM2-135M int4 (ort)", "| Gemma-3-270M int4 (ort)"]


def test_peers() -> None:
    row = {
        "peer": "other", "arm": "plain", "versions": {"other": "1.0"}, "note": "as it comes", "prompts": 12,
        "tokens_per_second": 50.0, "ttft_ms": 10.0, "ratio": 1.25, "interval": {"low": 1.2, "high": 1.3},
        "ratio_of_best": 1.5, "same_text": 11, "reason": "",
    }  # fmt: skip
    broken = row | {"peer": "third", "interval": None, "reason": "KeyError: rope_type", "versions": {}, "note": ""}
    settings = {"model": "smollm2-135m", "prompts": 12, "prompt_file": "built-in", "max_new_tokens": 48, "repeats": 3}
    machine = BENCH["machine"] | {"date": "2026-01-02"}
    data = {"settings": settings, "machine": machine, "precisions": {"fp32": [row, broken]}}
    found = tables.fill(region("peers"), {"peers-smollm2-135m": data})
    assert "**SmolLM2-135M fp32**\n\n|" in found
    assert "| other | plain | 50.0 | 10 | 1.25 | 1.20–1.30 | 1.50 | 11 of 12 |\n" in found
    assert "| third | plain | cannot run: KeyError: rope_type |" in found
    notes = tables.fill(region("peer-notes"), {"peers-smollm2-135m": data})
    assert "\n- other: other 1.0; as it comes\n" in notes


@pytest.mark.parametrize("name", tables.TABLES)
def test_what_was_never_measured_is_said(name: str) -> None:
    assert tables.fill(region(name, "| old |\n"), {}) == region(
        name, "Not measured yet: `make bench` and `make peers` do.\n"
    )


def test_an_unknown_table_is_refused() -> None:
    with pytest.raises(KeyError):
        tables.fill(region("speeed"), {})


def test_tables_know_no_model() -> None:
    """They are made of files, on a machine where nothing can run."""
    program = "import sys; from benchmarks import tables; print(*(m for m in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], env=importable(), capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert "benchmarks.bench_tables" in loaded
    assert not {name for name in loaded if name.startswith(("onnxruntime", "selfspec.runtime"))}


@pytest.mark.parametrize("path", tables.DOCUMENTS, ids=lambda path: path.name)
def test_documents_show_the_committed_results(path: Any) -> None:
    """Nobody has typed a number into a table, or forgotten to make them anew."""
    text = path.read_text(encoding="utf-8")
    assert tables.fill(text, tables.load_results()) == text
    assert "<!-- results: " in text
