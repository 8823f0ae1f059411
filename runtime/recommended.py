"""How a model's makers recommend to sample: the artifact's generation_config.json, which is untrusted input."""

from __future__ import annotations

import json
from typing import Any, cast

from ..errors import ArtifactError, UsageError
from .artifact import Artifact
from .sampling import Sampling, SamplingOptions

FILE = "generation_config.json"
_NARROWING = ("temperature", "top_p", "top_k", "min_p")
_NAMES = (*_NARROWING, "repetition_penalty")


def recommended(artifact: Artifact) -> SamplingOptions:
    """Options of :meth:`Model.generate`; none where nothing is recommended.

    ``do_sample`` false means greedy. Where it is absent, any setting of sampling recommends it. Without a temperature
    it is 1, as with Hugging Face.

    Raises:
        ArtifactError: the file cannot be read, or recommends what cannot be.
    """
    data = _read(artifact)
    found: dict[str, Any] = {name: data[name] for name in _NAMES if data.get(name) is not None}
    samples = data.get("do_sample")
    if samples is None and any(name in found for name in _NARROWING):
        samples = True
    if samples is False:
        found = {"temperature": 0.0} | {
            name: found[name] for name in _NAMES if name in found and name not in _NARROWING
        }
    elif samples is True:
        found = {"temperature": 1.0, **found}
    elif samples is not None:
        raise _unusable(artifact, f"do_sample is {_shown(samples)}, where true or false was expected")
    return _checked(artifact, found)


def _checked(artifact: Artifact, found: dict[str, Any]) -> SamplingOptions:
    for name, value in found.items():
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise _unusable(artifact, f"{name} is {_shown(value)}, where a number was expected")
        if name == "top_k" and isinstance(value, float) and value.is_integer():
            found[name] = int(value)
    try:
        Sampling(**found)
    except UsageError as error:
        raise _unusable(artifact, str(error).rstrip(".").replace("`", "")[:200]) from error
    return cast(SamplingOptions, found)


def _read(artifact: Artifact) -> dict[str, Any]:
    if not artifact.has(FILE):
        return {}
    try:
        data = json.loads(artifact.read(FILE).decode("utf-8"))
    except (ValueError, RecursionError) as error:
        raise _unusable(artifact, "it is no JSON") from error
    if not isinstance(data, dict):
        raise _unusable(artifact, "it is no JSON object")
    return data


def _unusable(artifact: Artifact, problem: str) -> ArtifactError:
    return ArtifactError(
        f"{artifact.path / FILE} recommends no usable sampling ({problem}); choose your own, or mend it in the "
        "checkpoint and export again."
    )


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 60 else text[:57] + "..."


def applied(found: SamplingOptions, given: SamplingOptions) -> SamplingOptions:
    """What of the recommendation counts beside options that were ``given``: these win, and where they make it greedy,
    nothing is left to narrow.

    Raises:
        UsageError: an option that was given cannot be.
    """
    rest = {name: value for name, value in found.items() if name not in given}
    without_effect = Sampling.of(cast(SamplingOptions, {**rest, **given})).without_effect
    return cast(SamplingOptions, {name: value for name, value in rest.items() if name not in without_effect})


def described(options: SamplingOptions) -> str:
    """In words: ``temperature 0.7, top_p 0.8``."""
    if not options:
        return "nothing"
    if options.get("temperature") == 0 and len(options) == 1:
        return "greedy"
    return ", ".join(f"{name} {value:g}" for name, value in options.items())
