"""Artifacts with graphs beside the usual ones: overlapping units, and a head whose weights lie in its own file."""

from __future__ import annotations

import hashlib
import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir
import pytest

from selfspec import Model, load
from selfspec.errors import ArtifactError, UsageError
from selfspec.models.graph import GraphBuilder
from selfspec.models.interface import HIDDEN, logits_name
from selfspec.models.tensors import Segment
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.sessions import Sessions
from selfspec.runtime.stack import Floats, Plan

if TYPE_CHECKING:
    from tests.conftest import Toy

    ToyMaker = Callable[..., Toy]

RANGES = ((7, 9), (20, 23))
FILE, GRAPH = "heads/short.bin", "graphs/cpu/short.onnx"


def seal(folder: Path, change: Callable[[dict[str, Any]], object], *names: str) -> None:
    """Change the manifest, and list ``names`` with what they hold now."""
    path = folder / "manifest.json"
    data = json.loads(path.read_text(encoding="utf-8"))
    change(data)
    for name in names:
        raw = (folder / name).read_bytes()
        data["files"][name] = {"size": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}
    path.write_text(json.dumps(data), encoding="utf-8")


def with_head(folder: Path, matrix: Floats, location: str = FILE) -> None:
    """Add a head that multiplies by ``matrix`` [d, 5], whose bytes lie behind 64 others in a file of their own."""
    (folder / "heads").mkdir()
    (folder / FILE).write_bytes(bytes(64) + matrix.tobytes())
    g = GraphBuilder("short")
    hidden = g.input(HIDDEN, ir.DataType.FLOAT, [1, "rows", len(matrix)])
    weight = g.weight("short", Segment("float32", matrix.shape, 64), location)
    product = g.op("MatMul", [hidden, weight])
    edges = np.cumsum([0, *(b - a for a, b in RANGES)]).tolist()
    for index, (a, b) in enumerate(itertools.pairwise(edges)):
        part = g.op("Gather", [product, g.constant(list(range(a, b)))], {"axis": 2})
        g.output(logits_name(index), part, [1, "rows", b - a])
    g.save(folder / GRAPH)

    def change(data: dict[str, Any]) -> None:
        data["weights"].append(FILE)
        data["draft_heads"].append({"name": "short", "graph": GRAPH, "ranges": RANGES})

    seal(folder, change, FILE, GRAPH)


@pytest.fixture
def folder(fp32: Toy, tmp_path: Path) -> Path:
    return Path(shutil.copytree(fp32.folder, tmp_path / "a"))


@pytest.fixture
def matrix(fp32: Toy) -> Floats:
    return np.random.default_rng(0).standard_normal((fp32.spec.hidden, 5)).astype(np.float32)


def opened(folder: Path) -> Model:
    return load(folder, threads=1, notify=lambda line: None)


def test_a_listed_head_drafts_with_the_weights_of_its_own_file(folder: Path, matrix: Floats, fp32: Toy) -> None:
    """Its columns are its ids, in order; the target's head and text are what they were."""
    with_head(folder, matrix)
    model = opened(folder)
    stack = model.conversation().stack
    hidden = np.random.default_rng(1).standard_normal((3, len(matrix))).astype(np.float32)
    assert stack.draft_ids("short").tolist() == [7, 8, 20, 21, 22]
    np.testing.assert_allclose(stack.draft_logits("short", hidden), hidden @ matrix, rtol=1e-4, atol=1e-4)
    with pytest.raises(UsageError, match=r"no head 'long' .*full, hot, short\."):
        stack.draft_ids("long")
    ids = list(fp32.prompt)
    plain, other = ([t.id for t in m.stream_ids(ids, max_new_tokens=8, draft="none")] for m in (fp32.model, model))
    assert plain == other


def test_files_of_heads_are_checked_as_all_others(folder: Path, matrix: Floats) -> None:
    """A byte of it, its end, and the file itself."""
    with_head(folder, matrix)
    path, data = folder / FILE, (folder / FILE).read_bytes()
    for damaged in (bytes([data[0] ^ 1]) + data[1:], data[:-1]):
        path.write_bytes(damaged)
        with pytest.raises(ArtifactError, match=r"short\.bin"):
            opened(folder)
    path.unlink()
    with pytest.raises(ArtifactError, match=r"short\.bin is missing"):
        opened(folder)


@pytest.mark.parametrize("location", ["heads/other.bin", "tokenizer.json", "../weights.bin"])
def test_a_head_takes_weights_from_listed_files_only(folder: Path, matrix: Floats, location: str) -> None:
    """What ONNX Runtime would map as it is, were it in the folder."""
    with_head(folder, matrix, location)
    (folder / "heads/other.bin").write_bytes(bytes(4096))
    stack = opened(folder).conversation().stack
    with pytest.raises(ArtifactError, match=r"short\.onnx is not loaded: .*only weights\.bin, heads/short\.bin"):
        stack.draft_logits("short", np.zeros((1, len(matrix)), dtype=np.float32))


def test_both_partitions_in_one_artifact(make_toy: ToyMaker) -> None:
    """It runs the few blocks where they fit, and single sublayers where they do not, with the same bits."""
    options: dict[str, Any] = {"precision": "int4", "kernels": "native", "exit_layers": (2, 4), "hot_vocab": 256}
    exits, both = make_toy(**options), make_toy(**options, partition="both")
    manifest, layers = both.model.artifact.manifest, both.spec.layers
    assert manifest.exit_layers == (2, 4)
    assert len(manifest.units) == 3 + 2 * layers
    assert (both.folder / "weights.bin").read_bytes() == (exits.folder / "weights.bin").read_bytes()
    fresh = load(both.folder, threads=1, notify=lambda line: None)
    stacks = exits.conversation(exact=False).stack, Conversation(fresh.sessions).stack
    hidden = stacks[0].embed(np.asarray([5, 77, 130]))
    whole = [stack.run(Plan.layers(0, layers), hidden, 0) for stack in stacks]
    assert np.array_equal(whole[0], whole[1])
    skipping = Plan(tuple(i for i in range(2 * layers) if i not in (5, 6)))
    with pytest.raises(UsageError, match="sublayer 4 cannot run alone"):
        stacks[0].run(skipping, hidden, 0)
    assert stacks[1].run(skipping, hidden, 0).shape == hidden.shape


def test_opening_makes_no_session_that_is_not_on_the_usual_path(
    make_toy: ToyMaker, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy = make_toy(precision="int4", kernels="native", exit_layers=(2, 4), hot_vocab=256, partition="both")
    sessions, asked = Sessions(toy.model.artifact, 1), list[str]()
    monkeypatch.setattr(sessions, "get", asked.append)
    sessions.load_all()
    assert [Path(graph).stem for graph in asked] == [
        "embed", "block_000_002", "block_002_004", "block_004_006", "head_hot", "head_rest",
    ]  # fmt: skip


def test_overlapping_blocks_are_refused_where_weights_are_copied(make_toy: ToyMaker) -> None:
    with pytest.raises(UsageError, match=r"`partition` both needs native kernels.*twice in memory"):
        make_toy(precision="fp32", partition="both")
