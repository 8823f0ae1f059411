"""The manifest is untrusted input: what holds together survives a round trip, everything else is an ArtifactError."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from selfspec.errors import ArtifactError
from selfspec.models.config import ModelConfig, RopeConfig
from selfspec.models.manifest import (
    FORMAT_VERSION,
    WEIGHTS_NAME,
    DraftHead,
    FileFacts,
    Head,
    KernelFacts,
    Manifest,
    Quantization,
    TokenizerFacts,
    Unit,
)

GRAPHS = ("embed", "block_000_001", "block_001_003", "head_hot", "head_rest")
MANIFEST = Manifest(
    format_version=FORMAT_VERSION, name="toy", target="cpu", precision="int4",
    model=ModelConfig("llama", 32, 64, 96, 3, 4, 2, 16, 1e-5, 128, RopeConfig(1e4, divisors=(1.0,) * 8), False, 0.25),
    quantization=Quantization(4, 8, 32, "F32×3"),
    kernels=None,
    kernels_reason="auto: selfspec-kernels was not installed",
    embed_graph="graphs/cpu/embed.onnx",
    units=(Unit("graphs/cpu/block_000_001.onnx", 0, 2), Unit("graphs/cpu/block_001_003.onnx", 2, 6)),
    head=Head("graphs/cpu/head_hot.onnx", "graphs/cpu/head_rest.onnx", ((0, 10), (20, 24)), ((10, 20), (24, 32))),
    draft_heads=(),
    exit_layers=(1,),
    tokenizer=TokenizerFacts((1, 2), 0, {"bos_token": "<s>"}),
    weights=(WEIGHTS_NAME,),
    files={name: FileFacts(20_000, "0f" * 32) for name in (WEIGHTS_NAME, *(f"graphs/cpu/{g}.onnx" for g in GRAPHS))},
    producer={"selfspec": "0.1.0"},
)  # fmt: skip


def good() -> dict[str, Any]:
    return dict(json.loads(MANIFEST.to_json()))


def test_a_manifest_survives_its_file() -> None:
    """Tuples, nested values, None: what comes back must be the very same value."""
    assert Manifest.from_json(MANIFEST.to_json()) == MANIFEST
    assert Manifest.from_json(json.dumps(good())) == MANIFEST


def test_native_kernels_survive_their_file() -> None:
    """A mapping that comes back as one, or a layout as text."""
    manifest = Manifest.from_json(with_change(kernels()))
    assert manifest.kernels == KernelFacts("selfspec-kernels", 1)
    assert Manifest.from_json(manifest.to_json()) == manifest


def test_a_manifest_is_text_that_people_can_read() -> None:
    """Escaped letters in model names, one endless line."""
    text = Manifest.from_json(MANIFEST.to_json().replace("toy", "spielzeug-größe")).to_json()
    assert "spielzeug-größe" in text
    assert text.endswith("}\n")
    assert len(text.splitlines()) > 30


def with_change(change: Callable[[dict[str, Any]], object]) -> str:
    data = copy.deepcopy(good())
    change(data)
    return json.dumps(data)


def unit(index: int, **changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["units"][index].update(changes)


def head(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["head"].update(changes)


def file(path: str, **facts: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["files"].update({path: {"size": 1, "sha256": "0" * 64} | facts})


def field(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m.update(changes)


def kernels(name: str = "selfspec-kernels", layout: Any = 1) -> Callable[[dict[str, Any]], None]:
    """Native kernels, for which head ranges end at multiples of 8."""

    def change(manifest: dict[str, Any]) -> None:
        manifest["kernels"] = {"name": name, "layout": layout}
        manifest["head"] |= {"hot_ranges": [[0, 8], [16, 24]], "rest_ranges": [[8, 16], [24, 32]]}

    return change


def special(**changes: Any) -> Callable[[dict[str, Any]], object]:
    return lambda m: m["tokenizer"].update(changes)


def listed(m: dict[str, Any], name: str) -> dict[str, Any]:
    m["files"][name] = {"size": 9, "sha256": "0" * 64}
    return m


def draft_head(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """One more head, with weights of its own."""

    def change(m: dict[str, Any]) -> None:
        listed(m, "x")
        listed(m, "heads/x.bin")
        m["weights"].append("heads/x.bin")
        m["draft_heads"].append({"name": "short", "graph": "x", "ranges": [[3, 5], [8, 32]]} | changes)

    return change


def overlapping(**changes: Any) -> Callable[[dict[str, Any]], object]:
    """Beside the blocks, some that overlap them: of sublayers 2 and 3, and 1 to 4."""

    def change(m: dict[str, Any]) -> None:
        for graph, start, stop in (("x", 2, 4), ("y", 1, 5)):
            listed(m, graph)
            m["units"].append({"graph": graph, "start": start, "stop": stop})
        m.update(changes)

    return change


BROKEN: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "target": (field(target="cuda"), "target 'cuda'"),
    "a graph that is not a file": (lambda m: m["files"].pop("graphs/cpu/head_rest.onnx"), "head_rest.onnx"),
    "an embed graph that is not a file": (field(embed_graph="other.onnx"), "other.onnx"),
    "no weights": (lambda m: m["files"].pop(WEIGHTS_NAME), "weights.bin"),
    "path with ..": (file("graphs/../../x"), "leaves the folder"),
    "absolute path": (file("/etc/passwd"), "leaves the folder"),
    "windows path": (file("..\\x"), "leaves the folder"),
    "drive": (file("C:x"), "leaves the folder"),
    "empty path": (file(""), "leaves the folder"),
    "path that a terminal obeys": (file("a\x1b[2Jb"), "leaves the folder"),
    "path with a zero byte": (file("a\x00b"), "leaves the folder"),
    "the folder itself": (file("."), "leaves the folder"),
    "text that fills the memory": (file("tokenizer.json", size=2**40), "too large"),
    "weights as a graph": (field(embed_graph=WEIGHTS_NAME), "named twice"),
    "weights that cannot hold the vocabulary": (lambda m: m["files"][WEIGHTS_NAME].update(size=12_031), "too small"),
    "more context than rotary tables": (lambda m: m["model"].update(context_length=1000), "too small"),
    "more layers than weights": (
        lambda m: (m["model"].update(num_layers=300), m["units"][1].update(stop=600)), "too small"),
    "matrices without bits": (lambda m: m["quantization"].update(bits=0), "bits"),
    "matrices of many bits": (lambda m: m["quantization"].update(head_bits=64), "bits"),
    "short sha256": (file("x", sha256="abc"), "sha256 of 'x'"),
    "sha256 in capitals": (file("x", sha256="A" * 64), "sha256 of 'x'"),
    "sha256 with a newline": (file("x", sha256="0" * 64 + "\n"), "sha256 of 'x'"),
    "negative size": (file("x", size=-1), "damaged"),
    "gap between blocks": (unit(1, start=3), "do not cover every layer"),
    "blocks that only overlap": (unit(1, start=1), "do not cover every layer"),
    "blocks that start late": (unit(0, start=1), "do not cover every layer"),
    "empty block": (lambda m: m["units"].insert(1, m["units"][0] | {"start": 2}), "a block graph is empty"),
    "blocks that end early": (unit(1, stop=5), "do not cover every layer"),
    "blocks that end late": (unit(1, stop=8), "more layers than the model"),
    "blocks twice": (
        lambda m: (listed(m, "x"), m["units"].append(m["units"][0] | {"graph": "x"})), "of the same sublayers"),
    "no blocks": (field(units=[]), "do not cover every layer"),
    "a way to the end that misses an exit": (overlapping(exit_layers=[2]), "exit layer is not a cut"),
    "exit that is no cut": (field(exit_layers=[2]), "exit layer is not a cut"),
    "exit at the end": (field(exit_layers=[3]), "exit layer is not a cut"),
    "exit at the start": (field(exit_layers=[0]), "exit layer is not a cut"),
    "exits out of order": (field(exit_layers=[1, 1]), "exit layer"),
    "head gap": (head(hot_ranges=[[0, 9], [20, 24]]), "head ranges leave gaps or overlap"),
    "head overlap": (head(hot_ranges=[[0, 11], [20, 24]]), "head ranges leave gaps or overlap"),
    "head range reversed": (head(rest_ranges=[[20, 10], [24, 32]]), "head ranges"),
    "head beyond the vocabulary": (head(rest_ranges=[[10, 20], [24, 33]]), "do not cover the vocabulary"),
    "head short of the vocabulary": (head(rest_ranges=[[10, 20], [24, 31]]), "do not cover the vocabulary"),
    "nothing hot": (head(hot_ranges=[], rest_ranges=[[0, 32]]), "no hot range"),
    "rest without ranges": (head(hot_ranges=[[0, 32]], rest_ranges=[]), "head_rest and its ranges disagree"),
    "ranges without rest": (head(rest_graph=None), "head_rest and its ranges disagree"),
    "a draft head that is called hot": (draft_head(name="hot"), "of one name"),
    "a draft head that a terminal obeys": (draft_head(name="a\x1b[2J"), "no name of a head"),
    "a draft head of no ids": (draft_head(ranges=[]), "are empty"),
    "a draft head that scores an id twice": (draft_head(ranges=[[0, 8], [7, 9]]), "overlap"),
    "a draft head beyond the vocabulary": (draft_head(ranges=[[8, 33]]), "beyond the vocabulary"),
    "a draft head without a graph": (draft_head(graph="y"), "'y' is not among"),
    "weights that are not listed": (field(weights=["x.bin"]), "'x.bin' is not among"),
    "weights without weights.bin": (field(weights=[]), "not among its weights"),
    "weights that are a text": (
        lambda m: (listed(m, "tokenizer.json"), m["weights"].append("tokenizer.json")), "does not end in .bin"),
    "weights listed twice": (field(weights=[WEIGHTS_NAME, WEIGHTS_NAME]), "named twice"),
    "no list of weights": (lambda m: m.pop("weights"), "damaged"),
    "a reason that is left out": (lambda m: m.pop("kernels_reason"), "damaged"),
    "eos beyond the vocabulary": (special(eos_token_ids=[32]), "special token id"),
    "bos beyond the vocabulary": (special(bos_token_id=32), "special token id"),
    "a special token of another name": (special(special_tokens={"messages": "x"}), "messages"),
    "a special token that is no text": (special(special_tokens={"bos_token": 1}), "damaged"),
    "special tokens that are no mapping": (special(special_tokens=["bos_token"]), "damaged"),
    "negative eos": (special(eos_token_ids=[-1]), "damaged"),
    "bits that are no number": (lambda m: m["quantization"].update(bits="four"), "damaged"),
    "kernels of another name": (kernels("os"), "no kernels of the name 'os'"),
    "kernels that are no mapping": (field(kernels="selfspec-kernels"), "damaged"),
    "kernels that are not told of": (lambda m: m.pop("kernels"), "damaged"),
    "a layout that is no number": (kernels(layout="1"), "damaged"),
    "another layout": (kernels(layout=2), "layout 2 of selfspec-kernels, and this selfspec reads layout 1"),
    "a reason that is no text": (field(kernels_reason=7), "damaged"),
    "a reason that is empty": (field(kernels_reason=""), "a reason of 0 characters"),
    "a reason that fills the screen": (field(kernels_reason="x" * 401), "a reason of 401 characters"),
    "a reason that a terminal obeys": (field(kernels_reason="auto\x1b[2J"), "not printable"),
    "a source that a terminal obeys": (lambda m: m["quantization"].update(source="F32\x1b[2J"), "not printable"),
    "head ranges that cut tiles": (field(kernels={"name": "selfspec-kernels", "layout": 1}), "cut tiles"),
    "bits that native kernels lack": (
        lambda m: (kernels()(m), m["quantization"].update(bits=2)), "which selfspec-kernels lacks"),
    "a model type that a terminal obeys": (lambda m: m["model"].update(model_type="llama\x1b[2J"), "model_type is"),
    "model config": (lambda m: m["model"].update(num_layers="three"), "model config"),
    "model size": (lambda m: m["model"].update(vocab_size=-1), "."),
}  # fmt: skip


@pytest.mark.parametrize("name", BROKEN)
def test_what_does_not_hold_together_is_refused(name: str) -> None:
    """Every one of these would fail later and less clearly: in ONNX Runtime, in a wrong column, or not at all."""
    change, named = BROKEN[name]
    with pytest.raises(ArtifactError, match=named) as caught:
        Manifest.from_json(with_change(change))
    assert "export" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("version", [FORMAT_VERSION + 1, 2, 0, None, "1", 1.5, 3.0, True, [1]])
def test_another_format_version_is_refused_with_both_versions(version: Any) -> None:
    """Read as if it were ours. It comes before every other check: a newer format may look damaged to this version."""
    for change in (field(format_version=version), lambda m: (m.clear(), m.update(format_version=version))):
        with pytest.raises(ArtifactError, match=r"format version") as caught:
            Manifest.from_json(with_change(change))
        assert repr(version) in str(caught.value)
        assert f"reads versions 3 and {FORMAT_VERSION}" in str(caught.value)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, "nul", '{"format_version": 1}', "[]", "3", "null", '"x"', "1" * 5000, "NaN"]
)
def test_what_is_no_manifest_is_refused(text: str) -> None:
    """RecursionError, or the limit on the digits of an integer, which is a plain ValueError."""
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        Manifest.from_json(text)


def test_the_least_size_of_the_weights_is_exact() -> None:
    """By hand: 32·64 bytes of embedding, keys 3·2·16·64 at 4 bits, two tables of 8 floats for 128 + 8 rows."""
    least = 32 * 64 + 3 * 2 * 16 * 64 // 2 + 2 * 8 * 4 * (128 + 8)
    with_size = {"files": good()["files"] | {WEIGHTS_NAME: {"size": least, "sha256": "0" * 64}}}
    assert Manifest.from_json(json.dumps(good() | with_size)).files[WEIGHTS_NAME].size == least
    with_size["files"][WEIGHTS_NAME]["size"] -= 1
    with pytest.raises(ArtifactError, match="too small"):
        Manifest.from_json(json.dumps(good() | with_size))


def test_ten_thousand_exits_are_checked_at_once() -> None:
    """Every exit looked up in a list of cuts: minutes for a manifest of 200 kB."""
    units = [{"graph": f"g{i}", "start": i, "stop": i + 1} for i in range(20_000)]
    data = good() | {"units": units, "exit_layers": list(range(1, 10_000))}
    data["model"]["num_layers"] = 10_000
    data["files"] |= {f"g{i}": {"size": 1, "sha256": "0" * 64} for i in range(20_000)}
    data["files"][WEIGHTS_NAME]["size"] = 2**40
    assert len(Manifest.from_json(json.dumps(data)).exit_layers) == 9_999


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path to a value below ``value``."""
    found = [path] if path else []
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        found += places(child, (*path, key))
    return found


PLACES = places(good())
ANYTHING: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 40), st.floats(), st.text(max_size=5), st.just(10**400),
    st.builds(list), st.builds(dict), st.lists(st.integers(0, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.none()),
    st.sampled_from(["../x", "/x", "weights.bin", "\x00", "\ud800", "int4", 2**63, -0.0]),
)  # fmt: skip


def put(data: Any, path: tuple[Any, ...], value: Any) -> None:
    for key in path[:-1]:
        data = data[key]
    data[path[-1]] = value


def drop(data: Any, path: tuple[Any, ...]) -> None:
    for key in path[:-1]:
        data = data[key]
    del data[path[-1]]


def accepted_or_refused(text: str) -> None:
    try:
        found = Manifest.from_json(text)
    except ArtifactError:
        return
    assert Manifest.from_json(found.to_json()) == found or "NaN" in text


@pytest.mark.parametrize("path", PLACES, ids=lambda p: ".".join(map(str, p)))
def test_a_field_that_is_gone_is_an_artifact_error_or_optional(path: tuple[Any, ...]) -> None:
    """KeyError out of a parser."""
    data = good()
    drop(data, path)
    accepted_or_refused(json.dumps(data))


@pytest.mark.parametrize("name", ["name", "target", "precision"])
def test_what_is_printed_is_printable(name: str) -> None:
    """An artifact's name that moves the cursor or sets the window's title."""
    data = json.loads(MANIFEST.to_json())
    data[name] = "model\x1b]0;title\x07"
    with pytest.raises(ArtifactError, match="not printable"):
        Manifest.from_json(json.dumps(data))


@settings(max_examples=600)
@given(st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), min_size=1, max_size=3))
def test_no_mutation_raises_anything_but_an_artifact_error(changes: list[tuple[tuple[Any, ...], Any]]) -> None:
    """A traceback for a file that came from elsewhere. What is accepted must be a value that can be written again."""
    data = good()
    for path, value in changes:
        try:
            put(data, path, value)
        except (KeyError, IndexError, TypeError, AttributeError):
            continue  # an earlier change took the place away
    accepted_or_refused(json.dumps(data))


@settings(max_examples=200)
@given(st.integers(0, 10**6), st.binary(min_size=1, max_size=3))
def test_no_flipped_bytes_raise_anything_but_an_artifact_error(position: int, junk: bytes) -> None:
    """Damage below the level of JSON values."""
    text = MANIFEST.to_json()
    at = position % len(text)
    accepted_or_refused(text[:at] + junk.decode("latin-1") + text[at + len(junk) :])


def test_blocks_may_overlap_and_heads_have_files_of_their_own() -> None:
    manifest = Manifest.from_json(with_change(overlapping()))
    assert [(u.start, u.stop) for u in manifest.units] == [(0, 2), (2, 6), (2, 4), (1, 5)]
    manifest = Manifest.from_json(with_change(draft_head()))
    assert manifest.draft_heads == (DraftHead("short", "x", ((3, 5), (8, 32))),)
    assert manifest.weight_sizes == {WEIGHTS_NAME: 20_000, "heads/x.bin": 9}
    assert Manifest.from_json(manifest.to_json()) == manifest


def version_3(**changes: Any) -> str:
    """As exporters wrote it before units could overlap and heads could have files."""
    data = good() | {"format_version": 3}
    for later in ("draft_heads", "weights"):
        del data[later]
    return json.dumps(data | changes)


def test_a_manifest_of_version_3_means_the_same() -> None:
    """Refused, or read with nothing that may hold weights."""
    assert Manifest.from_json(version_3()) == MANIFEST
    older = json.loads(version_3())
    del older["kernels_reason"]
    assert Manifest.from_json(json.dumps(older)) == replace(MANIFEST, kernels_reason=None)
    with pytest.raises(ArtifactError, match="do not cover every layer"):
        Manifest.from_json(version_3(units=[]))
