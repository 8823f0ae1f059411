"""The peers of benchmarks/peers.py: what each needs installed, and what it is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain"
EARLY_EXIT = "early-exit"
PROMPT_LOOKUP = "prompt-lookup"


@dataclass(frozen=True, slots=True)
class Peer:
    """``worker``: a script of peer_workers. ``requirements``: what its environment is made with, exactly; peers with
    the same ``environment`` share one. ``install_options``: for pip, before the requirements. ``arms``: plain first."""

    name: str
    precision: str
    worker: str
    environment: str
    requirements: tuple[str, ...]
    arms: tuple[str, ...] = (PLAIN,)
    install_options: tuple[str, ...] = ()


# Hugging Face's transformers and onnxruntime-genai, whose builder needs it, agree on versions and share an environment.
_TORCH = (
    "torch==2.13.0", "transformers==5.24.0", "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx_ir==1.1.0",
)  # fmt: skip
_OPTIMUM = (
    "torch==2.13.0", "optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6", "accelerate==1.15.0",
    "onnx==1.23.2", "onnxruntime==1.32.0",
)  # fmt: skip
_HUGGING_FACE: tuple[Peer, ...] = (
    Peer("transformers", "fp32", "transformers_worker.py", "transformers", _TORCH, (PLAIN, EARLY_EXIT, PROMPT_LOOKUP)),
    Peer("optimum-onnx", "fp32", "optimum_onnx_worker.py", "optimum-onnx", _OPTIMUM),
    Peer("onnxruntime-genai", "int4", "genai_worker.py", "transformers", _TORCH),
)

PEERS: tuple[Peer, ...] = _HUGGING_FACE
