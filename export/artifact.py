"""Checkpoint → artifact folder, written beside its final place and renamed into it, or not at all."""

from __future__ import annotations

import errno
import hashlib
import json
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

import numpy as np
import onnx_ir
from tokenizers import Tokenizer

from ..errors import ArtifactError, UnsupportedModelError, UsageError, unknown_name
from ..models.config import ModelConfig, RopeConfig
from ..models.family import LOCAL_ROTARY, ROTARY
from ..models.manifest import (
    FORMAT_VERSION,
    MANIFEST_NAME,
    PAD_ROWS,
    WEIGHTS_NAME,
    FileFacts,
    Manifest,
    Quantization,
    TokenizerFacts,
)  # fmt: skip
from ..models.registry import family_of
from ..models.rope import rotary_tables
from ..models.tensors import FLOAT_BITS, StoredTensor, TensorSpec
from .added_tokens import without_rows
from .blocks import Floats
from .checkpoint import Checkpoint, TokenizerSource
from .destination import destination
from .experts import count_parameters, settled_forms
from .graphs import cut, write_graphs
from .kernels import KERNELS, KernelChoice, choose_kernels
from .layouts import BLOCK_SIZES, TileLayout
from .vocabulary import coverage, split_head
from .weights import PRECISIONS, WeightsWriter, check_tensors, settled_tie

PARTITIONS = ("exits", "sublayer", "both")
LOW_COVERAGE = 0.85
_MAX_ROTARY_BYTES = 2**30

Progress = Callable[[list[TensorSpec]], Iterable[TensorSpec]]


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """What ``selfspec-export`` can be told. ``None`` means the default that depends on the model."""

    precision: str = "int4"
    block_size: int | None = None
    kernels: str = "auto"
    exit_layers: tuple[int, ...] | None = None
    partition: str = "exits"
    hot_vocab: int | None = None
    force: bool = False

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise UsageError(unknown_name("precision", self.precision, PRECISIONS), "precision")
        if self.block_size is not None and PRECISIONS[self.precision].linear_bits == FLOAT_BITS:
            raise UsageError(f"`block_size` has no effect with `precision` {self.precision}.", "block_size")
        if self.block_size not in (None, *BLOCK_SIZES):
            raise UsageError(f"`block_size` {self.block_size}: it must be one of {BLOCK_SIZES}.", "block_size")
        if self.kernels not in KERNELS:
            raise UsageError(unknown_name("kernels", self.kernels, KERNELS), "kernels")
        if self.kernels == "native":
            self._check_native()
        if self.partition not in PARTITIONS:
            raise UsageError(unknown_name("partition", self.partition, PARTITIONS), "partition")

    def _check_native(self) -> None:
        if PRECISIONS[self.precision].linear_bits == FLOAT_BITS:
            raise UsageError(
                f"`kernels` native multiplies 4- and 8-bit matrices and has none for `precision` {self.precision}.",
                "kernels",
            )
        size = TileLayout().block_size
        if self.block_size not in (None, size):
            raise UsageError(
                f"`kernels` native has blocks of {size}; leave `block_size` {self.block_size} out.", "block_size"
            )


@dataclass(frozen=True, slots=True)
class ExportReport:
    """What happened. ``exact`` and ``requantised`` count matrices by the type they had in the checkpoint;
    ``kernels`` are those that the artifact was made for. ``parameters``: of the whole model, and those that one token
    uses. ``warnings``: matrices that lost more than usual, and what of the text was not taken as the files say it."""

    output: Path
    manifest: Manifest
    hot_coverage: float
    kernels: KernelChoice
    parameters: tuple[int, int]
    exact: Counter[str] = field(default_factory=Counter)
    requantised: Counter[str] = field(default_factory=Counter)
    warnings: tuple[str, ...] = ()


def export_model(
    checkpoint: Checkpoint, name: str, output: Path, options: ExportOptions, progress: Progress = lambda specs: specs
) -> ExportReport:
    """Export ``checkpoint`` into the folder ``output``.

    Args:
        progress: wraps the list of tensors, to show a bar.

    Raises:
        SelfSpecError: one sentence on what is wrong with the checkpoint, the options or the disk. Nothing is left.
    """
    try:
        with destination(output, force=options.force) as folder:
            return _write(checkpoint, name, folder, output, options, progress)
    except OSError as error:
        reason = "the disk is full" if error.errno in (errno.ENOSPC, errno.EDQUOT) else str(error)
        raise ArtifactError(f"{output} cannot be written ({reason}); nothing was left behind.") from error


def _write(
    checkpoint: Checkpoint, name: str, root: Path, output: Path, options: ExportOptions, progress: Progress
) -> ExportReport:
    config = settled_tie(checkpoint.config, checkpoint)
    family = family_of(config.model_type)
    specs = settled_forms(family.tensor_specs(config), checkpoint.shapes())
    check_tensors(specs, checkpoint.shapes())
    units, exits = cut(config.num_layers, options.exit_layers, options.partition)
    text = checkpoint.tokenizer_files()
    tokenizer = Tokenizer.from_str(text.tokenizer_json())
    strangers = without_rows(tokenizer, config.vocab_size, text.chat_template())
    precision = PRECISIONS[options.precision]
    chosen = choose_kernels(options.kernels, precision, options.block_size, specs)
    if options.partition == "both" and chosen.facts is None:
        raise UsageError(
            "`partition` both needs native kernels, which read the weights in place: ONNX Runtime's would hold those "
            "of overlapping blocks twice in memory; use `partition` exits or sublayer.",
            "partition",
        )
    layout = chosen.layout
    hot, rest = split_head(tokenizer.get_vocab(), config.vocab_size, options.hot_vocab, layout.tile_rows)
    with WeightsWriter(root / WEIGHTS_NAME, precision, layout) as writer:
        weights = {spec.name: writer.tensor(spec, checkpoint) for spec in progress(specs)}
        weights |= _rotary(writer, config)
        embed_graph, head = write_graphs(root, family, chosen.kernels, config, weights, units, hot, rest)
        facts = _write_text(root, text)
        sources = writer.exact + writer.requantised
        manifest = Manifest(
            format_version=FORMAT_VERSION,
            name=name.encode("utf-8", "replace").decode("utf-8"),  # a folder's, which need not be text
            target="cpu",
            precision=precision.name,
            model=config,
            quantization=Quantization(
                bits=precision.linear_bits,
                head_bits=precision.head_bits,
                block_size=layout.block_size,
                source=" ".join(f"{kind}×{count}" for kind, count in sorted(sources.items())),
            ),
            kernels=chosen.facts,
            kernels_reason=chosen.reason,
            embed_graph=embed_graph,
            units=units,
            head=head,
            draft_heads=(),
            exit_layers=exits,
            tokenizer=facts,
            weights=(WEIGHTS_NAME,),
            files={WEIGHTS_NAME: FileFacts(writer.size, writer.sha256())} | _small_files(root),
            producer={"selfspec": metadata.version("selfspec"), "onnx-ir": onnx_ir.__version__},
        )
    (root / WEIGHTS_NAME).stat()  # it is gone where somebody removed the folder while we wrote
    (root / MANIFEST_NAME).write_text(manifest.to_json(), encoding="utf-8")
    Manifest.from_json(manifest.to_json())  # what the runtime will check, checked before anyone sees it
    parameters = count_parameters(specs, config)
    hot_coverage, warnings = coverage(tokenizer, hot), (*writer.warnings, *text.warnings(), *strangers)
    return ExportReport(output, manifest, hot_coverage, chosen, parameters, writer.exact, writer.requantised, warnings)


def _rotary(writer: WeightsWriter, config: ModelConfig) -> dict[str, StoredTensor]:
    stored = {}
    for name, rope in ((ROTARY, config.rope), (LOCAL_ROTARY, config.local_rope)):
        if rope is not None:
            tables = _tables(rope, config)
            for part, table in zip(("cos", "sin"), tables, strict=True):
                stored[f"{name}.{part}"] = writer.vector(f"{name}.{part}", table)
    return stored


def _tables(rope: RopeConfig, config: ModelConfig) -> tuple[Floats, Floats]:
    rows = config.context_length + PAD_ROWS
    size = 2 * 4 * rows * (config.head_dim // 2)
    try:
        if size > _MAX_ROTARY_BYTES:
            raise MemoryError
        with np.errstate(all="ignore"):  # what is not finite is refused by the writer
            return rotary_tables(rope, config.head_dim, rows)
    except MemoryError:
        raise UnsupportedModelError(
            f"a context of {config.context_length} tokens takes rotary tables of {size / 1e6:.0f} MB, too much here; "
            "write a smaller max_position_embeddings into a copy of the model's config.json."
        ) from None


def _write_text(root: Path, text: TokenizerSource) -> TokenizerFacts:
    (root / "tokenizer.json").write_text(text.tokenizer_json(), encoding="utf-8")
    generation = json.dumps(text.generation_config(), indent=2, ensure_ascii=False) + "\n"
    (root / "generation_config.json").write_text(generation, encoding="utf-8")
    template = text.chat_template()
    if template is not None:
        (root / "chat_template.jinja").write_text(template, encoding="utf-8")
    return TokenizerFacts(text.eos_token_ids(), text.bos_token_id(), text.special_tokens())


def _small_files(root: Path) -> dict[str, FileFacts]:
    paths = sorted(p for p in root.rglob("*") if p.is_file() and p.name != WEIGHTS_NAME)
    return {
        p.relative_to(root).as_posix(): FileFacts(p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest())
        for p in paths
    }
