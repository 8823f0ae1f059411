"""ONNX Runtime with the library's operators; where it is not built, the module that asks for it is skipped."""

from pathlib import Path

import onnxruntime as ort
import pytest
import selfspec_kernels as kernels
from onnx import GraphProto, helper

try:
    LIBRARY = str(kernels.library_path())
except kernels.KernelError as error:
    pytest.skip(str(error), allow_module_level=True)


def open_session(model: bytes | Path, threads: int) -> ort.InferenceSession:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    options.register_custom_ops_library(LIBRARY)
    return ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def open_graph(graph: GraphProto, threads: int) -> ort.InferenceSession:
    opsets = [helper.make_opsetid(*opset) for opset in (("", 17), ("selfspec", 1), ("com.microsoft", 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    return open_session(model.SerializeToString(), threads)
