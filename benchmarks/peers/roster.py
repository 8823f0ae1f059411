"""The peers of benchmarks.peers: what each needs installed, and what it is asked to do."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN = "plain"
EARLY_EXIT = "early-exit"
PROMPT_LOOKUP = "prompt-lookup"
SMOLLM2, GEMMA = "smollm2-135m", "gemma3-270m"
MODELS = (SMOLLM2, GEMMA)
NOT_TRIED = "not tried on this model"


@dataclass(frozen=True, slots=True)
class Peer:
    """``worker``: a script of ``workers/``. ``requirements``: what its environment is made with, exactly; peers with
    the same ``environment`` share one. ``install_options``: for pip, before the requirements. ``arms``: plain first.
    ``models``: what it runs; on others it is listed as not tried."""

    name: str
    precision: str
    worker: str
    environment: str
    requirements: tuple[str, ...]
    arms: tuple[str, ...] = (PLAIN,)
    install_options: tuple[str, ...] = ()
    models: tuple[str, ...] = (SMOLLM2,)


# Hugging Face's transformers and onnxruntime-genai, whose builder needs it, agree on versions and share an environment.
_TORCH = (
    "torch==2.13.0", "transformers==5.24.0", "onnxruntime-genai==0.18.0", "onnxruntime==1.32.0", "onnx_ir==1.1.0",
)  # fmt: skip
_OPTIMUM = (
    "torch==2.13.0", "optimum-onnx==0.1.0", "optimum==2.1.0", "transformers==4.57.6", "accelerate==1.15.0",
    "onnx==1.23.2", "onnxruntime==1.32.0",
)  # fmt: skip
_HUGGING_FACE: tuple[Peer, ...] = (
    Peer(
        "transformers", "fp32", "transformers_worker.py", "transformers", _TORCH, (PLAIN, EARLY_EXIT, PROMPT_LOOKUP),
        models=MODELS,
    ),
    Peer("optimum-onnx", "fp32", "optimum_onnx_worker.py", "optimum-onnx", _OPTIMUM),
    Peer("onnxruntime-genai", "int4", "genai_worker.py", "transformers", _TORCH, models=MODELS),
)  # fmt: skip

_LLAMA_CPP = ("llama-cpp-python==0.3.36", "numpy==2.4.6")
"""Compiled where it is installed, with its own defaults: for this machine's instructions, with OpenMP."""

_OPENVINO = (
    "openvino-genai==2026.4.1.0",
    "openvino-tokenizers==2026.4.1.0",
    "openvino==2026.4.1",
    "gguf==0.19.0",
    "numpy==2.4.6",
)

_CTRANSLATE2 = ("torch==2.13.0", "transformers==5.24.0", "tokenizers==0.23.3", "ctranslate2==4.8.5", "numpy==2.4.6")

_NATIVE = (
    *(
        Peer(
            f"llama.cpp {name}",
            precision,
            "llama_cpp_worker.py",
            "llama_cpp",
            _LLAMA_CPP,
            (PLAIN, PROMPT_LOOKUP),
            models=MODELS,
        )
        for name, precision in (("F32", "fp32"), ("Q8_0", "int8"), ("Q4_0", "int4"))
    ),
    Peer("llama.cpp Q4_1", "int4", "llama_cpp_q4_1_worker.py", "llama_cpp", _LLAMA_CPP, (PLAIN, PROMPT_LOOKUP)),
    *(
        Peer(
            f"OpenVINO GenAI {precision}",
            precision,
            "openvino_worker.py",
            "openvino",
            _OPENVINO,
            (PLAIN, PROMPT_LOOKUP),
        )
        for precision in ("int8", "int4")
    ),
    *(
        Peer(f"CTranslate2 {precision}", precision, "ctranslate2_worker.py", "ctranslate2", _CTRANSLATE2)
        for precision in ("fp32", "int8")
    ),
)

PEERS: tuple[Peer, ...] = (*_HUGGING_FACE, *_NATIVE)
