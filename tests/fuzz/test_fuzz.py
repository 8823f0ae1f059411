"""Damaged files by the thousand: each is accepted, or refused in one sentence, within memory and time, and in silence.

SELFSPEC_FUZZ=N takes N times as many cases; a failure prints its seed, and SELFSPEC_FUZZ_SEED=S runs that one alone.
"""

from __future__ import annotations

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

# Together 2,500.
CASES = {
    "gguf": 800, "safetensors": 600, "manifest": 700,
    "config.json": 150, "tokenizer.json": 150, "generation_config.json": 50, "tokenizer_config.json": 50,
}  # fmt: skip
ROOT = Path(__file__).parents[2]
FACTOR = int(os.environ.get("SELFSPEC_FUZZ", "1"))
ONE_SEED = os.environ.get("SELFSPEC_FUZZ_SEED")
NAMES = {
    "input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down",
}  # fmt: skip


@pytest.fixture(scope="module")
def spec(tools: Tools) -> ToySpec:
    return tools.spec(vocab=264, layers=1, hidden=32, ff=32, heads=2, kv_heads=1, context=64)


@pytest.fixture(scope="module")
def sources(tools: Tools, spec: ToySpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """What is damaged, by kind."""
    root = tmp_path_factory.mktemp("fuzz")
    folder = tools.write(root / "model", spec, chat_template="{{ messages }}")
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<|eos|>"}, "bos_token": "x"}))
    known = {"gguf": write_gguf(root / "toy.gguf", spec, tools), "manifest": tools.export(folder, root / "artifact")}
    return {kind: known.get(kind, folder) for kind in CASES}


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
@pytest.mark.parametrize("kind", CASES)
def test_damaged_files_are_accepted_or_refused_in_one_sentence(
    kind: str, sources: dict[str, Path], tmp_path: Path
) -> None:
    """Tracebacks, crashes in C++, hangs, gigabytes for eight bytes, and a library's own words on stderr."""
    first, count = (0, FACTOR * CASES[kind]) if ONE_SEED is None else (int(ONE_SEED), 1)
    command = [sys.executable, "-m", "tests.fuzz.fuzzer", kind, str(sources[kind]), str(tmp_path)]
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
