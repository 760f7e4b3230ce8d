"""Constants of ONNX models, and shape arithmetic: Shape -> Gather -> Concat -> Reshape and the like, computed where all
is known.

ONNX's own shape inference follows only some operators. Here small constant results are computed by ONNX's reference
implementation and put in their place, and inference runs again, as long as that settles further shapes.

A few bytes of a model can ask for 10^12 elements, or for a loop of 10^12 trips. So an operator is evaluated only if it
stands in `SIZES` and the size of its result, which follows from its inputs, is within the limit. Nothing else is,
subgraphs never.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite, prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto

from graphopt.core.graph_builder import RANK
from graphopt.graphs.readers.onnx.model import opsets_of, subgraphs, types_of, values_of

Array = NDArray[Any]
Shape = tuple[int, ...]
STANDARD = ("", "ai.onnx")


def evaluated(
    node: NodeProto, given: Mapping[str, Array], opsets: Mapping[str, int], most: int
) -> dict[str, Array] | None:
    """The node's results from its inputs; None where it is none of the operators below, fails, or makes or reads more
    than `most` elements."""
    if node.domain not in STANDARD or subgraphs(node) or (node.op_type not in SIZES and node.op_type != "Constant"):
        return None
    try:
        if node.op_type == "Constant":
            return _stored(node, most)
        inputs = [given[name] if name else None for name in node.input]
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        read = max((x.size for x in inputs if x is not None), default=0)
        if max(SIZES[node.op_type](inputs, attributes), read) > most:
            return None
        return _run(node, given, opsets)
    except Exception:  # any exception by a malformed node; its value then counts as unknown
        return None


def shape_value(node: NodeProto, shape: Shape) -> dict[str, Array]:
    """The result of Shape or Size of a tensor."""
    if node.op_type == "Size":
        return {node.output[0]: np.asarray(prod(shape), np.int64)}
    bounds = {a.name: a.i for a in node.attribute}
    return {node.output[0]: np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)}


def _stored(node: NodeProto, most: int) -> dict[str, Array] | None:
    """The value of a Constant, which stands in one of several attributes. Sparse ones are no constants here."""
    (attribute,) = node.attribute
    if attribute.name == "value":
        if prod(attribute.t.dims) > most or attribute.t.data_location == onnx.TensorProto.EXTERNAL:
            return None
        return {node.output[0]: onnx.numpy_helper.to_array(attribute.t)}
    dtype: Any = {"value_float": np.float32, "value_floats": np.float32, "value_int": np.int64, "value_ints": np.int64,
                  "value_string": object, "value_strings": object}[attribute.name]  # fmt: skip
    value = onnx.helper.get_attribute_value(attribute)
    listed = (
        np.asarray([v.decode() if isinstance(v, bytes) else v for v in value], dtype)
        if (attribute.name.endswith("s"))
        else np.asarray(value.decode() if isinstance(value, bytes) else value, dtype)
    )
    return {node.output[0]: listed} if listed.size <= most else None


def _run(node: NodeProto, given: Mapping[str, Array], opsets: Mapping[str, int]) -> dict[str, Array] | None:
    from onnx.reference import ReferenceEvaluator  # slow to import, and few models need it

    made = [name for name in node.output if name]
    stated = [onnx.helper.make_tensor_value_info(n, onnx.helper.np_dtype_to_tensor_dtype(a.dtype), a.shape)
              for n, a in given.items()]  # fmt: skip
    empty = [onnx.helper.make_empty_tensor_value_info(name) for name in made]
    graph = onnx.helper.make_graph([node], "one", stated, empty)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    model = onnx.helper.make_model(graph, opset_imports=imports)
    with np.errstate(all="ignore"):
        results: Any = ReferenceEvaluator(model).run(None, dict(given))  # type: ignore[no-untyped-call]
    if not all(isinstance(r, np.ndarray | np.generic) for r in results):
        return None
    return {name: np.asarray(r) for name, r in zip(made, results)}


Inputs = Sequence[Array | None]
Attributes = Mapping[str, Any]


def _at(inputs: Inputs, position: int) -> Array:
    found = inputs[position]
    if found is None:
        raise ValueError(f"input {position} is left out")
    return found


def _numbers(array: Array) -> list[int]:
    """The whole numbers of a list of sizes, no longer than a shape."""
    if array.size > RANK * 2:
        raise ValueError(f"{array.size} numbers are no shape")
    return [int(x) for x in array.ravel()]


def _broadcast(inputs: Inputs, attributes: Attributes) -> int:
    return int(prod(np.broadcast_shapes(*(x.shape for x in inputs if x is not None))))


def _first(inputs: Inputs, attributes: Attributes) -> int:
    return _at(inputs, 0).size


def _all(inputs: Inputs, attributes: Attributes) -> int:
    return sum(x.size for x in inputs if x is not None)


def _gather(inputs: Inputs, attributes: Attributes) -> int:
    data, indices = _at(inputs, 0), _at(inputs, 1)
    axis = int(attributes.get("axis", 0)) % data.ndim
    return int(prod(d for i, d in enumerate(data.shape) if i != axis) * indices.size)


def _expand(inputs: Inputs, attributes: Attributes) -> int:
    target = _numbers(_at(inputs, 1))
    if min(target, default=1) < 0:
        raise ValueError("a negative size")
    longer = max(len(target), _at(inputs, 0).ndim)
    ours = (1,) * (longer - _at(inputs, 0).ndim) + _at(inputs, 0).shape
    return prod(max(a, b) for a, b in zip(ours, [1] * (longer - len(target)) + target, strict=True))


def _tile(inputs: Inputs, attributes: Attributes) -> int:
    return prod(d * max(r, 0) for d, r in zip(_at(inputs, 0).shape, _numbers(_at(inputs, 1)), strict=True))


def _filled(inputs: Inputs, attributes: Attributes) -> int:
    return prod(max(d, 0) for d in _numbers(_at(inputs, 0)))


def _range(inputs: Inputs, attributes: Attributes) -> int:
    start, limit, delta = (_at(inputs, i).item() for i in range(3))
    count = (limit - start) / delta
    if not isfinite(count):
        raise ValueError("a range without an end")
    return int(max(ceil(count), 0))


def _one_hot(inputs: Inputs, attributes: Attributes) -> int:
    return _at(inputs, 0).size * max(int(_at(inputs, 1).item()), 0)


def _pad(inputs: Inputs, attributes: Attributes) -> int:
    pads = [max(int(p), 0) for p in (attributes["pads"] if "pads" in attributes else _numbers(_at(inputs, 1)))]
    shape = _at(inputs, 0).shape
    if len(pads) != 2 * len(shape):  # for some axes, whichever these are
        return prod(d + sum(pads) for d in shape)
    return prod(d + before + after for d, before, after in zip(shape, pads, pads[len(shape) :], strict=False))


def _non_zero(inputs: Inputs, attributes: Attributes) -> int:
    return _at(inputs, 0).size * max(_at(inputs, 0).ndim, 1)


def _split(inputs: Inputs, attributes: Attributes) -> int:
    if int(attributes.get("num_outputs", 1)) > RANK:
        raise ValueError("too many parts")
    return _at(inputs, 0).size


Size = Callable[[Inputs, Attributes], int]
_ELEMENTWISE = (
    "Abs Add And BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitShift Ceil Clip Cos Div Equal Erf Exp Floor Greater "
    "GreaterOrEqual IsInf IsNaN Less LessOrEqual Log Max Mean Min Mod Mul Neg Not Or Pow Reciprocal Relu Round Sigmoid "
    "Sign Sin Sqrt Sub Sum Tanh Where Xor"
)
_NO_LARGER = (  # than the first input
    "ArgMax ArgMin Cast CastLike CumSum EyeLike Flatten Identity ReduceL1 ReduceL2 ReduceLogSum ReduceLogSumExp "
    "ReduceMax ReduceMean ReduceMin ReduceProd ReduceSum ReduceSumSquare Reshape Shape Size Slice Squeeze Transpose "
    "Trilu Unsqueeze"
)
SIZES: dict[str, Size] = {
    **dict.fromkeys(_ELEMENTWISE.split(), _broadcast),
    **dict.fromkeys(_NO_LARGER.split(), _first),
    "Concat": _all,
    "Gather": _gather,
    "GatherElements": lambda inputs, attributes: _at(inputs, 1).size,
    "Expand": _expand,
    "Tile": _tile,
    "ConstantOfShape": _filled,
    "Range": _range,
    "OneHot": _one_hot,
    "Pad": _pad,
    "NonZero": _non_zero,
    "Split": _split,
}
"""Operator -> the elements of its results, at most."""


# --- Shapes.


LONG = 4096  # sizes in a list, more than any tensor has
SMALL = 256  # elements; larger constants hold no shapes or axes
_ROUNDS = 200  # each settles at least one more link of a chain of shape computations
_INFERENCES = 500_000  # nodes looked at in all rounds

_INTEGERS = (TensorProto.INT64, TensorProto.INT32)

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
    """How many sizes ONNX's inference may know of the results; 0 for nodes whose results are no sizes."""
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
