"""GGUF files as checkpoints: names, shapes and row order translated to Hugging Face's.

llama.cpp stores q and k of the llama architecture with their rows permuted for its interleaved rotary; rows are put
back on reading, which is exact for quantised rows too, since blocks run along the input dimension.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader
from gguf.quants import dequantize
from numpy.typing import NDArray

from ..errors import CheckpointError, UnsupportedModelError
from ..models.config import ModelConfig, check_model_type, from_gguf
from .blocks import Blocks, Codes, Floats
from .checkpoint import TokenizerSource
from .gguf_header import check_gguf_header

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
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER = re.compile(r"blk\.(\d+)\.(\w+)\.weight")
_ROPE_FREQS = "rope_freqs.weight"
_DAMAGED = (ValueError, IndexError, KeyError, TypeError, OverflowError, UnicodeDecodeError, struct.error, OSError)


def hf_name(gguf_name: str) -> str:
    """'blk.3.attn_q.weight' → 'model.layers.3.self_attn.q_proj.weight'; unknown names are returned as they are."""
    match = _LAYER.fullmatch(gguf_name)
    if match and match[2] in _LAYER_NAMES:
        return f"model.layers.{match[1]}.{_LAYER_NAMES[match[2]]}.weight"
    return _GLOBAL_NAMES.get(gguf_name, gguf_name)


def rotary_row_order(num_heads: int, head_dim: int) -> NDArray[np.int64]:
    """For each Hugging Face row of q or k, the GGUF row that holds it: halves from interleaved pairs."""
    rows = np.arange(num_heads * head_dim).reshape(num_heads, head_dim // 2, 2)
    return rows.swapaxes(1, 2).reshape(-1)


def _damaged(path: Path, error: Exception) -> CheckpointError:
    return CheckpointError(f"{path} is not a complete GGUF file ({type(error).__name__}: {error}); download it again.")


class GGUFCheckpoint:
    """One .gguf file."""

    def __init__(self, path: Path) -> None:
        """Read metadata and tensor table.

        Raises:
            CheckpointError: not a GGUF file, or shorter than its own tensor table says.
            UnsupportedModelError: the architecture or a feature is unknown.
        """
        self.path = path
        check_gguf_header(path)
        try:
            reader = GGUFReader(path)
            self.metadata: dict[str, Any] = {
                key: field.contents()
                for key, field in reader.fields.items()
                if not key.startswith("tokenizer.ggml.")  # long lists, read once by whoever needs them
            }
        except _DAMAGED as error:
            raise _damaged(path, error) from error
        self._reader = reader
        self._tensors = {hf_name(t.name): t for t in reader.tensors}
        check_model_type(self.metadata.get("general.architecture"), str(path))
        divisors = self._tensors.pop(_ROPE_FREQS, None)
        if "model.embed_tokens.weight" not in self._tensors:
            raise CheckpointError(f"{path} has no token_embd.weight tensor; it is not a language model.")
        self.config: ModelConfig = from_gguf(
            self.metadata,
            tied="lm_head.weight" not in self._tensors,
            vocab_size=int(self._tensors["model.embed_tokens.weight"].shape[1]),
            rope_divisors=None if divisors is None else divisors.data.reshape(-1).tolist(),
        )
        self._orders = {
            "self_attn.q_proj.weight": rotary_row_order(self.config.num_attention_heads, self.config.head_dim),
            "self_attn.k_proj.weight": rotary_row_order(self.config.num_kv_heads, self.config.head_dim),
        }

    def field(self, key: str) -> Any:
        """A metadata value, arrays included, or None.

        Raises:
            CheckpointError: its bytes are no value of its type.
        """
        found = self._reader.fields.get(key)
        try:
            return None if found is None else found.contents()
        except _DAMAGED as error:
            raise _damaged(self.path, error) from error

    def shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(int(n) for n in reversed(t.shape)) for name, t in self._tensors.items()}

    def stored_type(self, name: str) -> str:
        return str(self._tensors[name].tensor_type.name)

    def read(self, name: str, start: int, stop: int) -> Floats | Blocks:
        tensor = self._tensors[name]
        order = next((o for suffix, o in self._orders.items() if name.endswith(suffix)), None)
        rows = tensor.data[start:stop] if order is None else tensor.data[order[start:stop]]
        if tensor.tensor_type is GGMLQuantizationType.Q8_0:
            return _q8_0(rows)
        if tensor.tensor_type is GGMLQuantizationType.Q4_0:
            return _q4_0(rows)
        try:
            return np.ascontiguousarray(dequantize(rows, tensor.tensor_type), dtype=np.float32)
        except (NotImplementedError, KeyError) as error:
            raise UnsupportedModelError(
                f"{self.path}: {name} is stored as {self.stored_type(name)}, which cannot be read yet."
            ) from error

    def tokenizer_files(self) -> TokenizerSource:
        from .tokenizer import GGUFTokenizer

        return GGUFTokenizer(self)


def _scales(raw: Codes) -> Floats:
    return np.ascontiguousarray(raw[..., :2]).view(np.float16)[..., 0].astype(np.float32)


def _q8_0(rows: Codes) -> Blocks:
    """34 bytes a block: a float16 scale, 32 signed codes."""
    raw = rows.reshape(rows.shape[0], -1, 34)
    codes = (raw[..., 2:] ^ np.uint8(0x80)).reshape(rows.shape[0], -1)  # signed → offset by 128
    return Blocks(8, 32, codes, _scales(raw))


def _q4_0(rows: Codes) -> Blocks:
    """18 bytes a block: a float16 scale, 32 codes offset by 8; the lower halves are the first 16."""
    raw = rows.reshape(rows.shape[0], -1, 18)
    nibbles = raw[..., 2:]
    codes = np.concatenate([nibbles & 0xF, nibbles >> 4], axis=-1).reshape(rows.shape[0], -1)
    return Blocks(4, 32, codes.astype(np.uint8), _scales(raw))
