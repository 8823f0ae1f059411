"""Plain decoding through the artifact's block graphs against the same nodes in one graph; alternating, one process.

python -m benchmarks.kernels.fused ARTIFACT [--threads N] [--steps 64] [--rounds 9]
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort

from selfspec.models.interface import (
    HIDDEN,
    HIDDEN_OUT,
    INPUT_IDS,
    SEQLENS_K,
    TOTAL_SEQUENCE_LENGTH,
    is_logits,
    kv_names,
)
from selfspec.models.manifest import PAD_ROWS
from selfspec.models.sublayers import layer_sublayers
from selfspec.runtime.conversation import Conversation
from selfspec.runtime.model import Model, load
from selfspec.runtime.route import fewest_units

from ..timing import alternate, median_ms

CONTEXT = 64


def fused_model(model: Model) -> onnx.ModelProto:
    """Embed, every block and both head graphs chained into one; weights stay references into weights.bin."""
    manifest, folder = model.artifact.manifest, model.artifact.path
    units = fewest_units(manifest.units, layer_sublayers(0, manifest.model.num_layers))
    chain = [manifest.embed_graph, *(unit.graph for unit in units)]
    heads = [graph for graph, _ in manifest.whole_head]
    graphs = [onnx.load(folder / name, load_external_data=False) for name in [*chain, *heads]]
    fused = onnx.ModelProto()
    fused.CopyFrom(graphs[0])
    for field in ("node", "input", "output", "initializer"):
        del getattr(fused.graph, field)[:]
    seen: set[str] = set()
    for index, part in enumerate(graphs):
        _append(fused.graph, part.graph, index, min(index, len(chain)) - 1, seen)
    return fused


def _append(fused: onnx.GraphProto, part: onnx.GraphProto, index: int, source: int, seen: set[str]) -> None:
    shared = {t.name for t in part.initializer} | {
        v.name for v in [*part.input, *part.output] if v.name not in (HIDDEN, HIDDEN_OUT) and not is_logits(v.name)
    }

    def rename(name: str) -> str:
        return name if not name or name in shared else f"hidden_{source}" if name == HIDDEN else (
            f"hidden_{index}" if name == HIDDEN_OUT else f"{index}/{name}"
        )  # fmt: skip

    for node in part.node:
        copy = fused.node.add()
        copy.CopyFrom(node)
        copy.name = ""
        copy.input[:] = [rename(n) for n in node.input]
        copy.output[:] = [rename(n) for n in node.output]
    for tensor in part.initializer:
        if tensor.name not in seen:
            fused.initializer.add().CopyFrom(tensor)
            seen.add(tensor.name)
    for field in ("input", "output"):
        for value in getattr(part, field):
            if value.name not in (HIDDEN, HIDDEN_OUT) and value.name not in seen:
                copied = getattr(fused, field).add()
                copied.CopyFrom(value)
                copied.name = rename(value.name)
                seen.add(value.name if value.name in shared else copied.name)


class Fused:
    """One session for everything, bound for one row."""

    def __init__(self, model: Model) -> None:
        options = ort.SessionOptions()
        options.use_per_session_threads = False
        folder = str(model.artifact.path.resolve())
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        serialised = fused_model(model).SerializeToString()
        self._session = ort.InferenceSession(serialised, options, providers=["CPUExecutionProvider"])
        self._config = model.artifact.manifest.model
        shape = (1, self._config.num_kv_heads, 2048 + PAD_ROWS, self._config.head_dim)
        self._kv = {
            names: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
            for layer in range(self._config.num_layers)
            for names in kv_names(layer)
        }
        self._outputs: list[np.ndarray] = []

    def bind(self, rows: int) -> ort.IOBinding:
        binding = self._session.io_binding()
        self.ids, self.last, self.total = np.zeros((1, rows), np.int64), np.zeros(1, np.int32), np.zeros(1, np.int32)
        inputs = {INPUT_IDS: self.ids, SEQLENS_K: self.last, TOTAL_SEQUENCE_LENGTH: self.total}
        for name, array in inputs.items():
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
        for (past, present), value in self._kv.items():
            binding.bind_ortvalue_input(past, value)
            binding.bind_ortvalue_output(present, value)
        self._outputs = []
        for node in self._session.get_outputs():
            if is_logits(node.name):
                self._outputs.append(np.zeros((1, rows, node.shape[-1]), np.float32))
                binding.bind_ortvalue_output(node.name, ort.OrtValue.ortvalue_from_numpy(self._outputs[-1]))
        return binding

    def run(self, binding: ort.IOBinding, ids: np.ndarray, position: int) -> int:
        self.ids[0], self.last[0], self.total[0] = ids, position + len(ids) - 1, position + len(ids)
        self._session.run_with_iobinding(binding)
        return int(np.concatenate([o[0, -1] for o in self._outputs]).argmax())


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.kernels.fused",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("artifact", type=Path)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--steps", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    model = load(args.artifact, threads=args.threads)
    prompt = np.arange(CONTEXT) + 300
    fused, conversation = Fused(model), Conversation(model.sessions)
    conversation.prefill(prompt.tolist())
    fused.run(fused.bind(CONTEXT), prompt, 0)
    binding, stack = fused.bind(1), conversation.stack

    def blocks_arm() -> list[int]:
        tokens = [300]
        for i in range(args.steps):
            hidden = stack.run(conversation.full_plan, stack.embed(np.asarray(tokens[-1:])), CONTEXT + i)
            tokens.append(int(stack.logits(hidden)[0].argmax()))
        return tokens

    def fused_arm() -> list[int]:
        tokens = [300]
        for i in range(args.steps):
            tokens.append(fused.run(binding, np.asarray(tokens[-1:]), CONTEXT + i))
        return tokens

    same = blocks_arm() == fused_arm()
    times = alternate({"blocks": blocks_arm, "fused": fused_arm}, args.rounds)
    blocks, whole = (median_ms(times[name]) / args.steps for name in ("blocks", "fused"))
    print(
        f"blocks {blocks:.3f} ms/token, fused {whole:.3f} ms/token: blocks run at {whole / blocks:.3f} of fused speed"
    )
    print(f"same tokens: {'yes' if same else 'no'}; {model.sessions.threads} threads, ONNX Runtime {ort.__version__}")


if __name__ == "__main__":
    main()
