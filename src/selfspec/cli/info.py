"""``selfspec info``: what an artifact holds, which kernels it uses and why, and what was measured of it here.

An artifact whose kernels cannot run here is described all the same: what to install is part of the answer.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass

from ..bench.work import works
from ..errors import ArtifactError, KernelSetupError
from ..models.manifest import Manifest
from ..runtime.artifact import Artifact, open_artifact
from ..runtime.costs import Profile
from ..runtime.drafters.fewer_experts import default_draft_experts
from ..runtime.drafters.registry import candidates, kinds
from ..runtime.limits import Cpus, cpus
from ..runtime.path_policy import best_path
from ..runtime.profile_store import load_profile
from ..runtime.recommended import described, recommended
from ..runtime.sessions import Sessions
from ..runtime.text import TextCodec
from ..runtime.threads import use_threads
from .output import print_json


@dataclass(frozen=True, slots=True)
class Here:
    """The artifact on this machine. ``kernels``: whose are in use, None where those it needs cannot run; then
    ``problem`` says why and what to do, and nothing was measured. ``threads`` run it; ``cpus`` is what
    this process may use."""

    kernels: str | None
    problem: str | None
    profile: Profile | None
    threads: int
    cpus: Cpus


def main(args: argparse.Namespace) -> None:
    """Raises: ArtifactError for what is missing or damaged, every graph included where it can be loaded."""
    artifact = open_artifact(args.artifact)
    codec = TextCodec(artifact)
    here = look(artifact, args.threads)
    if args.json:
        print_json(to_dict(artifact, here))
        return
    for key, value in _rows(artifact, here, "yes" if codec.has_chat_template else "no").items():
        print(f"{key:14} {value}")
    if here.profile is not None:
        print_profile(here.profile, artifact.manifest)


def look(artifact: Artifact, threads: int | None) -> Here:
    """Load the artifact as any other command does."""
    used = use_threads(threads)
    try:
        sessions = Sessions(artifact, used)
    except KernelSetupError as error:
        return Here(None, str(error), None, used, cpus())
    sessions.load_all()
    paths = [path.name for path in candidates(artifact.manifest)]
    return Here(sessions.kernels_name, None, load_profile(artifact, used, paths), used, cpus())


def to_dict(artifact: Artifact, here: Here) -> dict[str, object]:
    """The manifest, where ``kernels`` and ``kernels_reason`` say what was chosen at export, and this machine."""
    return asdict(artifact.manifest) | {
        "token_bytes": token_bytes(artifact),
        "kernels_in_use": here.kernels,
        "kernels_problem": here.problem,
        **recommendation(artifact),
        "threads": here.threads,
        "cpus": asdict(here.cpus),
        "profile": None if here.profile is None else here.profile.to_dict(),
    }


def recommendation(artifact: Artifact) -> dict[str, object]:
    """How the model's makers recommend to sample; or why that cannot be."""
    try:
        return {"recommended": recommended(artifact), "recommended_problem": None}
    except ArtifactError as error:
        return {"recommended": None, "recommended_problem": str(error)}


def _recommended(artifact: Artifact) -> str:
    try:
        found = recommended(artifact)
        return f"{described(found)} (--recommended; chat does so by itself)" if found else "nothing"
    except ArtifactError as error:
        return str(error)


def _rows(artifact: Artifact, here: Here, chat_template: str) -> dict[str, str]:
    manifest, config = artifact.manifest, artifact.manifest.model
    size = sum(facts.size for facts in manifest.files.values())
    hot = sum(stop - start for start, stop in manifest.head.hot_ranges)
    unusable = {} if here.problem is None else {"to run it": here.problem}
    return {
        "name": f"{manifest.name} ({config.model_type}), {size / 1e6:.0f} MB",
        "layers": f"{config.num_layers} of width {config.hidden_size}, {config.num_attention_heads} heads, "
        f"{config.num_kv_heads} key/value heads",
        "vocabulary": f"{config.vocab_size} tokens, {hot} of them hot",
        **_experts(artifact),
        "context": f"{config.context_length} tokens",
        "weights": _weights(manifest),
        "exit layers": ", ".join(map(str, manifest.exit_layers)) or "none",
        "kernels": f"{_kernels(manifest, here)}; {_why(manifest.kernels_reason)}",
        **unusable,
        "threads": f"{here.threads} ({here.cpus})",
        "graphs": f"{len(manifest.units)} blocks, for {manifest.target}",
        "chat template": chat_template,
        "recommended": _recommended(artifact),
        "made by": ", ".join(f"{k} {v}" for k, v in manifest.producer.items()),
        "profile": _profile(here),
    }


def _experts(artifact: Artifact) -> dict[str, str]:
    """What there is to say of a model with experts beside what there is of any."""
    moe = artifact.manifest.model.moe
    if moe is None:
        return {}
    shared = f", and one of {moe.shared_size} for every token" if moe.shared_size else ""
    read, fewer = token_bytes(artifact), default_draft_experts(artifact.manifest)
    drafted = (
        f"; drafted with {fewer} expert(s) {read['drafted'] / 1e6:.1f} MB" if fewer < moe.experts_per_token else ""
    )
    return {
        "experts": f"{moe.num_experts} of width {moe.expert_size} in {len(moe.layers)} layers, {moe.experts_per_token} "
        f"a token{shared}",
        "token reads": f"{read['plain'] / 1e6:.1f} MB of weights{drafted}",
    }


def token_bytes(artifact: Artifact) -> dict[str, int]:
    """Weights that a token reads ``plain``; of a model with experts also as ``fewer-experts`` drafts it, and with how
    many that is."""
    plain = {"plain": works(artifact).step.weight_bytes}
    if artifact.manifest.model.moe is None:
        return plain
    fewer = default_draft_experts(artifact.manifest)
    return plain | {"drafted": works(artifact, fewer).step.weight_bytes, "draft_experts": fewer}


def _weights(manifest: Manifest) -> str:
    stored = manifest.quantization
    kind = "float32" if stored.bits == 32 else (
        f"{stored.bits} bit, embedding and head {stored.head_bits} bit, blocks of {stored.block_size}"
    )  # fmt: skip
    return f"{kind}; from {stored.source}"


def _kernels(manifest: Manifest, here: Here) -> str:
    facts = manifest.kernels
    if facts is None:
        return f"{here.kernels}"
    return f"native (layout {facts.layout}): {here.kernels or f'{facts.name}, which cannot run here'}"


def _why(reason: str | None) -> str:
    return "why was not recorded at export" if reason is None else f"chosen at export: {reason}"


def _profile(here: Here) -> str:
    if here.problem is not None:
        return "none, since it cannot run here"
    return "none yet on this machine; selfspec profile makes one" if here.profile is None else "measured, see below"


def print_profile(profile: Profile, manifest: Manifest) -> None:
    """What was measured, one line a fact."""
    print(f"one-row pass   {1000 * profile.step_seconds[1]:.2f} ms ({1 / profile.step_seconds[1]:.1f} tok/s plain)")
    print("V(m)           " + "  ".join(f"{m}: {profile.verify_cost(m):.2f}" for m in profile.step_seconds))
    for name, found in profile.paths.items():
        print(
            f"{name:<24} costs {profile.draft_cost(name):.2f} of a pass, predicts {found.agreement:.2f} of the model's "
            "tokens"
        )
    for kind in kinds():
        best = best_path(profile, [path.name for path in kind.candidates(manifest)])
        if best is not None:
            print(
                f"{kind.name:<14} best as {best.path}, at most {best.num_tokens} token(s) a round: {best.rate:.2f} x "
                "plain by what was measured"
            )
    passes = profile.exact_passes
    if passes is None:
        print("exact          not possible here")
    else:
        cut = f", none across a multiple of {passes.boundary}" if passes.boundary else ""
        print(f"exact          passes padded to {passes.min_rows} row(s){cut}")
