"""Damaged files by the thousand: each is accepted, or refused in one sentence, within memory and time, and in silence.

SELFSPEC_FUZZ=N takes N times as many cases; a failure prints its seed, and SELFSPEC_FUZZ_SEED=S runs that one alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import gguf
import pytest

if TYPE_CHECKING:
    from tests.conftest import Tools, ToySpec

# (what is damaged, of which family, how often); together 2,930. Families differ in their configuration.
CASES = [
    ("gguf", "llama", 800), ("safetensors", "llama", 600), ("manifest", "llama", 400), ("manifest", "gemma3_text", 200),
    ("native manifest", "llama", 200), ("native weights", "llama", 150), ("native weights", "gemma3_text", 50),
    ("weights", "llama", 50),
    ("config.json", "llama", 60), ("config.json", "qwen3", 60), ("config.json", "gemma3_text", 60),
    ("config.json", "smollm3", 60), ("tokenizer.json", "llama", 140), ("generation_config.json", "llama", 50),
    ("tokenizer_config.json", "llama", 50),
]  # fmt: skip
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32}
ROOT = Path(__file__).parents[2]
FACTOR = int(os.environ.get("SELFSPEC_FUZZ", "1"))
ONE_SEED = os.environ.get("SELFSPEC_FUZZ_SEED")
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


def undamaged(kind: str, family: str, root: Path, tools: Tools) -> Path:
    """A toy of ``family``, as the file or folder that is opened."""
    spec = tools.spec(
        family=family, vocab=264, layers=1 if family == "llama" else 6, hidden=32, ff=32, heads=2, kv_heads=1,
        context=64, rope_scaling=YARN if family == "qwen3" else None,
    )  # fmt: skip
    if kind == "gguf":
        return write_gguf(root / "toy.gguf", spec, tools)
    folder = tools.write(root / "model", spec, chat_template="{{ messages }}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eos|>"}, "bos_token": "x"}))
    if not kind.endswith(("manifest", "weights")):
        return folder
    if kind != "native manifest":
        return tools.export(folder, root / "artifact", kernels="native" if kind.startswith("native") else "ort")
    return with_head(tools.export(folder, root / "artifact", kernels="native", partition="both"))


def with_head(artifact: Path) -> Path:
    """List one more head, the hot one again, and a file of weights beside weights.bin; units overlap already."""
    manifest = json.loads((artifact / "manifest.json").read_text())
    graph, weights = "graphs/cpu/short.onnx", "heads/short.bin"
    (artifact / "heads").mkdir()
    (artifact / weights).write_bytes(bytes(64))
    (artifact / graph).write_bytes((artifact / manifest["head"]["hot_graph"]).read_bytes())
    manifest["draft_heads"] = [{"name": "short", "graph": graph, "ranges": manifest["head"]["hot_ranges"]}]
    manifest["weights"].append(weights)
    for name in (graph, weights):
        data = (artifact / name).read_bytes()
        manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    return artifact


def write_gguf(path: Path, spec: ToySpec, tools: Tools) -> Path:
    """The toy as a GGUF; its rows of q and k stand in another order, which no header knows."""
    writer = gguf.GGUFWriter(path, "llama")
    for key, value in (
        ("context_length", spec.context), ("embedding_length", spec.hidden), ("block_count", spec.layers),
        ("feed_forward_length", spec.ff), ("attention.head_count", spec.heads), ("rope.dimension_count", 16),
        ("attention.head_count_kv", spec.kv_heads), ("attention.key_length", spec.head_dim),
    ):  # fmt: skip
        writer.add_uint32(f"llama.{key}", value)
    writer.add_layer_norm_rms_eps(1e-5)
    model = json.loads(tools.byte_tokenizer(spec.vocab).to_str())["model"]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(model["vocab"], key=model["vocab"].__getitem__))
    writer.add_token_merges([" ".join(pair) for pair in model["merges"]])
    writer.add_token_types([3, 3] + [1] * (len(model["vocab"]) - 2))
    writer.add_eos_token_id(1)
    for name, values in tools.weights(spec).items():
        writer.add_tensor(gguf_name(name), values)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file):
        write()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    top = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
    stem = name.removesuffix(".weight")
    if stem in top:
        return f"{top[stem]}.weight"
    _, _, layer, *middle = stem.split(".")
    return f"blk.{layer}.{NAMES['.'.join(middle)]}.weight"


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="the memory limit needs Linux's /proc")
@pytest.mark.parametrize(("kind", "family", "count"), CASES)
def test_damaged_files_are_accepted_or_refused_in_one_sentence(
    tools: Tools, tmp_path: Path, kind: str, family: str, count: int
) -> None:
    """Tracebacks, crashes in C++, hangs, gigabytes for eight bytes, and a library's own words on stderr."""
    if kind.startswith("native"):
        pytest.importorskip("selfspec_kernels")
    first, count = (0, FACTOR * count) if ONE_SEED is None else (int(ONE_SEED), 1)
    (tmp_path / "source").mkdir()
    source = undamaged(kind, family, tmp_path / "source", tools)
    command = [sys.executable, "-m", "tests.fuzz.fuzzer", kind, str(source), str(tmp_path)]
    environment = os.environ | {"SELFSPEC_CACHE": str(tmp_path / "cache")}
    done = subprocess.run([*command, str(first), str(count)], cwd=ROOT, env=environment, capture_output=True, text=True)
    *problems, summary = done.stdout.splitlines() or [""]
    assert done.returncode == 0, f"{kind} seed {last_seed(tmp_path)} ended the process: {done.stderr[-3000:]}"
    assert not problems, "\n".join(problems[:20])
    outcomes = json.loads(summary)
    assert sum(outcomes.values()) == count
    if ONE_SEED is None:
        assert min(outcomes.get("accepted", 0), outcomes.get("refused", 0)) > 0, "nothing is reached, or noticed"


def last_seed(scratch: Path) -> str:
    file = scratch / "seed"
    return file.read_text() if file.exists() else "none"
