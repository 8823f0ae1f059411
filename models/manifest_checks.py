"""What must hold between a manifest's fields, so that nothing behind it need ask again. Standard library only."""

from __future__ import annotations

import re
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from ..errors import ArtifactError
from .names import KERNEL_LAYOUTS, MANIFEST_NAME, PAD_ROWS, SPECIAL_TOKENS, WEIGHTS_NAME
from .sublayers import first_sublayer

if TYPE_CHECKING:
    from .manifest import Manifest

_TILE_ROWS = 8  # of every layout so far
_MAX_TEXT_BYTES = 256 * 2**20  # of any file but weights: these are read whole
_WEIGHTS_SUFFIX = ".bin"
_SHA256 = re.compile(r"[0-9a-f]{64}")
_HEAD_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")
_TARGETS_HEADS = ("hot", "full")


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise ArtifactError(f"{MANIFEST_NAME} is damaged ({what}); export the model again.")


def check(manifest: Manifest) -> None:
    """Everything that must hold between fields."""
    _demand(manifest.target == "cpu", f"target {manifest.target!r} is not 'cpu'")
    bits = (manifest.quantization.bits, manifest.quantization.head_bits)
    _demand(all(0 < b <= 32 for b in bits), f"matrices of {bits} bits")
    _check_kernels(manifest)
    graphs = [manifest.embed_graph, *(u.graph for u in manifest.units), *(graph for graph, _ in manifest.whole_head)]
    graphs += [head.graph for head in manifest.draft_heads]
    for name in (*graphs, *manifest.weights, WEIGHTS_NAME):
        _demand(name in manifest.files, f"{name!r} is not among its files")
    _check_files(manifest)
    _check_units(manifest)
    _demand(len({*graphs, *manifest.weights}) == len(graphs) + len(manifest.weights), "a file is named twice")
    least = _least_weights(manifest)
    _demand(manifest.files[WEIGHTS_NAME].size >= least, f"{WEIGHTS_NAME} is too small for the model")
    _check_heads(manifest)
    ids = [*manifest.tokenizer.eos_token_ids]
    ids += [] if manifest.tokenizer.bos_token_id is None else [manifest.tokenizer.bos_token_id]
    unknown = manifest.tokenizer.special_tokens.keys() - set(SPECIAL_TOKENS)
    _demand(not unknown, f"special tokens {sorted(unknown)} have no such names")
    _demand(all(i < manifest.model.vocab_size for i in ids), "a special token id is beyond the vocabulary")


def _check_files(manifest: Manifest) -> None:
    _demand(WEIGHTS_NAME in manifest.weights, f"{WEIGHTS_NAME} is not among its weights")
    for name in manifest.weights:
        _demand(name.endswith(_WEIGHTS_SUFFIX), f"weights in {name!r}, which does not end in {_WEIGHTS_SUFFIX}")
    for path, facts in manifest.files.items():
        pure = PurePosixPath(path)
        inside = not pure.is_absolute() and ".." not in pure.parts and "\\" not in path and ":" not in path
        _demand(inside and pure.name != "" and path.isprintable(), f"path {path!r} leaves the folder")
        _demand(path in manifest.weights or facts.size <= _MAX_TEXT_BYTES, f"{path!r} is too large for what it is")
        _demand(_SHA256.fullmatch(facts.sha256) is not None, f"sha256 of {path!r} is not one")


def _check_units(manifest: Manifest) -> None:
    """Units that follow each other make up the whole stack, also where it is cut at an exit layer. Others may overlap
    them."""
    units, end = manifest.units, first_sublayer(manifest.model.num_layers)
    _demand(all(u.start < u.stop for u in units), "a block graph is empty")
    _demand(all(u.stop <= end for u in units), "a block graph has more layers than the model")
    _demand(len({(u.start, u.stop) for u in units}) == len(units), "two block graphs are of the same sublayers")
    ends, starts = {0}, {end}  # where a way from the first sublayer may end, and one to the last may start
    for unit in sorted(units, key=lambda u: u.start):
        ends |= {unit.stop} if unit.start in ends else set()
    for unit in sorted(units, key=lambda u: u.stop, reverse=True):
        starts |= {unit.start} if unit.stop in starts else set()
    _demand(end in ends, "block graphs do not cover every layer, one behind the other")
    exits = {*map(first_sublayer, manifest.exit_layers)}
    _demand(exits <= (ends & starts) - {0, end}, "an exit layer is not a cut")
    _demand(list(manifest.exit_layers) == sorted(set(manifest.exit_layers)), "exit layers are out of order")


def _check_heads(manifest: Manifest) -> None:
    vocab = manifest.model.vocab_size
    spans = sorted([*manifest.head.hot_ranges, *manifest.head.rest_ranges])
    ends = [0, *(b for _, b in spans)]
    _demand([a for a, _ in spans] == ends[:-1] and all(a < b for a, b in spans), "head ranges leave gaps or overlap")
    _demand(ends[-1] == vocab, "head ranges do not cover the vocabulary")
    _demand(bool(manifest.head.hot_ranges), "there is no hot range")
    _demand((manifest.head.rest_graph is None) == (not manifest.head.rest_ranges), "head_rest and its ranges disagree")
    names = [head.name for head in manifest.draft_heads]
    _demand(len({*names, *_TARGETS_HEADS}) == len(names) + len(_TARGETS_HEADS), "two heads are of one name")
    for head in manifest.draft_heads:
        _demand(_HEAD_NAME.fullmatch(head.name) is not None, f"{head.name!r} is no name of a head")
        edges = [edge for span in head.ranges for edge in span]
        rising = all(a < b for a, b in head.ranges) and edges == sorted(edges)
        _demand(bool(edges) and rising, f"ranges of the head {head.name} are empty, overlap or are out of order")
        _demand(edges[-1] <= vocab, f"ranges of the head {head.name} are beyond the vocabulary")


def _check_kernels(manifest: Manifest) -> None:
    kernels = manifest.kernels
    if kernels is None:
        return
    _demand(kernels.name in KERNEL_LAYOUTS, f"there are no kernels of the name {kernels.name!r}")
    if kernels.layout != KERNEL_LAYOUTS[kernels.name]:
        raise ArtifactError(
            f"its weights are in layout {kernels.layout} of {kernels.name}, and this selfspec reads layout "
            f"{KERNEL_LAYOUTS[kernels.name]}; install the selfspec that wrote it, or export the model again."
        )
    bits = (manifest.quantization.bits, manifest.quantization.head_bits)
    _demand({*bits} <= {4, 8}, f"matrices of {bits} bits, which {kernels.name} lacks")
    edges = [edge for span in (*manifest.head.hot_ranges, *manifest.head.rest_ranges) for edge in span]
    _demand(all(edge % _TILE_ROWS == 0 for edge in edges), "head ranges cut tiles")


def _least_weights(manifest: Manifest) -> int:
    """Bytes that weights.bin has at least: embedding, keys of every layer, rotary tables of 8 columns (a kernel needs).

    A bound and no more, so that it holds for every family; what is allocated from the config grows with these parts.
    """
    model, stored = manifest.model, manifest.quantization
    embedding = model.vocab_size * model.hidden_size * stored.head_bits
    keys = model.num_layers * model.num_kv_heads * model.head_dim * model.hidden_size * stored.bits
    return (embedding + keys) // 8 + 2 * 4 * 8 * (model.context_length + PAD_ROWS)
