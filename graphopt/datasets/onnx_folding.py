"""Shape arithmetic in ONNX models: Shape -> Gather -> Concat -> Reshape and the like, computed where all is known.

ONNX's own shape inference follows only some operators. Here small constant results are computed by ONNX's reference
implementation and put in their place, and inference runs again, as long as that settles further shapes.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from graphopt.datasets.onnx_operators import kind_of

SMALL = 256  # elements; larger constants hold no shapes or axes
_ROUNDS = 200  # each settles at least one more link of a chain of shape computations

Array = NDArray[Any]
Values = dict[str, Array]
Shapes = dict[str, tuple[int, ...] | None]


def settle_shapes(model: ModelProto, infer: Callable[[ModelProto], ModelProto]) -> ModelProto:
    """`infer(model)`, repeated with constants computed in between while tensors lack a shape and that helps."""
    model = infer(model)
    for _ in range(_ROUNDS):
        if _settled(model) or not _fold(model):
            break
        model = infer(model)
    return model


def static_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The shape, or None when a dimension or the rank is not known, or it is no tensor."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    if any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


def _shapes(model: ModelProto) -> Shapes:
    graph = model.graph
    return {v.name: static_shape(v) for v in (*graph.value_info, *graph.input, *graph.output)}


def _settled(model: ModelProto) -> bool:
    shapes = _shapes(model)
    return all(shapes.get(name) is not None for node in model.graph.node for name in node.output if name)


def _fold(model: ModelProto) -> int:
    """Puts Constant nodes in the place of nodes with small known results, in place. Returns how many."""
    shapes = _shapes(model)
    values: Values = {
        w.name: onnx.numpy_helper.to_array(w)
        for w in model.graph.initializer
        if np.prod(w.dims) <= SMALL and w.data_location != TensorProto.EXTERNAL
    }
    folded = 0
    for node in model.graph.node:
        result = _value(node, shapes, values, model)
        if result is None:
            continue
        values[node.output[0]] = result
        if node.op_type != "Constant":
            tensor = onnx.numpy_helper.from_array(result)
            node.CopyFrom(onnx.helper.make_node("Constant", [], [node.output[0]], name=node.name, value=tensor))
            folded += 1
    return folded


def _value(node: NodeProto, shapes: Shapes, values: Values, model: ModelProto) -> Array | None:
    """The node's only result when it follows from known constants and is small."""
    if len(node.output) != 1:
        return None
    if node.op_type == "Constant":
        stored = next((a.t for a in node.attribute if a.name == "value"), None)
        if stored is not None:
            return onnx.numpy_helper.to_array(stored) if np.prod(stored.dims) <= SMALL else None
        return _evaluated(node, {}, model)
    if not node.input or kind_of(node.domain, node.op_type) in (None, "random"):
        return None
    if node.op_type in ("Shape", "Size") and shapes.get(node.input[0]) is not None:
        return _evaluated(node, {node.input[0]: np.broadcast_to(np.float32(0), shapes[node.input[0]] or ())}, model)
    if any(name and name not in values for name in node.input):
        return None
    if node.op_type == "ConstantOfShape" and np.prod(values[node.input[0]]) > SMALL:
        return None  # not even made: it may be large
    return _evaluated(node, {name: values[name] for name in node.input if name}, model)


def _evaluated(node: NodeProto, feeds: Values, model: ModelProto) -> Array | None:
    """The result by ONNX's reference implementation; None when it cannot run the node or the result is large."""
    from onnx.reference import ReferenceEvaluator  # slow to import, and few models need it

    try:
        result = onnx.helper.make_empty_tensor_value_info(node.output[0])
        graph = onnx.helper.make_graph([node], "one", [], [result])
        (value,) = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=model.opset_import)).run(None, feeds)
    except Exception:  # it raises all kinds of errors; the value then counts as unknown, as before
        return None
    return np.asarray(value) if isinstance(value, np.ndarray | np.generic) and value.size <= SMALL else None
