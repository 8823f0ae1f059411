"""Microseconds of one product: ONNX Runtime's MatMulNBits (4 bit, block 32, level 4) beside MatMulTiles.
With `attention`, of one layer's attention: GroupQueryAttention beside GroupedAttention.

    python -P bench.py [attention] [--threads 2] [--path avx2] [--bits 4] [--repeats 15] [--cpu]

Each shape has enough matrices, or layers, that none stays in the cache. The two take turns; medians are printed.
On a machine that others use too, take --threads 1 --cpu: the calling thread's processor time, least of the repeats.
-P keeps Python from importing the folder beside this file, which has no library, instead of the installed package.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import selfspec_kernels as kernels
from onnx import TensorProto, helper, numpy_helper, save_model
from selfspec_kernels import tiles

SHAPES = ((576, 1536, 120), (576, 49152, 3), (2048, 8192, 8))  # K, N, matrices
OPSETS = (("", 21), ("selfspec", 1), ("com.microsoft", 1))
ROWS = (1, 2, 4, 8, 16, 128)
LAYERS = ((9, 3, 64, 30), (4, 1, 256, 18))  # heads, key heads, head dim, layers: SmolLM2-135M, Gemma-3-270M
PASSES = ((1, 128), (4, 128), (8, 128), (1, 1024), (4, 1024), (8, 1024), (512, 0))  # rows, positions before them
CAPACITY = 1056


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
    outputs = [value(f"y{i}", ["M", n]) for i in range(count)]
    return opened(helper.make_graph(nodes, "g", [value("x", ["M", k])], outputs, weights), threads)


def value(name: str, shape: list[int | str], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def opened(graph: onnx.GraphProto, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.register_custom_ops_library(str(kernels.library_path()))
    opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS]
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.onnx"
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        save_model(model, str(path), save_as_external_data=True, location="weights.bin", size_threshold=0)
        return ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def attention(native: bool, heads: int, kv_heads: int, dim: int, layers: int, threads: int) -> ort.InferenceSession:
    """`layers` attentions of one input, each over a cache of its own."""
    shared = {"num_heads": heads, "kv_num_heads": kv_heads, "do_rotary": 1, "scale": dim**-0.5}
    op, domain, apart, own = (
        ("GroupedAttention", "selfspec", [], {"head_dim": dim, "window": 0, "eps": 0.0})
        if native
        else ("GroupQueryAttention", "com.microsoft", ["", ""], {"rotary_interleaved": 0})
    )
    nodes, inputs, outputs = [], [value("x", [1, "T", (heads + 2 * kv_heads) * dim])], []
    inputs += [value(name, [1], TensorProto.INT32) for name in ("last", "total")]
    inputs += [value(name, ["P", dim // 2]) for name in ("cos", "sin")]
    for i in range(layers):
        past, present = [f"k{i}", f"v{i}"], [f"present_k{i}", f"present_v{i}"]
        names = ["x", *apart, *past, "last", "total", "cos", "sin"]
        nodes.append(helper.make_node(op, names, [f"y{i}", *present], domain=domain, **shared, **own))
        inputs += [value(name, [1, kv_heads, CAPACITY, dim]) for name in past]
        outputs += [value(name, [1, kv_heads, CAPACITY, dim]) for name in present]
        outputs.append(value(f"y{i}", [1, "T", heads * dim]))
    return opened(helper.make_graph(nodes, "g", inputs, outputs), threads)


def attended(session: ort.InferenceSession, rows: int, position: int, shape: tuple[int, ...]) -> Callable[[], None]:
    """A pass of `rows` rows behind `position` others, bound in place."""
    heads, kv_heads, dim, layers = shape
    rng, binding = np.random.default_rng(0), session.io_binding()
    last = position + rows - 1
    feeds = {
        "x": rng.standard_normal((1, rows, (heads + 2 * kv_heads) * dim)).astype(np.float32),
        "last": np.array([last], np.int32),
        "total": np.array([last + 1], np.int32),
        "cos": np.ones((CAPACITY, dim // 2), np.float32),
        "sin": np.zeros((CAPACITY, dim // 2), np.float32),
    }
    for name, array in feeds.items():
        binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(array))
    kept = [*feeds.values(), np.empty((1, rows, heads * dim), np.float32)]  # the binding points at them
    mixed = ort.OrtValue.ortvalue_from_numpy(kept[-1])
    for i in range(layers):
        for part in "kv":
            cache = rng.standard_normal((1, kv_heads, CAPACITY, dim)).astype(np.float32)
            kept.append(cache)
            held = ort.OrtValue.ortvalue_from_numpy(cache)
            binding.bind_ortvalue_input(f"{part}{i}", held)
            binding.bind_ortvalue_output(f"present_{part}{i}", held)
        binding.bind_ortvalue_output(f"y{i}", mixed)

    def run(kept: list[np.ndarray] = kept) -> None:
        session.run_with_iobinding(binding)

    return run


def times(runs: list[Callable[[], object]], count: int, repeats: int, cpu: bool) -> Iterator[float]:
    """Microseconds of one of `count` operators, taking turns: median of wall time, or least processor time."""
    clock, pick = (time.thread_time, min) if cpu else (time.perf_counter, statistics.median)
    taken: list[list[float]] = [[] for _ in runs]
    for repeat in range(repeats + 1):
        for each, run in zip(taken, runs, strict=True):
            start = clock()
            run()
            if repeat:
                each.append((clock() - start) * 1e6 / count)
    return map(pick, taken)


def products(arguments: argparse.Namespace) -> None:
    for k, n, count in SHAPES:
        pair = [session(make, k, n, count, arguments.bits, arguments.threads) for make in (nbits, native)]
        print(f"\nK={k} N={n}, {count} matrices\n  rows  MatMulNBits  MatMulTiles  ratio")
        for m in ROWS:
            x = np.random.default_rng(m).standard_normal((m, k)).astype(np.float32)
            runs = [lambda op=op, x=x: op.run(["y0"], {"x": x}) for op in pair]
            theirs, ours = times(runs, count, arguments.repeats, arguments.cpu)
            print(f"  {m:4d}  {theirs:11.1f}  {ours:11.1f}  {theirs / ours:5.2f}", flush=True)


def attentions(arguments: argparse.Namespace) -> None:
    for shape in LAYERS:
        pair = [attention(native, *shape, arguments.threads) for native in (False, True)]
        heads, kv_heads, dim, layers = shape
        print(f"\n{heads} heads, {kv_heads} key heads of {dim}, {layers} layers")
        print("  rows  position  GroupQueryAttention  GroupedAttention  ratio")
        for rows, position in PASSES:
            runs = [attended(op, rows, position, shape) for op in pair]
            theirs, ours = times(runs, layers, arguments.repeats, arguments.cpu)
            print(f"  {rows:4d}  {position:8d}  {theirs:19.1f}  {ours:16.1f}  {theirs / ours:5.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("product", "attention"), default="product")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--path", choices=kernels.paths(), default=kernels.paths()[0])
    parser.add_argument("--bits", type=int, choices=(4, 8), default=4)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--cpu", action="store_true")
    arguments = parser.parse_args()
    if arguments.cpu and arguments.threads != 1:
        parser.error("--cpu sees the calling thread only; it needs --threads 1")
    kernels.use_path(arguments.path)
    print(
        f"{arguments.bits} bit, " * (arguments.what == "product")
        + f"{arguments.threads} threads, path {arguments.path}"
    )
    {"product": products, "attention": attentions}[arguments.what](arguments)


if __name__ == "__main__":
    main()
