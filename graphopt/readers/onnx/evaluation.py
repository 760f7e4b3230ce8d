"""Constants of ONNX models, computed by ONNX's reference implementation: a few operators, and only what stays small.

A few bytes of a model can ask for 10^12 elements, or for a loop of 10^12 trips. So an operator is evaluated only if it
stands below and the size of its result, which follows from its inputs, is within the limit. Nothing else is, subgraphs
never.
"""

from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite, prod
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto

from graphopt.core.graph_builder import RANK
from graphopt.readers.onnx.model import subgraphs

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
    except Exception:  # what a malformed node raises here or there; its value then counts as unknown
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
