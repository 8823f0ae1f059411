"""The artifact's manifest: typed, versioned, and the only thing exporter and runtime have in common.

Standard library only. A manifest is untrusted input: everything is checked here, before anything is opened.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import asdict, dataclass
from pathlib import PurePosixPath
from typing import Any

from ..errors import ArtifactError
from .config import ModelConfig
from .sublayers import attention_layers, first_sublayer, layer_sublayers, mlp_layers

FORMAT_VERSION = 3
MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.bin"
PAD_ROWS = 8
"""Spare rows of rotary tables and KV buffers beyond the context, for the padding of exact passes."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Names under which chat templates know special tokens."""

KERNEL_LAYOUTS = {"selfspec-kernels": 1}
"""Kernel libraries that graphs may need, by their package's name, and the layout of the weights that is read."""

EXPERTS_OPERATOR = "SparseMLPTiles"
"""What a kernel library needs for a model with experts; older ones lack it."""

MAX_REASON = 400
"""Characters of the sentence that says why an artifact's kernels were chosen."""

_TILE_ROWS = 8  # of every layout so far
_MAX_TEXT_BYTES = 256 * 2**20  # of any file but the weights: these are read whole
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Quantization:
    """How matrices are stored. ``bits`` 32 means float32; ``source`` says what they were before."""

    bits: int
    head_bits: int
    block_size: int
    source: str


@dataclass(frozen=True, slots=True)
class KernelFacts:
    """A library of operators that the graphs need beside ONNX Runtime's, and how the weights are laid out for it."""

    name: str
    layout: int


@dataclass(frozen=True, slots=True)
class Unit:
    """One block graph: sublayers ``start`` to ``stop - 1``, where 2i is layer i's attention and 2i+1 its MLP."""

    graph: str
    start: int
    stop: int

    @property
    def sublayers(self) -> range:
        return range(self.start, self.stop)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Layers whose attention is in it."""
        return attention_layers(self.sublayers)

    @property
    def mlp_layers(self) -> tuple[int, ...]:
        """Layers whose MLP, or experts, are in it."""
        return mlp_layers(self.sublayers)

    @property
    def layers(self) -> tuple[int, ...]:
        """Layers of which it has any sublayer."""
        return tuple(sorted({*self.attention_layers, *self.mlp_layers}))

    @classmethod
    def of_layers(cls, graph: str, start: int, stop: int) -> Unit:
        """Whole layers ``start`` to ``stop - 1``."""
        sublayers = layer_sublayers(start, stop)
        return cls(graph, sublayers.start, sublayers.stop)


@dataclass(frozen=True, slots=True)
class Head:
    """The LM head, cut into hot and rest. Ranges are half-open intervals of token ids."""

    hot_graph: str
    rest_graph: str | None
    hot_ranges: tuple[tuple[int, int], ...]
    rest_ranges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class TokenizerFacts:
    """``eos_token_ids`` is the union over all sources; ``bos_token_id`` is None where none is prepended.
    ``special_tokens``: the texts of those of ``SPECIAL_TOKENS`` that the checkpoint names."""

    eos_token_ids: tuple[int, ...]
    bos_token_id: int | None
    special_tokens: dict[str, str]


@dataclass(frozen=True, slots=True)
class FileFacts:
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One exported model. All paths are relative to the artifact's folder. ``kernels``: None for ONNX Runtime's own;
    ``kernels_reason``: why these, None where an older exporter did not say."""

    format_version: int
    name: str
    target: str
    precision: str
    model: ModelConfig
    quantization: Quantization
    kernels: KernelFacts | None
    kernels_reason: str | None
    embed_graph: str
    units: tuple[Unit, ...]
    head: Head
    exit_layers: tuple[int, ...]
    tokenizer: TokenizerFacts
    files: dict[str, FileFacts]
    producer: dict[str, str]

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Manifest:
        """Parse and check.

        Raises:
            ArtifactError: not JSON, another format version, or any field that does not hold together.
        """
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ArtifactError(f"{MANIFEST_NAME} is not valid JSON ({error}); export the model again.") from error
        version = data.get("format_version") if isinstance(data, dict) else None
        if version != FORMAT_VERSION or isinstance(version, bool):
            raise ArtifactError(
                f"{MANIFEST_NAME} has format version {version!r}, but this selfspec reads version {FORMAT_VERSION}; "
                "install the selfspec that wrote it, or export the model again."
            )
        try:
            manifest = _parse(data)
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise ArtifactError(f"{MANIFEST_NAME} is damaged ({detail}); export the model again.") from error
        _check(manifest)
        return manifest


def _parse(data: dict[str, Any]) -> Manifest:
    head = data["head"]
    return Manifest(
        format_version=data["format_version"],
        name=_shown(data["name"]),
        target=_shown(data["target"]),
        precision=_shown(data["precision"]),
        model=ModelConfig.from_dict(data["model"]),
        quantization=_quantization(data["quantization"]),
        kernels=None if data["kernels"] is None else _kernels(data["kernels"]),
        kernels_reason=None if data.get("kernels_reason") is None else _reason(data["kernels_reason"]),
        embed_graph=_text(data["embed_graph"]),
        units=tuple(Unit(_text(u["graph"]), _count(u["start"]), _count(u["stop"])) for u in data["units"]),
        head=Head(
            hot_graph=_text(head["hot_graph"]),
            rest_graph=None if head["rest_graph"] is None else _text(head["rest_graph"]),
            hot_ranges=_ranges(head["hot_ranges"]),
            rest_ranges=_ranges(head["rest_ranges"]),
        ),
        exit_layers=tuple(_count(k) for k in data["exit_layers"]),
        tokenizer=TokenizerFacts(
            eos_token_ids=tuple(_count(i) for i in data["tokenizer"]["eos_token_ids"]),
            bos_token_id=None
            if data["tokenizer"]["bos_token_id"] is None
            else _count(data["tokenizer"]["bos_token_id"]),
            special_tokens={_text(k): _text(v) for k, v in data["tokenizer"]["special_tokens"].items()},
        ),
        files={_text(k): FileFacts(_count(v["size"]), _text(v["sha256"])) for k, v in data["files"].items()},
        producer={_shown(k): _shown(v) for k, v in data["producer"].items()},
    )


def _quantization(data: dict[str, Any]) -> Quantization:
    return Quantization(
        _count(data["bits"]), _count(data["head_bits"]), _count(data["block_size"]), _shown(data["source"])
    )


def _kernels(data: dict[str, Any]) -> KernelFacts:
    return KernelFacts(_text(data["name"]), _count(data["layout"]))


def _reason(value: Any) -> str:
    if not 0 < len(_shown(value)) <= MAX_REASON:
        raise ValueError(f"a reason of {len(value)} characters, where 1 to {MAX_REASON} were expected")
    return str(value)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} where a text was expected")
    return value


def _shown(value: Any) -> str:
    """A text that is printed: nothing in it may speak to a terminal."""
    if not _text(value).isprintable():
        raise ValueError(f"{value!r} is not printable")
    return str(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise TypeError(f"{value!r} where a count was expected")
    return value


def _ranges(value: Any) -> tuple[tuple[int, int], ...]:
    return tuple((_count(a), _count(b)) for a, b in value)


def _demand(condition: bool, what: str) -> None:
    if not condition:
        raise ArtifactError(f"{MANIFEST_NAME} is damaged ({what}); export the model again.")


def _check(manifest: Manifest) -> None:
    """Everything that must hold between fields."""
    _demand(manifest.target == "cpu", f"target {manifest.target!r} is not 'cpu'")
    bits = (manifest.quantization.bits, manifest.quantization.head_bits)
    _demand(all(0 < b <= 32 for b in bits), f"matrices of {bits} bits")
    _check_kernels(manifest)
    graphs = [manifest.embed_graph, *(u.graph for u in manifest.units), manifest.head.hot_graph]
    graphs += [manifest.head.rest_graph] if manifest.head.rest_graph else []
    for graph in [*graphs, WEIGHTS_NAME]:
        _demand(graph in manifest.files, f"{graph!r} is not among its files")
    for path, facts in manifest.files.items():
        pure = PurePosixPath(path)
        inside = not pure.is_absolute() and ".." not in pure.parts and "\\" not in path and ":" not in path
        _demand(inside and pure.name != "" and path.isprintable(), f"path {path!r} leaves the folder")
        _demand(path == WEIGHTS_NAME or facts.size <= _MAX_TEXT_BYTES, f"{path!r} is too large for what it is")
        _demand(_SHA256.fullmatch(facts.sha256) is not None, f"sha256 of {path!r} is not one")
    cuts = [0, *(u.stop for u in manifest.units)]
    _demand([u.start for u in manifest.units] == cuts[:-1], "block graphs leave gaps or overlap")
    _demand(all(a < b for a, b in itertools.pairwise(cuts)), "a block graph is empty")
    _demand(cuts[-1] == first_sublayer(manifest.model.num_layers), "block graphs do not cover every layer")
    _demand({*map(first_sublayer, manifest.exit_layers)} <= {*cuts[1:-1]}, "an exit layer is not a cut")
    _demand(list(manifest.exit_layers) == sorted(set(manifest.exit_layers)), "exit layers are out of order")
    _demand(len({*graphs, WEIGHTS_NAME}) == len(graphs) + 1, "a graph is named twice")
    _demand(manifest.files[WEIGHTS_NAME].size >= _least_weights(manifest), f"{WEIGHTS_NAME} is too small for the model")
    spans = sorted([*manifest.head.hot_ranges, *manifest.head.rest_ranges])
    ends = [0, *(b for _, b in spans)]
    _demand([a for a, _ in spans] == ends[:-1] and all(a < b for a, b in spans), "head ranges leave gaps or overlap")
    _demand(ends[-1] == manifest.model.vocab_size, "head ranges do not cover the vocabulary")
    _demand(bool(manifest.head.hot_ranges), "there is no hot range")
    _demand((manifest.head.rest_graph is None) == (not manifest.head.rest_ranges), "head_rest and its ranges disagree")
    ids = [*manifest.tokenizer.eos_token_ids]
    ids += [] if manifest.tokenizer.bos_token_id is None else [manifest.tokenizer.bos_token_id]
    unknown = manifest.tokenizer.special_tokens.keys() - set(SPECIAL_TOKENS)
    _demand(not unknown, f"special tokens {sorted(unknown)} have no such names")
    _demand(all(i < manifest.model.vocab_size for i in ids), "a special token id is beyond the vocabulary")


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
