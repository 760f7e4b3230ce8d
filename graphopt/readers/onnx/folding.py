"""Shape arithmetic in ONNX models: Shape -> Gather -> Concat -> Reshape and the like, computed where all is known.

ONNX's own shape inference follows only some operators. Here small constant results are computed
(`onnx_evaluation.py`) and put in their place, and inference runs again, as long as that settles further shapes.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from graphopt.core.graph_builder import RANK
from graphopt.readers.onnx.evaluation import STANDARD, evaluated, shape_value
from graphopt.readers.onnx.model import opsets_of, subgraphs, types_of, values_of

LONG = 4096  # sizes in a list, more than any tensor has
SMALL = 256  # elements; larger constants hold no shapes or axes
_ROUNDS = 200  # each settles at least one more link of a chain of shape computations
_INFERENCES = 500_000  # nodes looked at in all rounds

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)

Array = NDArray[Any]
Values = dict[str, Array]
Shapes = dict[str, tuple[int, ...] | None]
Infer = Callable[[ModelProto, bool], ModelProto]


def settle_shapes(model: ModelProto, infer: Infer) -> ModelProto:
    """`infer(model, whether to follow values)`, repeated with constants computed in between while tensors lack a shape
    and that helps."""
    follow = stays_short(model)
    model = infer(model, follow)
    for _ in range(min(_ROUNDS, _INFERENCES // max(len(model.graph.node), 1))):
        if _settled(model) or not _fold(model):
            break
        model = infer(model, follow)
    return model


def stays_short(model: ModelProto) -> bool:
    """Whether no list of sizes that ONNX's inference would follow becomes long: forty nodes that each join one with
    itself make 10^12 sizes of it."""
    length = {w.name: prod(w.dims) for w in model.graph.initializer if w.data_type in _INTEGERS}
    waiting = list(reversed(model.graph.node))
    while waiting:
        node = waiting.pop()
        longest = _length(node, [length.get(name, 0) for name in node.input])
        if longest > LONG:
            return False
        length.update(dict.fromkeys(node.output, longest))
        for graph in subgraphs(node):
            length.update({v.name: RANK for v in graph.input})
            waiting += reversed(graph.node)
    return True


def _length(node: NodeProto, inputs: list[int]) -> int:
    """How many sizes ONNX's inference may know of the results; 0 for what holds no sizes."""
    match node.op_type:
        case "Shape":
            return RANK
        case "Constant":
            return max((max(prod(a.t.dims) if a.t.data_type in _INTEGERS else 0, len(a.ints)) for a in node.attribute),
                       default=0)  # fmt: skip
        case "Concat":
            return sum(inputs)
        case "Add" | "Sub" | "Mul" | "Div":
            return max(inputs, default=0)
        case "Gather" if inputs and inputs[0]:
            return max(inputs)
    return inputs[0] if inputs else 0


def static_shape(value: onnx.ValueInfoProto) -> tuple[int, ...] | None:
    """The shape, or None when a dimension or the rank is not known, or it is no tensor."""
    tensor = value.type.tensor_type
    if not value.type.HasField("tensor_type") or not tensor.HasField("shape"):
        return None
    if any(not d.HasField("dim_value") for d in tensor.shape.dim):
        return None
    return tuple(d.dim_value for d in tensor.shape.dim)


def _shapes(model: ModelProto) -> Shapes:
    return {name: static_shape(value) for name, value in types_of(model.graph).items()}


def _settled(model: ModelProto) -> bool:
    shapes = _shapes(model)
    return all(shapes.get(name) is not None for node in model.graph.node for name in node.output if name)


def _fold(model: ModelProto) -> int:
    """Puts Constant nodes in the place of nodes with small known results, in place. Returns how many."""
    shapes = _shapes(model)
    values: Values = {
        w.name: values_of(w, "the model")
        for w in model.graph.initializer
        if prod(w.dims) <= SMALL and w.data_location != TensorProto.EXTERNAL
    }
    opsets = opsets_of(model)
    folded = 0
    for node in model.graph.node:
        result = _value(node, shapes, values, opsets)
        if result is None:
            continue
        values[node.output[0]] = result
        if node.op_type != "Constant":
            tensor = onnx.numpy_helper.from_array(result)
            node.CopyFrom(onnx.helper.make_node("Constant", [], [node.output[0]], name=node.name, value=tensor))
            folded += 1
    return folded


def _value(node: NodeProto, shapes: Shapes, values: Values, opsets: dict[str, int]) -> Array | None:
    """The node's only result when it follows from known constants and is small."""
    if len(node.output) != 1 or (not node.input and node.op_type != "Constant"):
        return None
    if node.op_type in ("Shape", "Size") and node.domain in STANDARD:
        shape = shapes.get(node.input[0])
        return None if shape is None else shape_value(node, shape)[node.output[0]]
    if any(name and name not in values for name in node.input):
        return None
    result = evaluated(node, {name: values[name] for name in node.input if name}, opsets, SMALL)
    return result[node.output[0]] if result else None
