"""Microseconds of one product: ONNX Runtime's MatMulNBits (4 bit, block 32, level 4) beside MatMulTiles.

    python -P bench.py [--threads 2] [--path avx2] [--bits 4] [--repeats 15] [--cpu]

Each shape has enough matrices that none stays in the cache. The two take turns; medians are printed.
On a machine that others use too, take --threads 1 --cpu: the calling thread's processor time, least of the repeats.
-P keeps Python from importing the folder beside this file, which has no library, instead of the installed package.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort
import selfspec_kernels as kernels
from onnx import TensorProto, helper, numpy_helper, save_model
from selfspec_kernels import tiles

SHAPES = ((576, 1536, 120), (576, 49152, 3), (2048, 8192, 8))  # K, N, matrices
OPSETS = (("", 21), ("selfspec", 1), ("com.microsoft", 1))
ROWS = (1, 2, 4, 8, 16, 128)


def native(rng: np.random.Generator, n: int, k: int, bits: int) -> tuple[str, dict, list[np.ndarray]]:
    packed = rng.integers(0, 256, tiles.shape(n, k, bits, minima=False), dtype=np.uint8)
    halves = rng.uniform(0.001, 0.01, (n // 8, k // 32, 8)).astype(np.float16)
    packed[:, :, -16:] = halves.view(np.uint8)
    return "selfspec.MatMulTiles", {"bits": bits, "N": n, "K": k}, [packed]


def nbits(rng: np.random.Generator, n: int, k: int, bits: int) -> tuple[str, dict, list[np.ndarray]]:
    codes = rng.integers(0, 256, (n, k // 32, 4 * bits), dtype=np.uint8)
    scales = rng.uniform(0.001, 0.01, (n, k // 32)).astype(np.float32)
    attributes = {"bits": bits, "N": n, "K": k, "block_size": 32, "accuracy_level": 4}
    return "com.microsoft.MatMulNBits", attributes, [codes, scales]


def session(make, k: int, n: int, count: int, bits: int, threads: int) -> ort.InferenceSession:
    """`count` products of one input; every result is an output of the graph."""
    rng, nodes, weights = np.random.default_rng(0), [], []
    for i in range(count):
        name, attributes, arrays = make(rng, n, k, bits)
        names = [f"w{i}_{j}" for j in range(len(arrays))]
        weights += [numpy_helper.from_array(array, name) for array, name in zip(arrays, names, strict=True)]
        domain, op = name.rsplit(".", 1)
        nodes.append(helper.make_node(op, ["x", *names], [f"y{i}"], domain=domain, **attributes))
    outputs = [helper.make_tensor_value_info(f"y{i}", TensorProto.FLOAT, ["M", n]) for i in range(count)]
    graph = helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["M", k])], outputs, weights
    )
    opsets = [
        helper.make_opsetid(domain, version) for domain, version in (("", 21), ("selfspec", 1), ("com.microsoft", 1))
    ]
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(kernels.library_path()))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def times(sessions: list[ort.InferenceSession], x: np.ndarray, count: int, repeats: int, cpu: bool) -> Iterator[float]:
    """Microseconds of one product for each session, taking turns: median of wall time, or least processor time."""
    clock, pick = (time.thread_time, min) if cpu else (time.perf_counter, statistics.median)
    taken: list[list[float]] = [[] for _ in sessions]
    for repeat in range(repeats + 1):
        for each, run in zip(taken, sessions, strict=True):
            start = clock()
            run.run(["y0"], {"x": x})
            if repeat:
                each.append((clock() - start) * 1e6 / count)
    return map(pick, taken)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--path", choices=kernels.paths(), default=kernels.paths()[0])
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu and arguments.threads != 1:
        parser.error("--cpu sees the calling thread only; it needs --threads 1")
    kernels.use_path(arguments.path)
    print(f"{arguments.bits} bit, {arguments.threads} threads, path {arguments.path}; microseconds a product")
    for k, n, count in SHAPES:
        pair = [session(make, k, n, count, arguments.bits, arguments.threads) for make in (nbits, native)]
        print(f"\nK={k} N={n}, {count} matrices\n  rows  MatMulNBits  MatMulTiles  ratio")
        for m in ROWS:
            x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
            theirs, ours = times(pair, x, count, arguments.repeats, arguments.cpu)
            print(f"  {m:4d}  {theirs:11.1f}  {ours:11.1f}  {theirs / ours:5.2f}", flush=True)


if __name__ == "__main__":
    main()
