"""Models with experts: what runs, what is read, and drafts that run fewer of them."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from numpy.typing import NDArray

from selfspec import Model, load
from selfspec.check.stored_weights import matrices_of
from selfspec.errors import UsageError
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.drafters.base import NoDrafter
from selfspec.runtime.drafters.fewer_experts import tried_experts
from selfspec.runtime.drafters.model_path import PathDrafter, Threshold
from selfspec.runtime.paths import FULL, HOT, DraftPath, exit_path
from selfspec.runtime.sampling import Sampling
from selfspec.runtime.stack import Floats, Plan

if TYPE_CHECKING:
    from tests.conftest import Tools, Toy

Doubles = NDArray[np.float64]
LAYERS = 4
ROWS = 48
FAMILIES = ("granitemoe", "mixtral", "olmoe", "qwen2_moe", "qwen3_moe")
ARMS = (("fp32", "ort"), ("int8", "ort"), ("int4", "ort"), ("int8", "native"), ("int4", "native"))
TOLERANCE = {"fp32": 1e-5, "int8": 2e-2, "int4": 2e-2}  # of the largest value; int8 activations are rounded


@pytest.fixture(scope="module", params=FAMILIES)
def family(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module", params=ARMS, ids=" ".join)
def arm(request: pytest.FixtureRequest) -> dict[str, str]:
    """Options of an export: precision and kernels."""
    precision, kernels = request.param
    if kernels == "native":
        request.getfixturevalue("native_kernels")
    return {"precision": precision, "kernels": kernels}


@pytest.fixture(scope="module")
def member(arm: dict[str, str], family: str, make_toy: Callable[..., Toy], tools: Tools) -> Toy:
    """Cut at every sublayer, so that experts run alone."""
    return make_toy(tools.spec(family=family, layers=LAYERS), partition="sublayer", hot_vocab=256, **arm)


@pytest.fixture(scope="module")
def olmoe(arm: dict[str, str], make_toy: Callable[..., Toy], tools: Tools) -> Toy:
    """Eight experts, four a token: enough for drafts with one, two and all."""
    return make_toy(tools.spec(family="olmoe", layers=6), exit_layers=(2, 4, 5), hot_vocab=256, **arm)


class NumpyExperts:
    """A sublayer with experts as its family's paper writes it, in float64: over the checkpoint's matrices, or over
    those of a quantised artifact."""

    def __init__(self, toy: Toy, tools: Tools, layer: int) -> None:
        manifest = toy.model.artifact.manifest
        assert manifest.model.moe is not None
        self._config, self._moe = manifest.model, manifest.model.moe
        prefix = f"model.layers.{layer}."
        weights = tools.fused(tools.weights(toy.spec))
        self._found = {n.removeprefix(prefix): w for n, w in weights.items() if n.startswith(prefix)}
        if manifest.quantization.bits < 32:
            stored = dict(matrices_of(toy.folder, manifest.units[2 * layer + 1].graph))
            count, d = self._moe.num_experts, self._config.hidden_size
            up, down = (stored[f"{prefix}mlp.experts.{name}_proj"] for name in ("gate_up", "down"))
            self._found["experts.gate_up_proj"] = up.reshape(count, -1, d)
            self._found["experts.down_proj"] = down.reshape(count, d, -1)
            if self._moe.shared_size:
                module = "mlp.shared_expert"
                halves = np.split(stored[f"{prefix}{module}.gate_up_proj.weight"], 2)
                for name, half in zip(("gate", "up"), halves, strict=True):
                    self._found[f"{module}.{name}_proj.weight"] = half
                self._found[f"{module}.down_proj.weight"] = stored[f"{prefix}{module}.down_proj.weight"]

    def _weight(self, *ends: str) -> Doubles:
        found = [w for name, w in self._found.items() if name.endswith(ends) and "shared" not in name]
        return np.asarray(found[-1], dtype=np.float64)

    def normed(self, x: Floats) -> Doubles:
        gain = self._found["post_attention_layernorm.weight"].astype(np.float64)
        return np.asarray(x / np.sqrt((x.astype(np.float64) ** 2).mean(-1, keepdims=True) + 1e-5) * gain)

    def order(self, x: Floats) -> NDArray[np.int64]:
        """[T, E] experts by falling logit, the lower index first where they are equal."""
        logits = self.normed(x) @ self._weight("mlp.gate.weight", "router.weight").T
        return np.argsort(-logits, axis=-1, kind="stable")

    def __call__(self, x: Floats, k: int) -> Doubles:
        normed, order = self.normed(x), self.order(x)[:, :k]
        logits = normed @ self._weight("mlp.gate.weight", "router.weight").T
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        odds /= odds.sum(-1, keepdims=True)
        gate_up, down = self._weight("experts.gate_up_proj"), self._weight("experts.down_proj")
        update = np.zeros_like(normed)
        for t, row in enumerate(normed):
            shares = odds[t, order[t]]
            shares = shares / shares.sum() if self._moe.normalize or self._moe.softmax == "selected" else shares
            for e, share in zip(order[t], shares, strict=True):
                update[t] += share * _gated(row, gate_up[e], down[e])
        if self._moe.shared_size:
            module = "mlp.shared_expert"
            gate, up, shared_down = (self._found[f"{module}.{name}_proj.weight"] for name in ("gate", "up", "down"))
            sigmoid = 1 / (1 + np.exp(-normed @ self._found["mlp.shared_expert_gate.weight"][0]))
            update += sigmoid[:, None] * np.stack(
                [_gated(row, np.concatenate([gate, up]), shared_down) for row in normed]
            )
        return np.asarray(x + self._config.residual_multiplier * update)


def _gated(x: Doubles, gate_up: Any, down: Any) -> Any:
    gate, up = np.split(gate_up @ x, 2)
    return down @ (gate / (1 + np.exp(-gate)) * up)


def most(toy: Toy) -> int:
    moe = toy.model.artifact.manifest.model.moe
    assert moe is not None
    return moe.experts_per_token


def hidden_rows(toy: Toy, rows: int = ROWS, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((rows, toy.spec.hidden)).astype(np.float32)


def run_experts(model: Model, layer: int, x: Floats, experts: int | None = None) -> tuple[Floats, set[int]]:
    """(what the layer's experts make of ``x``, those that ran)."""
    stack = Conversation(model.sessions).stack
    with stack.watch_experts() as ran:
        out = stack.run(Plan((2 * layer + 1,), experts), x, 0)
    return out, {*ran[layer]}


def test_a_sublayer_computes_its_formula_with_every_number_of_experts(member: Toy, tools: Tools) -> None:
    """Gate and up exchanged, weights normalised or not, a padded width, a shared expert without its gate. The rows of
    one pass run every expert."""
    layer, x = tools.sparse_layers(member.spec)[-1], hidden_rows(member)
    reference, tolerance = NumpyExperts(member, tools, layer), TOLERANCE[member.model.artifact.manifest.precision]
    moe = member.model.artifact.manifest.model.moe
    assert moe is not None
    for k in range(1, moe.experts_per_token + 1):
        found, ran = run_experts(member.model, layer, x, k)
        expected = reference(x, k)
        assert np.abs(found - expected).max() <= tolerance * np.abs(expected).max(), f"{k} experts"
        assert ran == set(reference.order(x)[:, :k].ravel().tolist())
    assert ran == set(range(moe.num_experts)), "an expert that no row of this test runs"


def test_the_models_own_number_is_the_default(member: Toy, tools: Tools) -> None:
    layer, x = tools.sparse_layers(member.spec)[0], hidden_rows(member)
    own, all_of_them = (run_experts(member.model, layer, x, k)[0] for k in (None, most(member)))
    np.testing.assert_array_equal(own, all_of_them)
    assert not np.array_equal(own, run_experts(member.model, layer, x, 1)[0])


@pytest.mark.parametrize("experts", [None, 1, 2])
def test_a_row_has_its_bits_whatever_stands_beside_it(member: Toy, tools: Tools, experts: int | None) -> None:
    """With native kernels from one row on, with ONNX Runtime's from two, and however many rows an expert is given:
    ``exact`` rests on it. It is not so of MoE and QMoE by themselves, which add up a row's experts in an order that
    depends on the other rows, and on some processors multiply the only row of an expert by a kernel of its own."""
    layer, x = tools.sparse_layers(member.spec)[0], hidden_rows(member, 64)
    padding = np.zeros((1 if member.model.artifact.manifest.kernels is None else 0, x.shape[1]), dtype=np.float32)
    passes = [np.concatenate([row[None], padding]) for row in x]
    alone = np.concatenate([run_experts(member.model, layer, rows, experts)[0][:1] for rows in passes])
    for count in (2, 3, 5, 8, 16, 62):
        starts = range(0, 62, count)
        found = [run_experts(member.model, layer, x[i : i + max(2, min(count, 62 - i))], experts)[0] for i in starts]
        np.testing.assert_array_equal(np.concatenate(found)[:62], alone[:62], err_msg=f"{count} rows")


def test_of_equal_logits_the_lower_index_runs(member: Toy, tools: Tools) -> None:
    """Rows of zeros have a norm of zeros, and every logit is zero."""
    zeros = np.zeros((3, member.spec.hidden), dtype=np.float32)
    for k in range(1, most(member) + 1):
        assert run_experts(member.model, tools.sparse_layers(member.spec)[0], zeros, k)[1] == set(range(k))


def poisoned(toy: Toy, tools: Tools, folder: Path, layer: int, spared: set[int]) -> Model:
    """A copy whose experts of ``layer`` hold nothing but NaN, those that are ``spared`` excepted."""
    shutil.copytree(toy.folder, folder)
    moe = toy.model.artifact.manifest.model.moe
    assert moe is not None
    data = bytearray((folder / "weights.bin").read_bytes())
    places = {s for (_, name), s in tools.stored(folder).items() if f"layers.{layer}.mlp.experts." in name}
    assert places
    for place in places:
        each = place.length // moe.num_experts
        for e in set(range(moe.num_experts)) - spared:
            start = place.offset + e * each
            data[start : start + each] = b"\xff" * each
    (folder / "weights.bin").write_bytes(data)
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"]["weights.bin"]["sha256"] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest))
    return load(folder, threads=toy.model.sessions.threads)


@pytest.mark.parametrize("experts", [None, 1])
def test_experts_that_do_not_run_are_not_read(member: Toy, tools: Tools, tmp_path: Path, experts: int | None) -> None:
    """All others are NaN, and nothing of that is to be seen: neither plain nor with fewer experts. That the poison
    works is shown by a row that needs it."""
    layer, x = tools.sparse_layers(member.spec)[-1], hidden_rows(member, 1, seed=5)
    clean, ran = run_experts(member.model, layer, x, experts)
    model = poisoned(member, tools, tmp_path / "poisoned", layer, ran)
    found, also_ran = run_experts(model, layer, x, experts)
    np.testing.assert_array_equal(found, clean)
    assert also_ran == ran
    assert len(ran) == (experts or most(member))
    wide, _ = run_experts(model, layer, hidden_rows(member))
    assert np.isnan(wide).any()


ONE_EXPERT = DraftPath("one expert", Plan.layers(0, 6, 1), FULL, 0)

DRAFTS: dict[str, Callable[[int], PathDrafter]] = {
    "one expert": lambda k: PathDrafter(ONE_EXPERT, 4, rule=Threshold(0.0)),
    "half of them": lambda k: PathDrafter(DraftPath("fewer", Plan.layers(0, 6, k // 2), FULL, 0), 3),
    "all layers, hot head": lambda k: PathDrafter(DraftPath("fewer", Plan.layers(0, 6, k // 2), HOT, 0), 3),
    "exit": lambda k: PathDrafter(exit_path(4), 3, rule=Threshold(0.0)),
    "exit with one expert": lambda k: PathDrafter(
        DraftPath("fewer", Plan.layers(0, 4, 1), HOT, 0), 3, rule=Threshold(0.0)
    ),
}


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.8, seed=4)], ids=["greedy", "warm"])
def test_text_is_the_same_with_however_few_experts_drafts_run(olmoe: Toy, sampling: Sampling) -> None:
    """A row that a draft wrote with fewer experts and that verification did not overwrite."""
    plain = olmoe.run(NoDrafter(), sampling=sampling, count=70)
    drafted = {name: olmoe.run(make(most(olmoe)), sampling=sampling, count=70) for name, make in DRAFTS.items()}
    for name, run in drafted.items():
        assert run.tokens == plain.tokens, name
    assert 0 < sum(r.accepted for r in drafted.values()) < sum(r.drafted for r in drafted.values())
    for (keys, values), (same_keys, same_values) in zip(
        *([run.conversation.kv.rows(layer) for layer in range(6)] for run in (plain, drafted["one expert"])),
        strict=True,
    ):
        np.testing.assert_array_equal(keys, same_keys)
        np.testing.assert_array_equal(values, same_values)


def test_a_draft_with_all_experts_is_always_right(olmoe: Toy) -> None:
    run = olmoe.run(
        PathDrafter(DraftPath("fewer", Plan.layers(0, 6, most(olmoe)), FULL, 0), 4, rule=Threshold(0.0)), count=60
    )
    assert run.drafted == run.accepted > 0


def test_drafts_with_fewer_experts_may_be_sampled(olmoe: Toy) -> None:
    """It draws and commits as usual; that the distribution is kept is shown for all drafters alike elsewhere."""
    sampling = Sampling(temperature=0.8, seed=4)
    run = olmoe.run(PathDrafter(ONE_EXPERT, 4, sampling=sampling), sampling=sampling, count=40)
    assert len(run.tokens) == 40
    assert run.drafted > 0


def test_rounds_count_each_expert_once_in_each_layer(olmoe: Toy) -> None:
    """Of a plain step k in each layer; of a round that drafts, what draft and verification run between them."""
    k, moe = most(olmoe), olmoe.model.artifact.manifest.model.moe
    assert moe is not None
    plain = olmoe.run(NoDrafter(), count=10, exact=False)
    assert [r.experts for r in plain.rounds] == [k * len(moe.layers)] * 9
    drafted = olmoe.run(PathDrafter(ONE_EXPERT, 4, rule=Threshold(0.0)), count=20, exact=False)
    seen = [r.experts for r in drafted.rounds if r.num_drafted]
    assert all(k * len(moe.layers) <= n <= moe.num_experts * len(moe.layers) for n in seen)
    assert max(seen) > k * len(moe.layers)


def test_a_draft_that_leaves_no_expert_out_begins_the_verification(make_toy: Callable[..., Toy], tools: Tools) -> None:
    """Its rows are the target's: with as many experts as the model runs, or before the first layer that has some."""
    toy = make_toy(tools.spec(family="qwen3_moe", layers=6), precision="fp32", exit_layers=(1, 2), hot_vocab=256)
    manifest = toy.model.artifact.manifest
    assert manifest.model.moe is not None and manifest.model.moe.layers == (1, 3, 5)  # noqa: PT018

    def shared(draft: str) -> int:
        conversation = toy.conversation()
        conversation.tokens.append(int(conversation.prefill([5, 6, 7]).argmax()))
        prefix = toy.model.drafter(draft, conversation).propose(conversation, 2).prefix
        return 0 if prefix is None else prefix.sublayer

    assert shared("early-exit:layer=1,experts=1") == 2
    assert shared("early-exit:layer=2,experts=4") == 4
    assert shared("early-exit:layer=2,experts=1") == 2, "the first layer has no experts, and the artifact is cut there"
    assert shared("fewer-experts:experts=4") == 12
    assert shared("fewer-experts:experts=2") == 2


def test_where_one_expert_runs_there_is_none_to_leave_out(make_toy: Callable[..., Toy], tools: Tools) -> None:
    toy = make_toy(tools.spec(family="mixtral", layers=2, config={"num_experts_per_tok": 1}), precision="fp32")
    with pytest.raises(UsageError, match="runs one expert a token, so there is none to leave out"):
        toy.model.stream("a", draft="fewer-experts")


def test_the_default_is_a_quarter_of_the_experts(olmoe: Toy) -> None:
    def plan(draft: str) -> Plan:
        drafter = olmoe.model.drafter(draft, olmoe.conversation())
        assert isinstance(drafter, PathDrafter)
        return drafter.path.plan

    assert plan("fewer-experts") == Plan.layers(0, 6, 1)
    assert plan("fewer-experts:experts=3") == Plan.layers(0, 6, 3)
    assert plan("early-exit:layer=4") == Plan.layers(0, 4)
    assert plan("early-exit:layer=4,experts=2") == Plan.layers(0, 4, 2)
    assert plan("early-exit:experts=2").experts == 2


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"draft": "fewer-experts", "draft_experts": 0}, "`draft_experts` 0: it must be between 1 and 4"),
        ({"draft": "fewer-experts", "draft_experts": 5}, "`draft_experts` 5: it must be between 1 and 4"),
        ({"draft": "early-exit", "draft_experts": -1}, "`draft_experts` -1: it must be between 1 and 4"),
        ({"draft": "fewer-experts", "draft_experts": True}, "`draft_experts` True: it must be a whole number"),
        (
            {"draft": "prompt-lookup", "draft_experts": 1},
            "`draft_experts` has no effect with the drafter prompt-lookup",
        ),
        ({"draft": "auto", "draft_experts": 1}, "`draft_experts` has no effect with the drafter auto"),
        ({"draft": "fewer-experts", "exit_layer": 2}, "`exit_layer` has no effect with the drafter fewer-experts"),
        ({"draft": NoDrafter(), "draft_experts": 1}, "no effect on a drafter of your own"),
    ],
)
def test_options_that_cannot_work_are_refused(olmoe: Toy, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence.replace("(", r"\(")):
        olmoe.model.stream("a", **options)


@pytest.mark.parametrize("options", [{"draft": "fewer-experts"}, {"draft": "early-exit", "draft_experts": 1}])
def test_a_dense_model_has_no_experts_to_leave_out(fp32: Toy, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"\(llama\) has no experts"):
        fp32.model.stream("a", **options)
    with pytest.raises(UsageError, match="a pass with 1 experts"):
        fp32.conversation().stack.run(Plan.layers(0, 2, 1), np.zeros((1, 64), dtype=np.float32), 0)


def test_a_number_of_experts_that_the_model_lacks_never_reaches_a_kernel(olmoe: Toy) -> None:
    for experts in (0, -1, most(olmoe) + 1):
        with pytest.raises(UsageError, match="experts a token"):
            olmoe.conversation().stack.run(Plan.layers(0, 6, experts), hidden_rows(olmoe, 1), 0)


def test_the_profile_measures_drafts_with_fewer_experts(olmoe: Toy) -> None:
    """One, a quarter and half of four are 1 and 2: measured, kept, and read back as they were."""
    profile = olmoe.model.profile()
    assert tried_experts(olmoe.model.artifact.manifest.model) == (1, 2)
    for name in ("fewer-experts:experts=1", "fewer-experts:experts=2"):
        found = profile.paths[name]
        assert found.seconds > 0
        assert len(found.hits) > 20
    assert olmoe.model.stored_profile() == profile
