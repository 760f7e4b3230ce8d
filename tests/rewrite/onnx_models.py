"""Small ONNX models, and what ONNX Runtime makes of models."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper

from graphopt.rewrite.io.onnx_export import export_onnx
from graphopt.rewrite.ir.terms import Program

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64
value = helper.make_tensor_value_info
Array = NDArray[Any]


def model_of(nodes: list[NodeProto], inputs: list[Any], outputs: list[Any], weights: dict[str, Any] | None = None,
             opset: int = 17) -> ModelProto:  # fmt: skip
    stored = [onnx.numpy_helper.from_array(np.asarray(w), name) for name, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, stored)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("my.ops", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def light(name: str) -> Path:
    return Path(onnx.__file__).parent / "backend/test/data/light" / f"{name}.onnx"


def run(model: ModelProto | Path, *inputs: Array) -> list[Array]:
    """Outputs by ONNX Runtime, without its optimisations, so that it is no accomplice."""
    runtime = pytest.importorskip("onnxruntime", reason="needs ONNX Runtime: pip install -e '.[onnx]'")
    options = runtime.SessionOptions()
    options.log_severity_level, options.intra_op_num_threads = 4, 1
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    source = model.SerializeToString() if isinstance(model, ModelProto) else str(model)
    session = runtime.InferenceSession(source, options, providers=["CPUExecutionProvider"])
    names = [i.name for i in session.get_inputs()]
    return list(session.run(None, dict(zip(names, inputs, strict=True))))


def exported(program: Program) -> ModelProto:
    """The model of a program, valid by ONNX's own checker."""
    model = export_onnx(program)
    onnx.checker.check_model(model, full_check=not any(o.domain == "my.ops" for o in model.opset_import))
    return model


def gap(known: list[Array], found: list[Array]) -> float:
    """The largest difference over the largest magnitude, of all outputs."""
    assert [k.shape for k in known] == [f.shape for f in found]
    assert [k.dtype for k in known] == [f.dtype for f in found]
    return max(float(np.abs(k.astype(float) - f.astype(float)).max() / max(np.abs(k.astype(float)).max(), 1e-30))
               for k, f in zip(known, found) if k.size)  # fmt: skip
