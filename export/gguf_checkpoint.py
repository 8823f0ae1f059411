"""GGUF files as checkpoints: names, shapes, row order and norms translated to Hugging Face's.

llama.cpp stores q and k of some architectures with their rows permuted for its interleaved rotary; rows are put back
on reading, which is exact for quantised rows too, since blocks run along the input dimension. Gemma's norms it stores
as gains, 1 + weight.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from ..errors import CheckpointError, UnsupportedModelError
from ..models.config import ModelConfig
from ..models.gguf_config import from_gguf, model_type_of
from ..models.registry import family_of
from .blocks import Blocks, Codes, Floats
from .checkpoint import TokenizerSource
from .gguf_parts import DAMAGED, damaged, open_parts

_GLOBAL_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# With a norm of each sublayer's output there are names for both; without, ffn_norm is the MLP's only one.
_PRE_NORM_NAMES = _LAYER_NAMES | {"ffn_norm": "post_attention_layernorm"}
_OUTPUT_NORM_NAMES = _LAYER_NAMES | {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


@dataclass(frozen=True, slots=True)
class Layout:
    """How llama.cpp stores a family: its names of a layer's tensors, and whether rows of q and k are interleaved."""

    names: Mapping[str, str]
    interleaved: bool = False


_PLAIN = Layout(_PRE_NORM_NAMES)
_LAYOUTS = {
    "gemma3_text": Layout(_OUTPUT_NORM_NAMES),
    "granite": Layout(_PRE_NORM_NAMES, interleaved=True),
    "llama": Layout(_PRE_NORM_NAMES, interleaved=True),
    "olmo2": Layout(_OUTPUT_NORM_NAMES),
    "smollm3": Layout(_PRE_NORM_NAMES, interleaved=True),
}
"""Families that are not stored plainly."""

_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.(weight|bias)")
_ROPE_FREQS = "rope_freqs.weight"


def hf_name(gguf_name: str, model_type: str) -> str:
    """'blk.3.attn_q.weight' → 'model.layers.3.self_attn.q_proj.weight'; unknown names are returned as they are."""
    match = _LAYER.fullmatch(gguf_name)
    names = _LAYOUTS.get(model_type, _PLAIN).names
    if match and match[2] in names:
        return f"model.layers.{match[1]}.{names[match[2]]}.{match[3]}"
    return _GLOBAL_NAMES.get(gguf_name, gguf_name)


def rotary_row_order(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """For each Hugging Face row of q or k, the GGUF row that holds it: halves from interleaved pairs."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


class GGUFCheckpoint:
    """One GGUF file, or all parts of a split one."""

    def __init__(self, path: Path) -> None:
        """Read metadata and tensor table.

        Raises:
            CheckpointError: not a GGUF file, shorter than its own tensor table says, or one of its parts is missing.
            UnsupportedModelError: the architecture or a feature is unknown.
        """
        self.path = path
        readers = open_parts(path)
        reader = readers[0]
        try:
            self.metadata: dict[str, Any] = {
                key: field.contents()
                for key, field in reader.fields.items()
                if not key.startswith("tokenizer.ggml.")  # long lists, read once by whoever needs them
            }
        except DAMAGED as error:
            raise damaged(path, error) from error
        self._reader = reader
        model_type = model_type_of(self.metadata.get("general.architecture"))
        self._tensors = {hf_name(t.name, model_type): t for r in readers for t in r.tensors}
        divisors = self._tensors.pop(_ROPE_FREQS, None)
        if "model.embed_tokens.weight" not in self._tensors:
            raise CheckpointError(f"{path} has no token_embd.weight tensor; it is not a language model.")
        self.config: ModelConfig = from_gguf(
            self.metadata,
            tied="lm_head.weight" not in self._tensors,
            vocab_size=int(self._tensors["model.embed_tokens.weight"].shape[1]),
            biases=self._biases(),
            rope_divisors=None if divisors is None else divisors.data.reshape(-1).tolist(),
        )
        self._orders: dict[str, NDArray[np.int64]] = {}
        if _LAYOUTS.get(model_type, _PLAIN).interleaved:
            for name, heads in (("q_proj", self.config.num_attention_heads), ("k_proj", self.config.num_kv_heads)):
                self._orders[f"self_attn.{name}"] = rotary_row_order(heads, self.config.head_dim)
        self._norm_offset = np.float32(family_of(model_type).norm_offset)

    def _biases(self) -> frozenset[str]:
        layer = "model.layers.0"
        places = {"qkv": "self_attn.q_proj", "output": "self_attn.o_proj", "mlp": "mlp.down_proj"}
        return frozenset(kind for kind, place in places.items() if f"{layer}.{place}.bias" in self._tensors)

    def field(self, key: str) -> Any:
        """A metadata value, arrays included, or None.

        Raises:
            CheckpointError: its bytes are no value of its type.
        """
        found = self._reader.fields.get(key)
        try:
            return None if found is None else found.contents()
        except DAMAGED as error:
            raise damaged(self.path, error) from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def stored_type(self, name: str) -> str:
        return str(self._tensors[name].tensor_type.name)

    def read(self, name: str, start: int, stop: int) -> Floats | Blocks:
        tensor = self._tensors[name]
        order = next((o for place, o in self._orders.items() if place in name), None)
        rows = tensor.data[start:stop] if order is None else tensor.data[order[start:stop]]
        if tensor.tensor_type is GGMLQuantizationType.Q8_0:
            return _q8_0(rows)
        if tensor.tensor_type is GGMLQuantizationType.Q4_0:
            return _q4_0(rows)
        if tensor.tensor_type is GGMLQuantizationType.Q4_1:
            return _q4_1(rows)
        try:
            values = np.ascontiguousarray(dequantize(rows, tensor.tensor_type), dtype=np.float32)
            return values - self._norm_offset if "norm" in name and self._norm_offset else values
        except (NotImplementedError, KeyError) as error:
            raise UnsupportedModelError(
                f"{self.path}: {name} is stored as {self.stored_type(name)}, which cannot be read yet."
            ) from error

    def tokenizer_files(self) -> TokenizerSource:
        from .gguf_tokenizer import GGUFTokenizer

        return GGUFTokenizer(self)


def _half(raw: Codes, start: int) -> Floats:
    """The half-precision number at byte ``start`` of every block."""
    return np.ascontiguousarray(raw[..., start : start + 2]).view(np.float16)[..., 0].astype(np.float32)


def _nibbles(raw: Codes) -> Codes:
    """Codes of 16 bytes a block: the lower halves are the first 16."""
    return np.concatenate([raw & 0xF, raw >> 4], axis=-1).reshape(raw.shape[0], -1).astype(np.uint8)


def _q8_0(rows: Codes) -> Blocks:
    """34 bytes a block: a float16 scale, 32 signed codes."""
    raw = rows.reshape(rows.shape[0], -1, 34)
    codes = (raw[..., 2:] ^ np.uint8(0x80)).reshape(rows.shape[0], -1)  # signed → offset by 128
    return Blocks(8, 32, codes, _half(raw, 0))


def _q4_0(rows: Codes) -> Blocks:
    """18 bytes a block: a float16 scale, 32 codes offset by 8."""
    raw = rows.reshape(rows.shape[0], -1, 18)
    return Blocks(4, 32, _nibbles(raw[..., 2:]), _half(raw, 0))


def _q4_1(rows: Codes) -> Blocks:
    """20 bytes a block: a float16 scale, a float16 minimum, 32 codes."""
    raw = rows.reshape(rows.shape[0], -1, 20)
    return Blocks(4, 32, _nibbles(raw[..., 4:]), _half(raw, 0), minima=_half(raw, 2))
