"""Checkpoints of random weights at the shapes of published models: config.json, bfloat16 safetensors, tokenizer.json.

    python -m benchmarks.synthetic.checkpoints NAME FOLDER        with embeddings that tell rows apart

Which tensors there are is asked of the exporter's own families. Values come out of one pool of normal numbers, laid
out again and again, each tensor from a place of its own: writing is as fast as the disk and takes no memory. The same
seed gives the same bytes.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from selfspec.export.experts import count_parameters
from selfspec.models.hf_config import from_hf
from selfspec.models.registry import family_of

BYTES_PER_VALUE = 2  # bfloat16
STD = 0.02
_POOL = 2**22 + 17  # odd, so that no two rows of a matrix are the same
_SPECIAL = ("<|bos|>", "<|eos|>")

_LLAMA: dict[str, Any] = {"model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False}
_QWEN3: dict[str, Any] = {"model_type": "qwen3", "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False}
# A token uses as many weights of both, and too many for a last-level cache: 101 M in the MLPs alone. As wide as the
# small models with experts that people run. Tied, a model of random weights would say one token for ever.
_WIDE: dict[str, Any] = {
    "vocab_size": 4096, "hidden_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 16,
    "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 4096, "tie_word_embeddings": False,
    "rope_theta": 10_000.0,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "llama-3.2-1b": _LLAMA | {
        "vocab_size": 128_256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 131_072,
        "tie_word_embeddings": True, "rope_theta": 500_000.0,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen3-1.7b": _QWEN3 | {
        "vocab_size": 151_936, "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 28,
        "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "max_position_embeddings": 40_960,
        "tie_word_embeddings": True, "rope_theta": 1_000_000.0,
    },
    "olmoe-1b-7b": {
        "model_type": "olmoe", "hidden_act": "silu", "rms_norm_eps": 1e-5, "attention_bias": False, "clip_qkv": None,
        "vocab_size": 50_304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16,
        "num_attention_heads": 16, "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8,
        "norm_topk_prob": False, "max_position_embeddings": 4096, "tie_word_embeddings": False, "rope_theta": 10_000.0,
    },
    "wide-moe": _QWEN3 | _WIDE | {
        "model_type": "qwen3_moe", "intermediate_size": 4096, "moe_intermediate_size": 512, "num_experts": 64,
        "num_experts_per_tok": 8, "norm_topk_prob": True,
    },
    "wide-dense": _QWEN3 | _WIDE | {"intermediate_size": 4096},
    "tiny": _QWEN3 | {
        "vocab_size": 1000, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4,
        "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 512,
        "tie_word_embeddings": True, "rope_theta": 10_000.0,
    },
}  # fmt: skip
"""config.json by name: the published models' own settings; a wide mixture of experts, and a dense model of what it has
active, for benchmarks.experts; and a tiny one to try benchmarks.synthetic with."""

Shapes = dict[str, tuple[int, ...]]


def tensor_shapes(config: Mapping[str, Any]) -> Shapes:
    """Every tensor of a checkpoint with this config.json, under its Hugging Face name, in the order of a pass."""
    model = from_hf(dict(config))
    specs = family_of(model.model_type).tensor_specs(model)
    return {part: shape for spec in specs for part, shape in zip(spec.parts, spec.part_shapes, strict=True)}


def num_parameters(config: Mapping[str, Any]) -> tuple[int, int]:
    """(all, those that a token uses)."""
    model = from_hf(dict(config))
    return count_parameters(family_of(model.model_type).tensor_specs(model), model)


def write_checkpoint(
    folder: Path, config: Mapping[str, Any], *, seed: int = 0, shards: int = 1, embedding_std: float = STD
) -> Path:
    """A Hugging Face folder with random weights, in ``shards`` safetensors files. Returns ``folder``.

    Args:
        embedding_std: with a small one, what attention adds is the larger part of every row, so that rows are nearly
            the same and all are routed alike.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    vocab = int(config["vocab_size"])
    ids = {"bos_token_id": vocab - 2, "eos_token_id": vocab - 1}
    (folder / "config.json").write_text(json.dumps(dict(config) | ids, indent=2), encoding="utf-8")
    bpe_tokenizer(vocab).save(str(folder / "tokenizer.json"), pretty=False)
    random = np.random.default_rng(seed)
    pool = _pool(random)
    embedding = pool if embedding_std == STD else (pool.astype(np.float32) * (embedding_std / STD)).astype(pool.dtype)
    files = _split(tensor_shapes(config), shards)
    for name, shapes in files.items():
        with (folder / name).open("wb") as file:
            _write_header(file, shapes)
            for tensor, shape in shapes.items():
                start = int(random.integers(_POOL))
                if len(shape) == 1:  # every vector of these families is a norm
                    file.write(np.ones(shape, dtype=pool.dtype).tobytes())
                else:
                    values = embedding if "embed_tokens" in tensor else pool
                    _write_values(file, values, start, math.prod(shape))
    if shards > 1:
        placed = {tensor: name for name, shapes in files.items() for tensor in shapes}
        index = json.dumps({"metadata": {}, "weight_map": placed})
        (folder / "model.safetensors.index.json").write_text(index, encoding="utf-8")
    return folder


def bpe_tokenizer(vocab_size: int) -> Tokenizer:
    """Byte-level BPE with ``vocab_size`` entries: the bytes, as many strings of two, then three bytes as it takes, and
    two special tokens at the end. It reads any text.

    Raises:
        ValueError: ``vocab_size`` has no room for the bytes and the special tokens.
    """
    count = vocab_size - len(_SPECIAL)
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    if count < len(letters):
        raise ValueError(f"a vocabulary of {vocab_size} has no room for {len(letters)} bytes")
    words, merges = list(letters), list[tuple[str, str]]()
    for prefix in words:  # grows while it is read: strings of one byte, then of two, ...
        room = count - len(words)
        if not room:
            break
        merges += [(prefix, letter) for letter in letters[:room]]
        words += [prefix + letter for letter in letters[:room]]
    vocab = {word: index for index, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    return tokenizer


def _pool(random: np.random.Generator) -> NDArray[Any]:
    return (STD * random.standard_normal(_POOL, dtype=np.float32)).astype(ml_dtypes.bfloat16)


def _split(shapes: Shapes, shards: int) -> dict[str, Shapes]:
    """File name → its tensors, in order, of about the same size each."""
    if shards == 1:
        return {"model.safetensors": shapes}
    total, done, split = sum(map(math.prod, shapes.values())), 0, [Shapes() for _ in range(shards)]
    for name, shape in shapes.items():
        split[min(shards - 1, done * shards // total)][name] = shape
        done += math.prod(shape)
    return {f"model-{i:05d}-of-{shards:05d}.safetensors": part for i, part in enumerate(split, start=1) if part}


def _write_header(file: BinaryIO, shapes: Shapes) -> None:
    """Safetensors: the header's length in 8 bytes, the header, padded to 8 bytes; then the tensors, end to end."""
    header, offset = {}, 0
    for name, shape in shapes.items():
        end = offset + BYTES_PER_VALUE * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [offset, end]}
        offset = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)


def _write_values(file: BinaryIO, pool: NDArray[Any], start: int, count: int) -> None:
    for run in _runs(len(pool), start, count):
        file.write(pool[run].view(np.uint16).data)


def _runs(size: int, start: int, count: int) -> Iterator[slice]:
    """Slices of a ring of ``size`` values that make ``count`` of them from ``start`` on."""
    while count > 0:
        stop = min(size, start + count)
        yield slice(start, stop)
        count, start = count - (stop - start), 0


if __name__ == "__main__":
    write_checkpoint(Path(sys.argv[2]), CONFIGS[sys.argv[1]], embedding_std=1.0)
