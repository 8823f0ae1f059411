"""The artifact's manifest: typed, versioned, and the only thing exporter and runtime have in common.

Standard library only. A manifest is untrusted input: everything is checked here, before anything is opened.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from ..errors import ArtifactError
from .config import ModelConfig
from .manifest_checks import check
from .names import KERNEL_LAYOUTS as KERNEL_LAYOUTS
from .names import MANIFEST_NAME as MANIFEST_NAME
from .names import PAD_ROWS as PAD_ROWS
from .names import SPECIAL_TOKENS as SPECIAL_TOKENS
from .names import WEIGHTS_NAME as WEIGHTS_NAME
from .sublayers import attention_layers, layer_sublayers, mlp_layers

FORMAT_VERSION = 4
_READ_VERSIONS = (3, FORMAT_VERSION)

EXPERTS_OPERATOR = "SparseMLPTiles"
"""What a kernel library needs for a model with experts; older ones lack it."""

MAX_REASON = 400
"""Characters of the sentence that says why an artifact's kernels were chosen."""


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
class DraftHead:
    """A head that only drafts: hidden states in, logits of the ids in ``ranges`` out. ``name`` is what users type."""

    name: str
    graph: str
    ranges: tuple[tuple[int, int], ...]


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
    ``kernels_reason``: why these, None where that is not known. ``units`` may overlap. ``weights``: the files that
    graphs may refer to, weights.bin and those of draft heads."""

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
    draft_heads: tuple[DraftHead, ...]
    exit_layers: tuple[int, ...]
    tokenizer: TokenizerFacts
    weights: tuple[str, ...]
    files: dict[str, FileFacts]
    producer: dict[str, str]

    @property
    def weight_sizes(self) -> dict[str, int]:
        """File that graphs may refer to → its bytes."""
        return {name: self.files[name].size for name in self.weights}

    @property
    def whole_head(self) -> tuple[tuple[str, tuple[tuple[int, int], ...]], ...]:
        """(graph, ranges) of the parts that are the target's head together."""
        hot = (self.head.hot_graph, self.head.hot_ranges)
        return (hot,) if self.head.rest_graph is None else (hot, (self.head.rest_graph, self.head.rest_ranges))

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
        if version not in _READ_VERSIONS or type(version) is not int:
            raise ArtifactError(
                f"{MANIFEST_NAME} has format version {version!r}, but this selfspec reads versions "
                f"{' and '.join(map(str, _READ_VERSIONS))}; install the selfspec that wrote it, or export the model "
                "again."
            )
        try:
            manifest = _parse(data if version == FORMAT_VERSION else _from_version_3(data))
        except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
            detail = f"{type(error).__name__}: {error}"
            raise ArtifactError(f"{MANIFEST_NAME} is damaged ({detail}); export the model again.") from error
        check(manifest)
        return manifest


def _from_version_3(data: dict[str, Any]) -> dict[str, Any]:
    """The same in today's format: one file of weights, no draft heads, and a reason for its kernels if it gave one."""
    added = {"format_version": FORMAT_VERSION, "weights": [WEIGHTS_NAME], "draft_heads": []}
    return {"kernels_reason": None} | data | added


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
        kernels_reason=None if data["kernels_reason"] is None else _reason(data["kernels_reason"]),
        embed_graph=_text(data["embed_graph"]),
        units=tuple(Unit(_text(u["graph"]), _count(u["start"]), _count(u["stop"])) for u in data["units"]),
        head=Head(
            hot_graph=_text(head["hot_graph"]),
            rest_graph=None if head["rest_graph"] is None else _text(head["rest_graph"]),
            hot_ranges=_ranges(head["hot_ranges"]),
            rest_ranges=_ranges(head["rest_ranges"]),
        ),
        draft_heads=tuple(
            DraftHead(_text(h["name"]), _text(h["graph"]), _ranges(h["ranges"])) for h in data["draft_heads"]
        ),
        exit_layers=tuple(_count(k) for k in data["exit_layers"]),
        tokenizer=TokenizerFacts(
            eos_token_ids=tuple(_count(i) for i in data["tokenizer"]["eos_token_ids"]),
            bos_token_id=None
            if data["tokenizer"]["bos_token_id"] is None
            else _count(data["tokenizer"]["bos_token_id"]),
            special_tokens={_text(k): _text(v) for k, v in data["tokenizer"]["special_tokens"].items()},
        ),
        weights=tuple(_text(name) for name in data["weights"]),
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
