"""Weights of native kernels are used where the file is mapped, so a tensor that is shorter than its shape, or than its
operator thinks, would be read beyond its end. All of it is refused before anything runs. ``tests/fuzz`` damages bytes.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import onnx_ir as ir
import pytest

from selfspec import load
from selfspec.cli.main import main
from selfspec.errors import ArtifactError

if TYPE_CHECKING:
    from tests.conftest import Toy

GRAPHS = ("embed", "block_000_002", "head_hot", "head_rest")


@pytest.fixture
def native(native_kernels: None, make_toy: Callable[..., Toy], tmp_path: Path) -> Path:
    """A copy that may be damaged."""
    toy = make_toy(precision="int4", kernels="native", exit_layers=(2, 4, 5), hot_vocab=250)
    return Path(shutil.copytree(toy.folder, tmp_path / "copy"))


def seal(folder: Path, name: str) -> None:
    """The manifest agrees with the damaged file, as a stranger's would."""
    data = (folder / name).read_bytes()
    manifest = json.loads((folder / "manifest.json").read_text())
    manifest["files"][name] = {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest))


def shorten(folder: Path, graph: str, change: Callable[[ir.ExternalTensor], ir.ExternalTensor]) -> None:
    """Change the first tensor in tiles of a graph."""
    name = f"graphs/cpu/{graph}.onnx"
    model = ir.load(folder / name)
    value = next(v for n, v in sorted(model.graph.initializers.items()) if n.endswith(".tiles"))
    assert isinstance(value.const_value, ir.ExternalTensor)
    value.const_value = change(value.const_value)
    (folder / name).write_bytes(ir.to_proto(model).SerializeToString())
    seal(folder, name)


def a_tile_less(place: Any) -> ir.ExternalTensor:
    tiles, *block = (int(n) for n in place.shape)
    length, shape = place.length // tiles * (tiles - 1), ir.Shape([tiles - 1, *block])
    return ir.ExternalTensor(place.location, place.offset, length, place.dtype, shape=shape, name=place.name)


def a_byte_less(place: Any) -> ir.ExternalTensor:
    length = place.length - 1
    return ir.ExternalTensor(place.location, place.offset, length, place.dtype, shape=place.shape, name=place.name)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_tensor_of_fewer_tiles_than_its_operator_reads_is_refused(native: Path, graph: str) -> None:
    """Graph, place and manifest agree; only the operator's own numbers do not."""
    shorten(native, graph, a_tile_less)
    with pytest.raises(ArtifactError, match=rf"{graph}\.onnx cannot be loaded .* bytes; N=\d+, K=\d+ at \d bits take"):
        load(native, threads=1)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_tensor_shorter_than_its_shape_is_refused(native: Path, graph: str) -> None:
    shorten(native, graph, a_byte_less)
    with pytest.raises(ArtifactError, match=rf"{graph}\.onnx cannot be loaded"):
        load(native, threads=1)


@pytest.mark.parametrize("sealed", [True, False])
def test_a_weights_file_that_is_cut_is_one_sentence(
    native: Path, sealed: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    """SIGBUS on the first token, where a page of the mapping lies beyond the file."""
    path = native / "weights.bin"
    path.write_bytes(path.read_bytes()[:-64])
    if sealed:
        seal(native, "weights.bin")
    assert main(["generate", str(native), "-p", "The", "-t", "1"]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert ("ends at byte" if sealed else "bytes where the manifest says") in captured.err
