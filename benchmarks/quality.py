"""What quantisation does to the text: agreement and KL divergence with the float32 artifact, on its own answers.

python -m benchmarks.quality FP32_ARTIFACT ARTIFACT... [--threads N] [-o benchmarks/results/quality.json]
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict
from pathlib import Path

from selfspec.check.quality import compare, forced_logits, record
from selfspec.cli.command import Parser, run_command
from selfspec.errors import UsageError
from selfspec.models.manifest import WEIGHTS_NAME
from selfspec.runtime.model import load

from . import RESULTS
from .results import machine_facts, write_results


def main() -> int:
    parser = Parser(
        prog="python -m benchmarks.quality", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("reference", type=Path)
    parser.add_argument("artifacts", type=Path, nargs="+")
    parser.add_argument("--threads", type=int)
    parser.add_argument("-o", "--output", type=Path, default=RESULTS / "quality.json")
    args = parser.parse_args()
    return run_command(lambda: run(args), "python -m benchmarks.quality")


def run(args: argparse.Namespace) -> None:
    """Raises UsageError where the first artifact is not float32."""
    reference = load(args.reference, threads=args.threads)
    if reference.artifact.manifest.precision != "fp32":
        raise UsageError(f"{args.reference} is {reference.artifact.manifest.precision}; the first must be fp32.")
    recordings, rows = record(reference), []
    for path in args.artifacts:
        model = load(path, threads=args.threads)
        manifest = model.artifact.manifest
        found = compare(model, recordings, (forced_logits(reference, recording) for recording in recordings))
        rows.append(
            {"name": manifest.name, "precision": manifest.precision, "source": manifest.quantization.source}
            | {"weights_bytes": manifest.files[WEIGHTS_NAME].size, "digest": model.artifact.digest}
            | {"kernels": model.sessions.kernels_name}
            | asdict(found)
        )
        print(f"{manifest.name} {manifest.precision}: same best token {found.agreement:.1%}, KL {found.kl:.4f}")
    write_results(args.output, machine_facts(args.threads) | {"rows": rows})


if __name__ == "__main__":
    sys.exit(main())
