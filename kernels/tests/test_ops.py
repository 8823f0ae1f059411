"""The operators inside ONNX Runtime: right numbers, weights used where the file is mapped, damage refused."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import selfspec_kernels as kernels
from library import open_session
from onnx import TensorProto, helper
from selfspec_kernels import tiles

K, I, N = 64, 96, 40  # noqa: E741  the letters of the operators' attributes


def weights(n: int, k: int, bits: int = 4, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    scales = rng.uniform(0.001, 0.02, (n, k // 32)) * 16 / (1 << bits)
    codes = rng.integers(0, 1 << bits, (n, k), dtype=np.uint8)
    return tiles.pack(codes, scales, -scales * (1 << bits - 1), bits)


def rows(*shape: int) -> np.ndarray:
    return np.random.default_rng(1).standard_normal(shape).astype(np.float32)


def external(name: str, file: Path, offset: int, array: np.ndarray) -> onnx.TensorProto:
    tensor = onnx.TensorProto(name=name, data_type=TensorProto.UINT8, dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in (("location", file.name), ("offset", offset), ("length", array.nbytes)):
        tensor.external_data.add(key=key, value=str(value))
    return tensor


def save(folder: Path, op: str, x: int, matrices: list[np.ndarray], **attributes: object) -> Path:
    """A model of one operator, its weights in weights.bin; x is the input's element type."""
    names = [f"w{i}" for i in range(len(matrices))]
    tensors, offset = [], 0
    with (folder / "weights.bin").open("wb") as file:
        for name, array in zip(names, matrices, strict=True):
            file.seek(offset)
            file.write(array.tobytes())
            tensors.append(external(name, folder / "weights.bin", offset, array))
            offset = -(-(offset + array.nbytes) // 4096) * 4096
    node = helper.make_node(op, ["x", *names], ["y"], domain="selfspec", **attributes)
    graph = helper.make_graph(
        [node],
        op,
        [helper.make_tensor_value_info("x", x, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        tensors,
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("selfspec", 1)]
    (folder / "model.onnx").write_bytes(
        helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString()
    )
    return folder / "model.onnx"


def session(model: Path, threads: int = 1) -> ort.InferenceSession:
    return open_session(model, threads)


def mapped_at(address: int) -> str:
    """The file behind an address of this process, or what the kernel calls the region."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        low, high = (int(value, 16) for value in line.split()[0].split("-"))
        if low <= address < high:
            return line.split()[-1]
    return "nothing"


def test_the_operators_are_named() -> None:
    """Whoever exports asks for them by name: an installed library may be older than the exporter."""
    here = ("MatMulTiles", "GatherTiles", "GatedMLPTiles", "SparseMLPTiles", "GroupedAttention")
    assert kernels.operators() == here


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("shape", [(K,), (3, K), (2, 5, K), (0, K)])
def test_matmul_is_the_plain_calls(tmp_path: Path, bits: int, shape: tuple[int, ...]) -> None:
    """The operator adds shapes and threads to the product, no arithmetic of its own."""
    w, x = weights(N, K, bits), rows(*shape)
    [y] = session(save(tmp_path, "MatMulTiles", TensorProto.FLOAT, [w], bits=bits, N=N, K=K)).run(None, {"x": x})
    assert y.shape == (*shape[:-1], N)
    np.testing.assert_array_equal(y.reshape(-1, N), kernels.matmul(x.reshape(-1, K), w, bits))


@pytest.mark.parametrize("threads", [1, 2, 3, 4])
def test_a_row_has_the_same_bits_for_any_rows_and_threads(tmp_path: Path, threads: int) -> None:
    """Both operators, split over ONNX Runtime's pool."""
    n, k, inner = 520, 512, 1056
    x = rows(16, k)
    matmul = session(save(tmp_path, "MatMulTiles", TensorProto.FLOAT, [weights(n, k)], bits=4, N=n, K=k), threads)
    (tmp_path / "mlp").mkdir()
    mlp = session(save_mlp(tmp_path / "mlp", n, k, inner), threads)
    for op in (matmul, mlp):
        alone = np.concatenate([op.run(None, {"x": x[r : r + 1]})[0] for r in range(16)])
        for m in range(1, 17):
            np.testing.assert_array_equal(op.run(None, {"x": x[:m]})[0].view(np.int32), alone[:m].view(np.int32))


def test_one_session_may_run_in_several_threads(tmp_path: Path) -> None:
    """Working memory belongs to the calling thread; shared, two callers would mix their rows."""
    mlp = session(save_mlp(tmp_path, 64, 512, 1056), threads=2)
    inputs = [rows(m, 512) * m for m in range(1, 9)]
    want = [mlp.run(None, {"x": x})[0] for x in inputs]
    with ThreadPoolExecutor(4) as pool:
        for i, [got] in enumerate(pool.map(lambda x: mlp.run(None, {"x": x}), inputs * 20)):
            np.testing.assert_array_equal(got, want[i % len(want)])


def save_mlp(folder: Path, n: int, k: int, inner: int, activation: str = "silu") -> Path:
    matrices = [weights(2 * inner, k, 4), weights(n, inner, 8, seed=2)]
    return save(
        folder,
        "GatedMLPTiles",
        TensorProto.FLOAT,
        matrices,
        bits=4,
        down_bits=8,
        N=n,
        K=k,
        I=inner,
        activation=activation,
    )


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize("activation", [silu, gelu_tanh])
def test_gated_mlp_is_its_parts(tmp_path: Path, activation) -> None:
    """Against gate, activation, up and down one after the other: only the activation's last bits may differ."""
    x = 20 * rows(7, K)
    [y] = session(save_mlp(tmp_path, N, K, I, activation.__name__)).run(None, {"x": x})
    gate_up = kernels.matmul(x, weights(2 * I, K, 4), 4)
    hidden = activation(gate_up[:, :I].astype(np.float64)) * gate_up[:, I:]
    want = kernels.matmul(hidden.astype(np.float32), weights(N, I, 8, seed=2), 8)
    np.testing.assert_allclose(y, want, rtol=0, atol=2e-3 * np.abs(want).max())


@pytest.mark.parametrize("activation", [silu, gelu_tanh])
def test_activation_is_right_to_float32(tmp_path: Path, activation) -> None:
    """One value a block survives both quantisations, so y = activation(x) * x shows the activation alone."""
    codes = np.zeros((64, 32), np.uint8)
    codes[0, 0] = codes[32, 0] = 1  # gate and up of the first inner value
    gate_up, down = (tiles.pack(c, np.ones((len(c), 1)), np.zeros((len(c), 1)), 8) for c in (codes, codes[:8]))
    attributes = {"bits": 8, "down_bits": 8, "N": 8, "K": 32, "I": 32, "activation": activation.__name__}
    mlp = session(save(tmp_path, "GatedMLPTiles", TensorProto.FLOAT, [gate_up, down], **attributes))
    x = np.zeros((500, 32), np.float32)
    x[:, 0] = np.concatenate([np.linspace(-8, 12, 499), [300]])
    want = activation(x[:, 0].astype(np.float64)) * x[:, 0]
    np.testing.assert_allclose(mlp.run(None, {"x": x})[0][:, 0], want, rtol=2e-6, atol=1e-7)


@pytest.mark.parametrize("activation", ["silu", "gelu_tanh"])
def test_gated_mlp_has_the_same_bits_on_every_path(tmp_path: Path, activation: str) -> None:
    """The activation too is compiled once a path; a fused multiply in one of them would show."""
    x, mlp = 10 * rows(9, K), session(save_mlp(tmp_path, N, K, I, activation))
    want = mlp.run(None, {"x": x})[0]
    for path in kernels.paths():
        kernels.use_path(path)
        np.testing.assert_array_equal(mlp.run(None, {"x": x})[0], want)


def test_gated_mlp_in_chunks_of_rows_is_the_same(tmp_path: Path) -> None:
    """A prompt is computed 128 rows at a time; the seam must not show."""
    x = rows(261, K)
    mlp = session(save_mlp(tmp_path, N, K, I))
    [y] = mlp.run(None, {"x": x})
    for r in (0, 127, 128, 255, 256, 260):
        np.testing.assert_array_equal(y[r], mlp.run(None, {"x": x[r]})[0])


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("bits", [4, 8])
def test_gather_gives_the_dequantised_rows(tmp_path: Path, bits: int, symmetric: bool) -> None:
    w = weights(N, K, bits)
    if symmetric:
        w = tiles.pack(*tiles.unpack(w, bits)[:2], None, bits)
    gather = session(save(tmp_path, "GatherTiles", TensorProto.INT64, [w], bits=bits, N=N, K=K))
    ids = np.array([[0, N - 1, 7], [8, 9, 7]])
    np.testing.assert_array_equal(gather.run(None, {"x": ids})[0], tiles.dequantize(w, bits)[ids])
    for bad in (-1, N, 2**62):
        with pytest.raises(ort.capi.onnxruntime_pybind11_state.InvalidArgument, match=f"id {bad} is outside"):
            gather.run(None, {"x": np.array([0, bad])})


def test_weights_are_read_in_the_mapped_file(tmp_path: Path) -> None:
    """A copy, by ONNX Runtime or by us, would double the memory and lose the sharing between sessions."""
    n, k = 4096, 2048
    model = save(tmp_path, "MatMulTiles", TensorProto.FLOAT, [weights(n, k)], bits=4, N=n, K=k)
    sessions = [session(model), session(model)]
    for op in sessions:
        op.run(None, {"x": rows(1, k)})
        assert mapped_at(kernels.last_tiles()) == str(tmp_path / "weights.bin")


MATMUL = {"bits": 4, "N": N, "K": K}
MLP = {"bits": 4, "down_bits": 8, "N": N, "K": K, "I": I, "activation": "silu"}


@pytest.mark.parametrize(
    ("op", "attributes", "sentence"),
    [
        ("MatMulTiles", {**MATMUL, "bits": 5}, "bits is 5; 4 and 8 are known"),
        ("MatMulTiles", {**MATMUL, "N": 36}, "N is 36; it must be a positive multiple of 8"),
        ("MatMulTiles", {**MATMUL, "K": 48}, "K is 48; it must be a positive multiple of 32"),
        ("MatMulTiles", {**MATMUL, "K": 0}, "K is 0"),
        ("MatMulTiles", {**MATMUL, "N": -8}, "N is -8"),
        ("MatMulTiles", {**MATMUL, "N": 2**40}, "N is 1099511627776"),
        ("MatMulTiles", {**MATMUL, "N": N + 8}, r"1600 bytes; N=48, K=64 at 4 bits take 1920"),
        ("MatMulTiles", {"N": N, "K": K}, "lacks the integer attribute bits"),
        ("GatherTiles", {**MATMUL, "K": 2 * K}, "bytes"),
        ("GatedMLPTiles", {**MLP, "activation": "relu"}, "unknown activation 'relu'; silu and gelu_tanh are known"),
        ("GatedMLPTiles", {**MLP, "I": 128}, "bytes"),
        ("GatedMLPTiles", {k: v for k, v in MLP.items() if k != "activation"}, "lacks the attribute activation"),
    ],
)
def test_a_node_that_does_not_fit_its_weights_is_refused_at_load(
    tmp_path: Path, op: str, attributes: dict, sentence: str
) -> None:
    """Otherwise the first token reads past the mapped file."""
    matrices = [weights(2 * I, K), weights(N, I, 8)] if op == "GatedMLPTiles" else [weights(N, K)]
    kind = TensorProto.INT64 if op == "GatherTiles" else TensorProto.FLOAT
    with pytest.raises(Exception, match=sentence):
        session(save(tmp_path, op, kind, matrices, **attributes))


def test_a_shorter_tensor_at_run_time_is_refused(tmp_path: Path) -> None:
    """Weights may also arrive as an input, unknown until the call."""
    node = helper.make_node("MatMulTiles", ["x", "w"], ["y"], domain="selfspec", bits=4, N=N, K=K)
    values = [helper.make_tensor_value_info(*v) for v in (("x", 1, None), ("w", 2, None), ("y", 1, None))]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("selfspec", 1)]
    model = helper.make_model(
        helper.make_graph([node], "g", values[:2], values[2:]), opset_imports=opsets, ir_version=8
    )
    path = tmp_path / "model.onnx"
    path.write_bytes(model.SerializeToString())
    op, w, x = session(path), weights(N, K), rows(2, K)
    np.testing.assert_array_equal(op.run(None, {"x": x, "w": w})[0], kernels.matmul(x, w, 4))
    with pytest.raises(Exception, match="bytes"):
        op.run(None, {"x": x, "w": w.reshape(-1)[:-1]})
    with pytest.raises(Exception, match="x ends in 32; the weights need 64"):
        op.run(None, {"x": x[:, :32], "w": w})


def test_a_truncated_weights_file_is_refused_at_load(tmp_path: Path) -> None:
    model = save(tmp_path, "MatMulTiles", TensorProto.FLOAT, [weights(N, K)], **MATMUL)
    with (tmp_path / "weights.bin").open("r+b") as file:
        file.truncate(1500)
    with pytest.raises(Exception, match="w0"):
        session(model)


@pytest.mark.parametrize("seed", range(5))
def test_damaged_weights_only_give_other_numbers(tmp_path: Path, seed: int) -> None:
    """Every byte is a legal one; NaN scales must not crash a float-to-int conversion in the fused MLP either."""
    model = save_mlp(tmp_path, N, K, I)
    file = tmp_path / "weights.bin"
    file.write_bytes(np.random.default_rng(seed).integers(0, 256, file.stat().st_size, dtype=np.uint8).tobytes())
    [y] = session(model).run(None, {"x": rows(3, K)})
    assert y.shape == (3, N)
