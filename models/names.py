"""Files of an artifact and sizes that exporter and runtime must agree on. Standard library only."""

from __future__ import annotations

MANIFEST_NAME = "manifest.json"
WEIGHTS_NAME = "weights.bin"
PAD_ROWS = 8
"""Spare rows of rotary tables and KV buffers beyond the context, for the padding of exact passes."""

SPECIAL_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")
"""Names under which chat templates know special tokens."""

KERNEL_LAYOUTS = {"selfspec-kernels": 1}
"""Kernel libraries that graphs may need, by their package's name, and the layout of the weights that is read."""
