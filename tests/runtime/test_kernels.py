"""Native kernels in the runtime: found, refused in a sentence, and every row alike, so that exact costs nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from selfspec import load
from selfspec.cli.main import main
from selfspec.errors import ArtifactError, KernelSetupError
from selfspec.models.manifest import KernelFacts
from selfspec.runtime.drafters.base import Drafter, NoDrafter
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.drafters.prompt_lookup import PromptLookup
from selfspec.runtime.invariance import exact_passes
from selfspec.runtime.kernels import kernel_library
from selfspec.runtime.paths import exit_path
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stack import AS_THEY_COME, Floats

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

FACTS = KernelFacts("selfspec-kernels", 1)
FAMILIES = (
    "gemma3_text", "granite", "granitemoe", "llama", "mixtral", "olmo2", "olmoe", "qwen2", "qwen2_moe", "qwen3",
    "qwen3_moe", "smollm3",
)  # fmt: skip
DRAFTERS: dict[str, Callable[[], Drafter]] = {
    "early exit 2": lambda: PathDrafter(exit_path(2), 4, rule=Threshold(0.0)),
    "early exit 5": lambda: PathDrafter(exit_path(5), 7, rule=Threshold(0.1)),
    "all layers": lambda: PathDrafter(exit_path(6), 3, rule=Threshold(0.0)),
    "prompt lookup": lambda: PromptLookup(),
}


@pytest.fixture
def native(native_kernels: None, make_toy: Callable[..., Toy]) -> Toy:
    return make_toy(precision="int4", kernels="native", exit_layers=(2, 4, 5), hot_vocab=250)


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=["int8", "int4"])
def member(
    request: pytest.FixtureRequest, family: str, native_kernels: None, make_toy: Callable[..., Toy], tools: Tools
) -> Toy:
    return make_toy(
        tools.spec(family=family), precision=request.param, kernels="native", exit_layers=(2, 4, 5), hot_vocab=256
    )  # fmt: skip


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)], ids=["greedy", "warm"])
def test_text_is_the_same_whatever_drafts_without_exact(member: Toy, sampling: Sampling) -> None:
    """What ONNX Runtime's 4-bit kernels cannot promise: a row alone has the bits it has among others."""
    plain = member.run(NoDrafter(), sampling=sampling, count=70, exact=False)
    drafted = {name: member.run(make(), sampling=sampling, count=70, exact=False) for name, make in DRAFTERS.items()}
    for name, run in drafted.items():
        assert run.tokens == plain.tokens, name
    runs = drafted.values()
    assert 0 < sum(r.accepted for r in runs) < sum(r.drafted for r in runs), "no draft was right, or none was wrong"
    assert len(set(plain.tokens)) > 8, "a text this even would pass whatever the engine did"


def test_exact_costs_nothing(member: Toy) -> None:
    """No padding, no cut, passes of any width: found by trying, as for other kernels."""
    assert exact_passes(member.model.sessions) == AS_THEY_COME


def test_other_kernels_are_not_taken_at_their_word(toy: Toy) -> None:
    """That passes as they come are alike is promised by native kernels only: not all widths can be tried."""
    assert exact_passes(toy.model.sessions) != AS_THEY_COME


def test_hot_ranges_end_at_tiles(native: Toy) -> None:
    """250 rows were asked for; tiles hold eight."""
    manifest = native.model.artifact.manifest
    assert manifest.head.hot_ranges[0] == (0, 256)
    assert manifest.kernels == FACTS
    assert manifest.quantization.block_size == 32


def test_every_family_computes_nearly_what_its_floats_do(
    family: str, native_kernels: None, make_toy: Callable[..., Toy], tools: Tools
) -> None:
    """A window, a norm of q and k or a layout misread gives fluent nonsense that every drafter agrees with: logits of
    eight bits must be as near to those of floats as with ONNX Runtime's kernels. Of experts the middle row, because one
    whose last expert is another one by a hair's breadth is far off with either."""
    spec, ids = tools.spec(family=family), np.random.default_rng(5).integers(2, 320, 60)

    def logits(precision: str, kernels: str) -> Floats:
        options: dict[str, Any] = {"exit_layers": (2, 4, 5), "hot_vocab": 256}
        toy = make_toy(spec, precision=precision, kernels=kernels, **options)
        conversation = toy.conversation(exact=False)
        stack = conversation.stack
        return stack.logits(stack.run(conversation.full_plan, stack.embed(ids), 0))

    floats = logits("fp32", "ort")
    over_rows = np.median if family in tools.moe_families else np.mean
    native, ort = (float(over_rows(np.abs(logits("int8", kernels) - floats).mean(-1))) for kernels in ("native", "ort"))
    assert 0 < native < 1.5 * ort


# What is missing or does not fit.


def test_without_the_library_one_sentence_says_what_to_do(
    native: Toy, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "selfspec_kernels", None)
    assert main(["generate", str(native.folder), "-p", "x", "-t", "1"]) == 1
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for words in ("needs selfspec-kernels", "pip install ./kernels", "--kernels ort"):
        assert words in captured.err


@pytest.mark.usefixtures("native_kernels")
def test_a_library_that_lacks_an_operator_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime would only say that it does not know the operator."""
    import selfspec_kernels

    for older in (lambda: ("MatMulTiles",), None):
        monkeypatch.setattr(selfspec_kernels, "operators", older)
        if older is None:
            monkeypatch.delattr(selfspec_kernels, "operators")
        with pytest.raises(KernelSetupError, match=r"lacks the operator SparseMLPTiles.*pip install ./kernels"):
            kernel_library(FACTS)


@pytest.mark.usefixtures("native_kernels")
def test_a_library_of_another_layout_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would read scales as codes."""
    import selfspec_kernels

    monkeypatch.setattr(selfspec_kernels.tiles, "LAYOUT", 2)
    with pytest.raises(KernelSetupError, match=r"layout 1 of selfspec-kernels, and the installed one reads 2"):
        kernel_library(FACTS)


@pytest.mark.usefixtures("native_kernels")
@pytest.mark.parametrize("name", ["library_path", "_library"])
def test_a_package_without_its_library_is_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Installed without a compiler, damaged, or told to use what this processor lacks: the package's own words, in a
    sentence, whichever of its functions finds it."""
    import selfspec_kernels

    def missing() -> Path:
        raise selfspec_kernels.KernelError("it has no library.")

    monkeypatch.setattr(selfspec_kernels, name, missing)
    with pytest.raises(KernelSetupError, match=r"selfspec-kernels cannot run here: it has no library; .*--kernels ort"):
        kernel_library(FACTS)


def changed(native: Toy, folder: Path, **facts: Any) -> Path:
    """A copy of the artifact whose manifest says something else of its kernels."""
    folder.mkdir()
    for file in native.folder.rglob("*"):
        if file.is_file():
            target = folder / file.relative_to(native.folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(file.read_bytes())
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["kernels"] = manifest["kernels"] | facts if facts else None
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return folder


@pytest.mark.parametrize("name", ["os", "selfspec-kernels2", "../evil.so", ""])
def test_no_other_library_is_ever_loaded(native: Toy, tmp_path: Path, name: str) -> None:
    """An artifact by a stranger must not choose what is imported or mapped."""
    with pytest.raises(ArtifactError, match="no kernels of the name"):
        load(changed(native, tmp_path / "a", name=name), threads=1)


def test_another_layout_is_refused(native: Toy, tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="in layout 7 of selfspec-kernels, and this selfspec reads layout 1"):
        load(changed(native, tmp_path / "a", layout=7), threads=1)


def test_graphs_that_need_kernels_the_manifest_does_not_name_are_refused(native: Toy, tmp_path: Path) -> None:
    """ONNX Runtime's sentence on an unknown operator, as ours and without noise."""
    with pytest.raises(ArtifactError, match="cannot be loaded by ONNX Runtime"):
        load(changed(native, tmp_path / "a"), threads=1)
