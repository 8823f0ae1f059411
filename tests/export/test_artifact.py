"""Export as a whole: the folder is complete or not there, weights lie once and aligned, graphs hold none of them."""

from __future__ import annotations

import errno
import hashlib
import itertools
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ml_dtypes
import numpy as np
import onnx_ir as ir
import pytest
from safetensors.numpy import load_file, save_file

from selfspec import load
from selfspec.errors import ArtifactError, CheckpointError, SelfSpecError, UsageError
from selfspec.export import artifact as exporter
from selfspec.export.artifact import ExportOptions, export_model
from selfspec.export.blocks import Floats
from selfspec.export.checkpoint import SafetensorsCheckpoint
from selfspec.export.graphs import cut, default_exit_layers
from selfspec.export.source import open_model
from selfspec.export.weights_file import WeightsFile
from selfspec.models.manifest import PAD_ROWS, Manifest
from selfspec.models.tensors import Segment, StoredTensor
from selfspec.runtime.artifact import open_artifact

if TYPE_CHECKING:
    from tests.conftest import Stored, Tools, Toy, ToySpec


@pytest.fixture
def spec(tools: Tools) -> ToySpec:
    return tools.spec(layers=2, hidden=32, ff=64, heads=2, kv_heads=1)


@pytest.fixture
def source(tools: Tools, spec: ToySpec, tmp_path: Path) -> Path:
    return tools.write(tmp_path / "in" / "model", spec)


def listing(folder: Path) -> list[str]:
    return sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*"))


# The partition.


@pytest.mark.parametrize(
    ("layers", "expected"),
    [(30, (15, 20, 22, 25)), (18, (9, 12, 13, 15)), (6, (3, 4, 5)), (4, (2, 3)), (2, (1,)), (1, ())],
)
def test_default_exits_are_four_fractions_rounded_down(layers: int, expected: tuple[int, ...]) -> None:
    """Duplicates, 0 or L among them would make empty blocks."""
    assert default_exit_layers(layers) == expected
    assert cut(layers, None, "exits")[1] == expected


def test_exits_are_the_cuts() -> None:
    """By hand: five layers cut at 2 and 4. Order and repetition on the command line do not matter."""
    units, exits = cut(5, (4, 2, 4), "exits")
    assert exits == (2, 4)
    assert [(u.graph, u.start, u.stop) for u in units] == [
        ("graphs/cpu/block_000_002.onnx", 0, 4),
        ("graphs/cpu/block_002_004.onnx", 4, 8),
        ("graphs/cpu/block_004_005.onnx", 8, 10),
    ]
    assert [(u.start, u.stop) for u in cut(5, (), "exits")[0]] == [(0, 10)]


def test_sublayers_are_cut_everywhere() -> None:
    """Two graphs a layer, exits on any layer, and names that sort as they run."""
    units, exits = cut(3, None, "sublayer")
    assert [(u.start, u.stop) for u in units] == [(i, i + 1) for i in range(6)]
    assert exits == (1, 2)
    assert [Path(u.graph).stem for u in units][:3] == ["layer_000_attention", "layer_000_mlp", "layer_001_attention"]
    assert len({u.graph for u in units}) == 6


@pytest.mark.parametrize("layer", [0, -1, 5, 99])
def test_an_impossible_exit_is_refused_with_the_bounds(layer: int) -> None:
    """An empty block, or one beyond the model."""
    with pytest.raises(UsageError, match=rf"`exit_layers` {layer}: .*between 1 and 4"):
        cut(5, (2, layer), "exits")


def test_sublayer_blocks_and_exit_layers_exclude_each_other() -> None:
    """An option that is silently ignored."""
    with pytest.raises(UsageError, match=r"`partition` sublayer .*`exit_layers`"):
        cut(5, (2,), "sublayer")


# Options.


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"precision": "int3"}, "unknown precision 'int3': known are fp32, int4, int8"),
        ({"precision": "fp16"}, "unknown precision"),
        ({"block_size": 48}, "`block_size` 48"),
        ({"partition": "layers"}, "unknown partition 'layers'"),
        ({"kernels": "cuda"}, "unknown kernels 'cuda': known are auto, native, ort"),
        ({"kernels": "native", "precision": "fp32"}, "`kernels` native .*`precision` fp32"),
        ({"kernels": "native", "block_size": 64}, "`kernels` native has blocks of 32; leave `block_size` 64 out"),
    ],
)
def test_options_that_cannot_work_are_refused_at_once(options: dict[str, Any], named: str) -> None:
    """Found after the download."""
    with pytest.raises(UsageError, match=named) as caught:
        ExportOptions(**options)
    assert caught.value.parameter in options


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"exit_layers": (7,)}, "`exit_layers` 7"),
        ({"hot_vocab": 1000}, "`hot_vocab` 1000"),
        ({"block_size": 64}, r"`block_size` 64 does not divide the 32 columns of .*use 32"),
    ],
)
def test_options_that_do_not_fit_the_model_leave_nothing(
    tools: Tools, source: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    """A half-written folder, or a traceback from a reshape."""
    with pytest.raises(UsageError, match=named) as caught:
        tools.export(source, tmp_path / "out", **options)
    assert [caught.value.parameter] == list(options)
    assert listing(tmp_path) == listing_of_source(tmp_path)


def listing_of_source(root: Path) -> list[str]:
    return sorted(["in", *(f"in/{name}" for name in listing(root / "in"))])


# Whole or not at all.


def full_disk(after: int) -> Callable[[WeightsFile, bytes], None]:
    original, calls = WeightsFile._append, itertools.count()

    def append(writer: WeightsFile, data: bytes) -> None:
        if next(calls) == after:
            raise OSError(errno.ENOSPC, "No space left on device")
        original(writer, data)

    return append


def broken_read(after: int) -> Callable[..., Floats]:
    original, calls = SafetensorsCheckpoint.read, itertools.count()

    def read(checkpoint: SafetensorsCheckpoint, name: str, start: int, stop: int) -> Any:
        if next(calls) == after:
            raise CheckpointError(f"{name} cannot be read")
        return original(checkpoint, name, start, stop)

    return read


@pytest.mark.parametrize("after", [0, 9, 30])
def test_a_full_disk_leaves_nothing_and_is_one_sentence(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Half an artifact that a later run takes for a whole one, or hidden gigabytes beside it."""
    monkeypatch.setattr(WeightsFile, "_append", full_disk(after))
    with pytest.raises(ArtifactError, match=r"out cannot be written \(the disk is full\); nothing was left") as caught:
        tools.export(source, tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert listing(tmp_path) == listing_of_source(tmp_path)


@pytest.mark.parametrize("after", [0, 5])
def test_a_checkpoint_that_breaks_midway_leaves_nothing(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: int
) -> None:
    """Its own sentence must come through, and nothing else."""
    monkeypatch.setattr(SafetensorsCheckpoint, "read", broken_read(after))
    with pytest.raises(CheckpointError, match="cannot be read"):
        tools.export(source, tmp_path / "out")
    assert listing(tmp_path) == listing_of_source(tmp_path)


def test_an_interrupted_export_leaves_nothing(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C is no Exception."""

    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(exporter, "write_graphs", interrupted)
    with pytest.raises(KeyboardInterrupt):
        tools.export(source, tmp_path / "out")
    assert listing(tmp_path) == listing_of_source(tmp_path)


def test_folders_made_for_a_failed_export_are_removed_too(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """'Nothing was left behind' includes the output's parents."""
    monkeypatch.setattr(WeightsFile, "_append", full_disk(3))
    with pytest.raises(ArtifactError):
        tools.export(source, tmp_path / "new" / "deeper" / "out")
    assert listing(tmp_path) == listing_of_source(tmp_path)


def test_an_output_that_exists_is_refused(tools: Tools, source: Path, tmp_path: Path) -> None:
    """Overwriting somebody's work, or mixing two exports in one folder."""
    (tmp_path / "out").mkdir()
    with pytest.raises(ArtifactError, match=r"out exists already; .*`force`"):
        tools.export(source, tmp_path / "out")
    assert listing(tmp_path / "out") == []


def test_force_replaces_an_artifact_whole(tools: Tools, source: Path, tmp_path: Path) -> None:
    """Files of the old one left among those of the new."""
    out = tools.export(source, tmp_path / "out", partition="sublayer")
    (out / "stray").write_text("x")
    tools.export(source, out, precision="fp32", force=True)
    assert open_artifact(out).manifest.precision == "fp32"
    assert not (out / "stray").exists()
    assert not list(out.rglob("layer_*"))
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []


def test_force_does_not_replace_what_is_no_artifact(tools: Tools, source: Path, tmp_path: Path) -> None:
    """--force with a wrong path must not cost anyone a folder."""
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("years of work")
    (tmp_path / "file").write_text("x")
    for name in ("precious", "file"):
        with pytest.raises(ArtifactError, match="is no artifact, so `force` does not replace it"):
            tools.export(source, tmp_path / name, force=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "years of work"


def test_a_failed_forced_export_keeps_the_old_artifact(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Removing first and writing afterwards."""
    out = tools.export(source, tmp_path / "out", precision="int4")
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    monkeypatch.setattr(WeightsFile, "_append", full_disk(8))
    with pytest.raises(ArtifactError, match="disk is full"):
        tools.export(source, out, precision="fp32", force=True)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_an_output_that_cannot_be_made_is_one_sentence(tools: Tools, source: Path, tmp_path: Path) -> None:
    """A file where a folder is needed."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(ArtifactError, match="cannot be written"):
        tools.export(source, tmp_path / "file" / "out")


def test_a_progress_bar_sees_every_tensor_once(source: Path, tmp_path: Path) -> None:
    """A bar that ends early, or an iterator that is consumed twice."""
    seen: list[str] = []

    def watching(specs: Any) -> Any:
        for s in specs:
            seen.append(s.name)
            yield s

    checkpoint, name = open_model(str(source))
    report = export_model(checkpoint, name, tmp_path / "out", ExportOptions(kernels="ort"), watching)
    assert len(seen) == len(set(seen)) == 2 * 6 + 3
    assert report.output == tmp_path / "out"
    assert 0 <= report.hot_coverage <= 1


# What is in the folder.


def test_the_folder_holds_what_the_manifest_lists_and_nothing_else(toy: Toy) -> None:
    """A file without a checksum, or a checksum without a file."""
    manifest = open_artifact(toy.folder).manifest
    on_disk = {p.relative_to(toy.folder).as_posix() for p in toy.folder.rglob("*") if p.is_file()}
    assert on_disk == {*manifest.files, "manifest.json"}
    for name, facts in manifest.files.items():
        data = (toy.folder / name).read_bytes()
        assert (len(data), hashlib.sha256(data).hexdigest()) == (facts.size, facts.sha256)
    assert manifest.exit_layers == (2, 4, 5)
    assert manifest.model.num_layers == 6
    assert manifest.tokenizer.eos_token_ids == (1,)
    assert set(manifest.producer) >= {"selfspec"}
    assert (toy.folder.stat().st_mode & 0o777) == 0o755, "mkdtemp's 0700 would lock out everyone else"


def test_the_manifest_on_disk_is_the_reports(tools: Tools, source: Path, tmp_path: Path) -> None:
    """Written before the last change to it."""
    checkpoint, name = open_model(str(source))
    report = export_model(checkpoint, name, tmp_path / "out", ExportOptions("int8", kernels="ort"))
    assert Manifest.from_json((tmp_path / "out" / "manifest.json").read_text(encoding="utf-8")) == report.manifest
    assert (report.manifest.name, report.manifest.precision) == ("model", "int8")
    assert report.manifest.quantization.bits == report.manifest.quantization.head_bits == 8


def test_two_exports_are_the_same_bytes(tools: Tools, source: Path, tmp_path: Path) -> None:
    """A timestamp or a temporary path in a file: the profile cache would never hit."""
    a, b = (tools.export(source, tmp_path / name, precision="int4") for name in "ab")
    for path in (p for p in a.rglob("*") if p.is_file()):
        assert path.read_bytes() == (b / path.relative_to(a)).read_bytes(), path.name


def whole_tensors(stored: dict[tuple[str, str], Stored]) -> dict[str, Stored]:
    """Places by name, slices left out: each name in one place only, whichever graph refers to it."""
    places: dict[str, Stored] = {}
    for (_, name), place in stored.items():
        same = places.setdefault(name, place)
        assert (same.offset, same.length) == (place.offset, place.length), name
    return places


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("precision", ["fp32", "int8", "int4"])
def test_every_tensor_lies_once_and_aligned(
    tools: Tools, spec: ToySpec, tmp_path: Path, precision: str, tied: bool
) -> None:
    """Weights stored twice double the download; unaligned ones cannot be mapped in place."""
    spec = replace(spec, tied=tied)
    out = tools.export(tools.write(tmp_path / "m", spec), tmp_path / "out", precision=precision, exit_layers=(1,))
    places = whole_tensors(tools.stored(out))
    starts = {p.offset for name, p in places.items() if "[" not in name}
    assert all(offset % 64 == 0 for offset in starts)
    spans = sorted({(p.offset, p.offset + p.length) for name, p in places.items() if not (tied and "[" in name)})
    assert spans[0][0] == 0
    size = (out / "weights.bin").stat().st_size
    assert spans[-1][1] == size
    for (_, stop), (start, _) in itertools.pairwise(spans):
        assert 0 <= start - stop < 64, "tensors overlap, or something lies between them"
    parameters = sum(w.size for w in tools.weights(spec).values())
    rotary = 2 * (spec.context + PAD_ROWS) * spec.head_dim // 2
    assert sum(p.length for n, p in places.items() if "rotary" in n) == 4 * rotary
    if precision == "fp32":
        assert 0 <= size - 4 * (parameters + rotary) < 64 * len(spans)


def test_a_tied_head_is_the_embeddings_own_bytes(tools: Tools, spec: ToySpec, tmp_path: Path) -> None:
    """SmolLM2's embedding is a fifth of it: stored once, read twice."""
    source = tools.write(tmp_path / "m", replace(spec, tied=True))
    for precision in ("fp32", "int4"):
        out = tools.export(source, tmp_path / precision, precision=precision, hot_vocab=100, exit_layers=(1,))
        stored = tools.stored(out)
        suffix = "" if precision == "fp32" else ".codes"
        whole = stored["embed", f"model.embed_tokens.weight{suffix}"]
        hot = stored["head_hot", f"model.embed_tokens.weight[0:100]{suffix}"]
        rest = stored["head_rest", f"model.embed_tokens.weight[100:320]{suffix}"]
        assert (hot.offset, hot.length + rest.length) == (whole.offset, whole.length)
        assert rest.offset == hot.offset + hot.length


def test_graphs_hold_no_weights(toy: Toy, tools: Tools) -> None:
    """A tensor inside a graph is a second copy, in memory too."""
    paths = list(toy.folder.glob("graphs/cpu/*.onnx"))
    assert {p.stem for p in paths} == {
        "embed", "block_000_002", "block_002_004", "block_004_005", "block_005_006", "head_hot", "head_rest",
    }  # fmt: skip
    assert len(tools.stored(toy.folder)) > 40  # and all of them are external: it looks at each
    for path in paths:
        assert path.stat().st_size < 20_000
        graph = ir.load(path).graph
        assert not [n for n in graph if n.op_type == "Constant"]


def test_blocks_state_their_interface(toy: Toy) -> None:
    """The runtime, an Android app, a stranger's code: all rely on these names, with global layer numbers."""
    graph = ir.load(toy.folder / "graphs/cpu/block_004_005.onnx").graph
    kv = [f"past_key_values.4.{part}" for part in ("key", "value")]
    present = [f"present.4.{part}" for part in ("key", "value")]
    assert {v.name for v in graph.inputs} == {"hidden", "seqlens_k", "total_sequence_length", *kv}
    assert {v.name for v in graph.outputs} == {"hidden_out", *present}


def test_weights_are_the_checkpoints(fp32: Toy, tools: Tools) -> None:
    """fp32 must be the checkpoint bit for bit; fused matrices stacked q, k, v and gate, up."""
    places = {name: s for (_, name), s in tools.stored(fp32.folder).items()}
    weights = tools.weights(fp32.spec)

    def stored(name: str) -> Any:
        return places[name].read(fp32.folder)

    layer = "model.layers.3"
    np.testing.assert_array_equal(
        stored(f"{layer}.self_attn.qkv_proj.weight"),
        np.concatenate([weights[f"{layer}.self_attn.{p}_proj.weight"] for p in "qkv"]),
    )
    np.testing.assert_array_equal(
        stored(f"{layer}.mlp.gate_up_proj.weight"),
        np.concatenate([weights[f"{layer}.mlp.{p}_proj.weight"] for p in ("gate", "up")]),
    )
    for name in (f"{layer}.self_attn.o_proj.weight", f"{layer}.mlp.down_proj.weight", "model.norm.weight"):
        np.testing.assert_array_equal(stored(name), weights[name])
    np.testing.assert_array_equal(stored("lm_head.weight[256:320]"), weights["lm_head.weight"][256:])


@pytest.mark.parametrize(("precision", "bits"), [("int8", 8), ("int4", 4)])
def test_quantised_weights_are_near_the_checkpoints(
    make_toy: Callable[..., Toy], tools: Tools, precision: str, bits: int
) -> None:
    """Blocks in the wrong order, swapped halves, a zero point off by one: far away, not slightly off."""
    toy = make_toy(precision=precision, exit_layers=(2, 4, 5), hot_vocab=256)
    weights = tools.weights(toy.spec)
    for name in ("model.layers.2.self_attn.o_proj.weight", "model.layers.5.mlp.down_proj.weight"):
        found = tools.dequantized(toy.folder, name, bits)
        error = np.sqrt(np.mean((found - weights[name]) ** 2)) / weights[name].std()
        assert error < (0.01 if bits == 8 else 0.09), name
        off = np.mean(found - weights[name]) / weights[name].std()
        assert abs(off) < (0.001 if bits == 8 else 0.02), name
    embedding = tools.dequantized(toy.folder, "model.embed_tokens.weight", 8)
    assert np.abs(embedding - weights["model.embed_tokens.weight"]).max() < 0.03


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_half_precision_folders_export_their_own_values(
    tools: Tools, spec: ToySpec, source: Path, tmp_path: Path, dtype: str
) -> None:
    """bf16 read as fp16, or rounded once more on the way."""
    half = tools.write(tmp_path / dtype, spec, dtype=dtype)
    kind = np.dtype(ml_dtypes.bfloat16) if dtype == "bfloat16" else np.dtype(dtype)
    rounded = {n: w.astype(kind).astype(np.float32) for n, w in tools.weights(spec).items()}
    save_file(rounded, source / "model.safetensors")
    a, b = (tools.export(p, tmp_path / f"out-{p.name}", precision="fp32") for p in (half, source))
    assert (a / "weights.bin").read_bytes() == (b / "weights.bin").read_bytes()


def test_shards_make_no_difference(tools: Tools, spec: ToySpec, source: Path, tmp_path: Path) -> None:
    """A tensor taken from the wrong shard, or an order that depends on the files'."""
    sharded = tools.write(tmp_path / "shards", spec, shards=4)
    assert len(list(sharded.glob("*.safetensors"))) == 4
    a, b = tools.export(source, tmp_path / "a"), tools.export(sharded, tmp_path / "b")
    assert (a / "weights.bin").read_bytes() == (b / "weights.bin").read_bytes()


def test_runs_of_rows_make_no_difference(
    tools: Tools, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Matrices are streamed in runs of rows: scales and zero points of all runs must be kept, in order."""
    a = tools.export(source, tmp_path / "a", precision="int4")
    monkeypatch.setattr("selfspec.export.weights._CHUNK_ELEMENTS", 7 * 32)
    b = tools.export(source, tmp_path / "b", precision="int4")
    assert (a / "weights.bin").read_bytes() == (b / "weights.bin").read_bytes()


def test_text_files_come_along(tools: Tools, spec: ToySpec, tmp_path: Path) -> None:
    """Tokenizer bit for bit, template, and the generation config as it was."""
    source = tools.write(tmp_path / "m", replace(spec, eos=[1, 5]), chat_template="{{ messages }}")
    out = tools.export(source, tmp_path / "out")
    assert (out / "tokenizer.json").read_bytes() == (source / "tokenizer.json").read_bytes()
    assert (out / "chat_template.jinja").read_text() == "{{ messages }}"
    assert json.loads((out / "generation_config.json").read_text()) == {"eos_token_id": [1, 5]}
    assert open_artifact(out).manifest.tokenizer.eos_token_ids == (1, 5)


def test_the_source_is_not_touched(tools: Tools, source: Path, tmp_path: Path) -> None:
    """Reading is reading."""
    before = {p: p.read_bytes() for p in source.rglob("*")}
    tools.export(source, tmp_path / "out")
    assert {p: p.read_bytes() for p in source.rglob("*")} == before


def test_weights_that_are_not_finite_are_refused_by_name(tools: Tools, source: Path, tmp_path: Path) -> None:
    """A checkpoint of a run that diverged: nan quantises to something, and the text is nonsense without any error."""
    weights = dict(load_file(source / "model.safetensors"))
    weights["model.layers.1.mlp.down_proj.weight"][3, 4] = np.nan
    save_file(weights, source / "model.safetensors")
    with pytest.raises(SelfSpecError, match=r"model\.layers\.1\.mlp\.down_proj\.weight"):
        tools.export(source, tmp_path / "out", precision="int4")


# Segments, by hand.


def test_rows_of_a_stored_tensor_are_a_part_of_its_bytes() -> None:
    """Head slices: an offset in elements instead of bytes reads other rows' weights."""
    tensor = StoredTensor(
        "w", (10, 64), 4, Segment("uint8", (10, 32), 640), Segment("float32", (10, 2), 1280),
        Segment("uint8", (10, 1), 2048), 32,
    )  # fmt: skip
    part = tensor.rows(3, 7)
    assert part.name == "w[3:7]"
    assert part.shape == (4, 64)
    assert part.codes == Segment("uint8", (4, 32), 640 + 3 * 32)
    assert part.scales == Segment("float32", (4, 2), 1280 + 3 * 8)
    assert part.zero_points == Segment("uint8", (4, 1), 2048 + 3)
    assert part.codes.num_bytes == 128
    assert tensor.rows(0, 10) is tensor


def test_a_deeper_toy_loads_and_speaks(make_toy: Callable[..., Toy], fp32: Toy) -> None:
    """The whole path once more with one layer only: no exits, no blocks but one."""
    toy = make_toy(replace(fp32.spec, layers=1), precision="int4")
    assert toy.model.artifact.manifest.exit_layers == ()
    assert len(load(toy.folder, threads=1).generate("The", max_new_tokens=5, draft="none").token_ids) == 5


@pytest.mark.parametrize("equal", [True, False])
def test_a_tied_config_with_a_head_of_its_own_is_untied(
    tools: Tools, spec: ToySpec, tmp_path: Path, equal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As transformers decides it: a head that was trained apart must not be dropped for the embedding."""
    monkeypatch.setattr("selfspec.export.weights._CHUNK_ELEMENTS", 1000)
    tied = replace(spec, tied=True)
    folder, weights = tools.write(tmp_path / "m", tied), tools.weights(tied)
    head = weights["model.embed_tokens.weight"].copy()
    if not equal:
        head[-1, -1] += 1
    save_file(weights | {"lm_head.weight": head}, folder / "model.safetensors")
    artifact = tools.export(folder, tmp_path / "a", precision="fp32", exit_layers=(1,))
    assert open_artifact(artifact).manifest.model.tie_word_embeddings is equal
    names = {name for _, name in tools.stored(artifact)}
    assert any(name.startswith("lm_head.weight") for name in names) is not equal
