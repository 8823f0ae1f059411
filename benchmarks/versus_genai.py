"""Plain int4 decoding against onnxruntime-genai's own int4 CPU build: separate processes, alternating.

    python benchmarks/versus_genai.py ARTIFACT GENAI_FOLDER --genai-python PYTHON [--threads 2] [--rounds 5]

GENAI_FOLDER is made in an environment of its own (onnxruntime-genai, torch, transformers, onnx_ir) with
    python -m onnxruntime_genai.models.builder -i HF_FOLDER -o GENAI_FOLDER -p int4 -e cpu
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from pathlib import Path

_OURS = """
import sys, json, time
from selfspec import load
model = load(sys.argv[1], threads=int(sys.argv[2]))
model.codec.eos_token_ids = frozenset()
ids, count = json.loads(sys.argv[3]), int(sys.argv[4])
list(model.stream_ids(ids, max_new_tokens=16, draft="none"))
stream = model.stream_ids(ids, max_new_tokens=count, draft="none")
list(stream)
stats = stream.result.stats
print(1000 * stats.decode_seconds / (stats.generated_tokens - 1))
"""
_GENAI = """
import sys, json, time
import onnxruntime_genai as og
config = og.Config(sys.argv[1])
config.overlay(json.dumps({"model": {"decoder": {"session_options": {"intra_op_num_threads": int(sys.argv[2])}}}}))
model = og.Model(config)
ids, count = json.loads(sys.argv[3]), int(sys.argv[4])
def run(n):
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=len(ids) + n, min_length=len(ids) + n, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens(ids)
    generator.generate_next_token()
    started = time.perf_counter()
    for _ in range(n - 1):
        generator.generate_next_token()
    return 1000 * (time.perf_counter() - started) / (n - 1)
run(16)
print(run(count))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact", type=Path)
    parser.add_argument("genai", type=Path)
    parser.add_argument("--genai-python", default=sys.executable)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=128)
    args = parser.parse_args()
    arms = {"ours": (sys.executable, _OURS, args.artifact), "genai": (args.genai_python, _GENAI, args.genai)}
    prompt = json.dumps(list(range(300, 364)))
    times: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(args.rounds):
        for name, (python, code, model) in arms.items():
            command = [python, "-c", code, str(model), str(args.threads), prompt, str(args.tokens)]
            out = subprocess.run(command, capture_output=True, text=True, check=True)
            times[name].append(float(out.stdout.split()[-1]))
    ours, genai = (statistics.median(times[name]) for name in ("ours", "genai"))
    print(f"ours {ours:.2f} ms/token, onnxruntime-genai {genai:.2f} ms/token: ratio {genai / ours:.2f}")
    print({name: [round(t, 2) for t in values] for name, values in times.items()})


if __name__ == "__main__":
    main()
