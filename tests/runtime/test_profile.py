"""Profiles: what is kept between runs, what is ignored, and that a broken cache never breaks a generation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from selfspec import load
from selfspec.errors import RuntimeSetupError
from selfspec.runtime import machine_key as machine_keys
from selfspec.runtime import measure as measuring
from selfspec.runtime.costs import MeasuredPath, Profile, falling_step
from selfspec.runtime.drafters.registry import candidates
from selfspec.runtime.invariance import exact_passes
from selfspec.runtime.machine_key import cpu_name, machine_key, parse_cpuinfo
from selfspec.runtime.measure import measure
from selfspec.runtime.profile_store import load_profile, store_profile
from selfspec.runtime.stack import Passes

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.conftest import Toy

    from selfspec import Model

SAMPLE = Profile(
    {1: 0.01, 2: 0.011, 16: 0.03},
    {"short": MeasuredPath(0.004, 0.003, (0.5, 0.9), (False, True)), "long": MeasuredPath(0.007, 0.0, (), ())},
    Passes(2, 64),
)
PATHS = ("short", "long")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("SELFSPEC_CACHE", str(folder))
    return folder


@pytest.fixture
def model(fp32: Toy, cache: Path) -> tuple[Model, list[str]]:
    """Loaded again, with an empty cache, and what it says."""
    said: list[str] = []
    return load(fp32.folder, threads=1, notify=said.append), said


def test_a_profile_survives_its_file(fp32: Toy, cache: Path) -> None:
    """JSON turns integer keys into text: they must come back as integers."""
    artifact = fp32.model.artifact
    assert load_profile(artifact, 1, PATHS) is None
    path = store_profile(artifact, 1, SAMPLE)
    assert path == cache / "profiles" / f"{artifact.digest}.json"
    assert load_profile(artifact, 1, PATHS) == SAMPLE
    assert [p.name for p in path.parent.iterdir()] == [path.name], "a temporary file was left"


def test_no_invariant_row_count_survives_too(fp32: Toy, cache: Path) -> None:
    """None is an answer, not a missing one: measuring again at every start would take ten seconds each."""
    none = Profile({1: 1.0}, {}, None)
    store_profile(fp32.model.artifact, 1, none)
    assert load_profile(fp32.model.artifact, 1, ()) == none


def test_another_machine_thread_count_or_artifact_misses(
    fp32: Toy, toy: Toy, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Costs of another machine or model would steer the controller wrongly, and exactness would be a false promise."""
    artifact = fp32.model.artifact
    store_profile(artifact, 1, SAMPLE)
    assert load_profile(artifact, 2, PATHS) is None
    if toy is not fp32 and toy.model.artifact.digest != artifact.digest:
        assert load_profile(toy.model.artifact, 1, PATHS) is None
    with monkeypatch.context() as patch:
        patch.setattr(machine_keys, "cpu_name", lambda: "another processor")
        assert load_profile(artifact, 1, PATHS) is None
        other = replace(SAMPLE, step_seconds={1: 9.0})
        store_profile(artifact, 1, other)
        assert load_profile(artifact, 1, PATHS) == other
    assert load_profile(artifact, 1, PATHS) == SAMPLE, "storing one machine's profile lost another's"


def test_the_machine_key_names_what_a_measurement_depends_on(fp32: Toy) -> None:
    """An ONNX Runtime update changes kernels: costs and row invariance must be measured again."""
    key = machine_key(fp32.model.artifact, 3)
    assert set(key) == {"cpu", "onnxruntime", "threads"}
    assert key["threads"] == "3"
    assert key["cpu"] == cpu_name() != ""


def test_another_build_of_the_kernels_misses(
    native_kernels: None, make_toy: Callable[..., Toy], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its code takes other times, though its version is the same."""
    import selfspec_kernels

    artifact = make_toy(precision="int4", kernels="native", exit_layers=(2, 4, 5), hot_vocab=250).model.artifact
    store_profile(artifact, 1, SAMPLE)
    assert load_profile(artifact, 1, PATHS) == SAMPLE
    cache.with_name("rebuilt.so").write_bytes(selfspec_kernels.library_path().read_bytes() + b"\0")
    monkeypatch.setattr(selfspec_kernels, "library_path", lambda: cache.with_name("rebuilt.so"))
    assert load_profile(artifact, 1, PATHS) is None


@pytest.mark.parametrize(
    "text",
    [
        "", "{", "null", "[1, 2]", '"text"', "{}", '{"version": 1}', '{"version": 1, "machines": []}',
        '{"version": 1, "machines": null}', '{"version": 99, "machines": {}}', "\x00\x01",
    ],
)  # fmt: skip
def test_a_damaged_cache_file_is_measured_again(fp32: Toy, cache: Path, text: str) -> None:
    """It is a cache: a machine that lost power while writing must not need a user who deletes files."""
    artifact = fp32.model.artifact
    path = store_profile(artifact, 1, SAMPLE)
    path.write_text(text, encoding="utf-8")
    assert load_profile(artifact, 1, PATHS) is None
    store_profile(artifact, 1, SAMPLE)
    assert load_profile(artifact, 1, PATHS) == SAMPLE


@pytest.mark.parametrize(
    "entry",
    [
        None, 3, [], {}, {"step_seconds": 1}, SAMPLE.to_dict() | {"exact_passes": "two"},
        SAMPLE.to_dict() | {"exact_passes": {"min_rows": 99, "boundary": None, "widths": None}},
        SAMPLE.to_dict() | {"step_seconds": {"one": 1}}, SAMPLE.to_dict() | {"step_seconds": {"1": None}},
        SAMPLE.to_dict() | {"paths": [1]},
        SAMPLE.to_dict() | {"paths": {"short": {}}},
        SAMPLE.to_dict()
        | {"paths": {name: {"seconds": 1, "shared_seconds": 0, "confidences": [0.5], "hits": []} for name in PATHS}},
        SAMPLE.to_dict()
        | {"paths": {name: {"seconds": 0, "shared_seconds": 0, "confidences": [], "hits": []} for name in PATHS}},
        SAMPLE.to_dict() | {"step_seconds": {}}, SAMPLE.to_dict() | {"step_seconds": {"1": 10**400}},
        SAMPLE.to_dict() | {"step_seconds": {"-5": 1, "1": 1}},
        SAMPLE.to_dict() | {"exact_passes": {"min_rows": 1.5, "boundary": None, "widths": None}},
        SAMPLE.to_dict() | {"exact_passes": {"min_rows": 2, "boundary": 64.5, "widths": None}},
        SAMPLE.to_dict() | {"exact_passes": {"min_rows": 2, "boundary": None, "widths": [0]}},
        SAMPLE.to_dict() | {"exact_passes": {"min_rows": 2, "boundary": None, "widths": ["x"]}},
        *(
            SAMPLE.to_dict() | {"paths": dict.fromkeys(PATHS, found)}
            for found in (
                {"seconds": 0.01, "shared_seconds": 5.0, "confidences": [], "hits": []},
                {"seconds": 0.01, "shared_seconds": 0.0, "confidences": [0.5], "hits": ["false"]},
            )
        ),
        SAMPLE.to_dict() | {"step_seconds": {"2": 0.1}}, SAMPLE.to_dict() | {"step_seconds": {"1": 0}},
        SAMPLE.to_dict() | {"step_seconds": {"1": 0.1, "2": float("nan")}},
    ],
)  # fmt: skip
def test_a_damaged_entry_is_measured_again(fp32: Toy, cache: Path, entry: object) -> None:
    """A profile without V(1) would crash the controller in the middle of a round."""
    artifact = fp32.model.artifact
    path = store_profile(artifact, 1, SAMPLE)
    data = json.loads(path.read_text(encoding="utf-8"))
    data["machines"] = dict.fromkeys(data["machines"], entry)
    path.write_text(json.dumps(data), encoding="utf-8")
    assert load_profile(artifact, 1, PATHS) is None


def test_a_model_measures_once_says_so_and_keeps_it(model: tuple[Model, list[str]], cache: Path, fp32: Toy) -> None:
    """Measured at every start, or measured in silence while the user waits."""
    loaded, said = model
    first = loaded.profile()
    assert len(said) == 1
    assert "measuring" in said[0]
    assert loaded.profile() == first
    assert load(fp32.folder, threads=1, notify=said.append).profile() == first
    assert len(said) == 1
    assert loaded.profile(refresh=True).step_seconds.keys() == first.step_seconds.keys()
    assert len(said) == 2


def test_a_cache_that_cannot_be_written_is_one_warning_and_no_more(model: tuple[Model, list[str]], cache: Path) -> None:
    """A read-only home must not keep anyone from generating."""
    shutil.rmtree(cache)  # what loading left there
    cache.write_text("a file where the folder should be")
    loaded, said = model
    assert loaded.generate("The wind", max_new_tokens=5, draft="auto").token_ids
    assert len([s for s in said if s.startswith("warning:")]) == 1
    assert load_profile(loaded.artifact, 1, PATHS) is None


def test_drafts_without_profile_do_not_measure(model: tuple[Model, list[str]], cache: Path) -> None:
    """Ten seconds before the first token of a plain generation."""
    loaded, said = model
    for draft in ("none", "prompt-lookup"):
        loaded.generate("The wind", max_new_tokens=3, draft=draft)
    loaded.generate("The wind", max_new_tokens=3, draft="early-exit", exit_layer=4)
    assert said == []
    assert not (cache / "profiles").exists()


def test_a_measured_profile_covers_rows_and_exits(toy: Toy) -> None:
    """A row count or an exit that the controller will ask for and not find."""
    paths = candidates(toy.model.artifact.manifest)
    found = measure(toy.model.sessions, [toy.prompt, toy.prompt[:9]], paths)
    assert set(found.step_seconds) == {1, 2, 3, 4, 5, 6, 7, 8, 12, 16}
    assert set(found.paths) == {f"early-exit:layer={k}" for k in (2, 4, 5, 6)}
    assert all(seconds > 0 for seconds in found.step_seconds.values())
    for each in found.paths.values():
        assert 0 <= each.shared_seconds < each.seconds
        assert len(each.confidences) == len(each.hits) == 80, "forty tokens after each of two texts"
        assert all(0 < c <= 1 + 1e-6 for c in each.confidences)
    assert found.verify_cost(1) == 1
    assert found.exact_passes == exact_passes(toy.model.sessions)


def test_agreement_of_exits_is_counted_on_the_models_own_text(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """A model whose last layer adds nothing: its last exit agrees always, if the right rows are compared."""
    spec = type(fp32.spec)(layers=4, late=0.0, seed=9)
    idle = make_toy(spec, precision="fp32", exit_layers=(1, 2, 3), hot_vocab=320)
    found = measure(idle.model.sessions, [idle.prompt], candidates(idle.model.artifact.manifest))
    agreement = [found.paths[f"early-exit:layer={k}"].agreement for k in (1, 2, 3, 4)]
    assert agreement[0] < 1.0
    assert agreement[1:] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("context", [16, 24, 40, 150])
def test_a_short_context_can_be_profiled(make_toy: Callable[..., Toy], fp32: Toy, context: int) -> None:
    """Probes at fixed positions beyond the context of a small model."""
    toy = make_toy(type(fp32.spec)(context=context, layers=2), precision="fp32")
    found = measure(toy.model.sessions, [toy.prompt, toy.prompt[:9]], candidates(toy.model.artifact.manifest))
    assert 1 in found.step_seconds
    assert found.exact_passes == exact_passes(toy.model.sessions)


def test_where_no_row_count_is_invariant_exact_is_refused(
    model: tuple[Model, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A promise that this machine cannot keep."""
    loaded, _ = model
    monkeypatch.setattr(measuring, "exact_passes", lambda sessions: None)
    with pytest.raises(RuntimeSetupError, match="exact cannot be promised"):
        loaded.generate("The", max_new_tokens=3, draft="none", exact=True)
    assert loaded.generate("The", max_new_tokens=3, draft="none").token_ids


def test_an_unwritable_cache_costs_one_measurement_and_one_warning(
    fp32: Toy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured again for every answer; and two measurements might disagree about exactness."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SELFSPEC_CACHE", str(tmp_path / "file"))
    said: list[str] = []
    model = load(fp32.folder, threads=1, notify=said.append)
    for _ in range(2):
        model.generate("The wind", draft="auto", exact=True, max_new_tokens=4)
    assert sum("measuring" in line for line in said) == 1
    assert sum("warning" in line for line in said) == 1


def test_a_profile_of_other_paths_is_measured_again(fp32: Toy, cache: Path) -> None:
    """A drafter was added or removed: a path that was never measured would be missing in the middle of a round."""
    artifact = fp32.model.artifact
    store_profile(artifact, 1, SAMPLE)
    assert load_profile(artifact, 1, (*PATHS, "new")) is None
    assert load_profile(artifact, 1, ("short",)) == SAMPLE, "two processes with other drafters would measure in turns"


@pytest.mark.parametrize(
    ("steps", "found"),
    [
        ({1: 1.0}, None),
        ({1: 1.0, 2: 1.1, 4: 1.3}, None),
        ({1: 1.0, 2: 0.95, 4: 1.3}, None),  # within what noise does
        ({1: 1.0, 2: 0.87}, (1, 2)),
        ({1: 1.0, 2: 1.4, 4: 1.2}, (2, 4)),
        ({4: 0.8, 2: 1.0, 1: 1.0}, (1, 4)),
    ],
)
def test_more_rows_never_cost_less(steps: dict[int, float], found: tuple[int, int] | None) -> None:
    """A profile said V(2) = .87 and was kept for good: the machine was busy while one row was timed."""
    assert falling_step(steps) == found


def test_a_disturbed_measurement_is_taken_again(
    model: tuple[Model, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, said = model
    names = [path.name for path in candidates(loaded.artifact.manifest)]
    paths = dict.fromkeys(names, SAMPLE.paths["short"])
    calm = replace(SAMPLE, paths=paths)
    results = [replace(calm, step_seconds={1: 1.0, 2: 0.5}), calm]
    monkeypatch.setattr("selfspec.runtime.model.falling_step", falling_step)
    monkeypatch.setattr("selfspec.runtime.model.measure", lambda *args: results.pop(0))
    assert loaded.profile() == calm == loaded.stored_profile()
    assert len(said) == 1


def test_a_measurement_that_stays_disturbed_is_used_told_and_not_kept(
    model: tuple[Model, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, said = model
    busy = replace(SAMPLE, step_seconds={1: 1.0, 2: 0.5})
    monkeypatch.setattr("selfspec.runtime.model.falling_step", falling_step)
    monkeypatch.setattr("selfspec.runtime.model.measure", lambda *args: busy)
    assert loaded.profile() == busy
    assert loaded.stored_profile() is None
    assert "2 rows seems to cost less than one over 1" in said[-1]


def test_every_kind_of_core_is_part_of_the_machine() -> None:
    """A phone lists big and little cores in any order: the last one alone would change the key from boot to boot."""
    big, little = "CPU part : 0xd4d\nFeatures : asimd i8mm fp", "CPU part : 0xd46\nFeatures : asimd fp"
    expected = ("0xd46 + 0xd4d", ("asimd", "i8mm"))
    assert parse_cpuinfo(f"{big}\n\n{little}\n") == parse_cpuinfo(f"{little}\n\n{big}\n") == expected
    assert parse_cpuinfo("model name : Fast CPU: two\nflags : sse avx2 fma") == ("Fast CPU: two", ("avx2",))
