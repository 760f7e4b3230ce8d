"""ONNX operators that the vocabulary has, one function each: from a node to terms, or None where it means more.

None leaves the node opaque: dilated windows, padding that means count, products with factors, further outputs in use.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import DTYPES
from graphopt.rewrite.ir.program_builder import same_pads
from graphopt.rewrite.ir.terms import Terms
from graphopt.rewrite.ir.vocabulary import Operation, TensorType

Pads = tuple[int, int, int, int]
Results = Sequence[int] | None


@dataclass(frozen=True)
class OnnxNode:
    """One node: its attributes, types of what it reads and makes, and where its operands come from.

    inputs: one type per input, None where it is left out. term: the term of an input. constant: its value, if known.
    used: whether something reads each output.
    """

    terms: Terms
    op_type: str
    attributes: Mapping[str, Any]
    opset: int
    inputs: Sequence[TensorType | None]
    outputs: Sequence[TensorType]
    used: Sequence[bool]
    term: Callable[[int], int]
    constant: Callable[[int], NDArray[Any] | None]

    def add(self, name: str, *params: Any, of: Sequence[int]) -> int:
        return self.terms.add(Operation(name, params), tuple(of))

    def shape(self, position: int = 0) -> tuple[int, ...]:
        kind = self.inputs[position]
        assert kind is not None  # the operator's first inputs are never left out
        return kind.shape

    def has(self, position: int) -> bool:
        return position < len(self.inputs) and self.inputs[position] is not None

    def get(self, name: str, default: Any) -> Any:
        return self.attributes.get(name, default)

    def reshaped(self, x: int) -> int:
        """x in the shape of the first output."""
        shape = self.outputs[0].shape
        return x if self.terms.shape(x) == shape else self.add("reshape", shape, of=[x])


def translate(node: OnnxNode) -> Results:
    """Terms of the node's outputs; None for a node that stays opaque. Raises ShapeError where shapes do not fit."""
    if node.op_type == "Identity":  # of any operator set and type: the export writes it for an output of two names
        return _same(node)
    rule = RULES.get(node.op_type)
    if rule is None or node.opset < OLDEST or (any(node.used[1:]) and node.op_type != "Split"):
        return None
    types = [t for t in (*node.inputs, *node.outputs[:1]) if t is not None]
    if any(t.dtype not in DTYPES for t in types[:1]) or any(0 in t.shape for t in types):
        return None
    if node.op_type not in MOVES and types[0].dtype not in ("float32", "float64"):
        return None
    return rule(node)


def _unary(r: OnnxNode) -> Results:
    return [r.add(r.op_type.lower(), of=[r.term(0)])]


def _binary(r: OnnxNode) -> Results:
    return [r.add(r.op_type.lower(), of=[r.term(0), r.term(1)])]


def _sum(r: OnnxNode) -> Results:
    total = r.term(0)
    for position in range(1, len(r.inputs)):
        total = r.add("add", of=[total, r.term(position)])
    return [total]


def _matmul(r: OnnxNode) -> Results:
    return [r.add("matmul", "none", of=[r.term(0), r.term(1)])]


def _gemm(r: OnnxNode) -> Results:
    bias = r.has(2)
    if r.get("alpha", 1.0) != 1.0 or (bias and r.get("beta", 1.0) != 1.0):
        return None
    sides = [r.add("transpose", (1, 0), of=[r.term(i)]) if r.get(flag, 0) else r.term(i)
             for i, flag in enumerate(("transA", "transB"))]  # fmt: skip
    product = r.add("matmul", "none", of=sides)
    return [r.add("add", of=[product, r.term(2)]) if bias else product]


def _same(r: OnnxNode) -> Results:
    return [r.term(0)]


def _dropout(r: OnnxNode) -> Results:
    """Nothing at inference; a training mode that is on, or not known, stays."""
    mode = r.constant(2) if r.has(2) else np.asarray(False)
    return None if mode is None or mode.any() else _same(r)


def _reshape(r: OnnxNode) -> Results:
    return [r.reshaped(r.term(0))]


def _transpose(r: OnnxNode) -> Results:
    rank = len(r.shape())
    order = tuple(r.get("perm", range(rank - 1, -1, -1)))
    return _same(r) if order == tuple(range(rank)) else [r.add("transpose", order, of=[r.term(0)])]


def _concat(r: OnnxNode) -> Results:
    if len(r.inputs) == 1:
        return _same(r)
    axis = r.get("axis", 1) % len(r.shape())
    return [r.add("concat", axis, of=[r.term(i) for i in range(len(r.inputs))])]


def _split(r: OnnxNode) -> Results:
    axis = r.get("axis", 0) % len(r.shape())
    if len(r.outputs) == 1:
        return _same(r)
    sizes = tuple(t.shape[axis] for t in r.outputs)
    parts = r.add("split", axis, sizes, of=[r.term(0)])
    return [r.add("item", i, of=[parts]) for i in range(len(sizes))]


def _conv(r: OnnxNode) -> Results:
    if len(r.shape()) != 4 or any(d != 1 for d in r.get("dilations", (1, 1))):
        return None
    strides = tuple(r.get("strides", (1, 1)))
    pads = _pads(r, r.shape(1)[2:], strides)
    if r.get("group", 1) * r.shape(1)[1] != r.shape()[1]:
        return None
    return [r.add("conv", strides, pads, "none", of=[r.term(i) for i in range(3) if r.has(i)])]


def _pool(r: OnnxNode) -> Results:
    if len(r.shape()) != 4 or any(d != 1 for d in r.get("dilations", (1, 1))) or r.get("storage_order", 0):
        return None
    kernel, strides = tuple(r.get("kernel_shape", ())), tuple(r.get("strides", (1, 1)))
    pads = _pads(r, kernel, strides)
    if r.op_type == "AveragePool" and r.get("count_include_pad", 0) and any(pads):
        return None
    pads = _grown(r, kernel, strides, pads)
    return [r.add(_POOLS[r.op_type], kernel, strides, pads, of=[r.term(0)])]


def _global_pool(r: OnnxNode) -> Results:
    if len(r.shape()) != 4:
        return None
    return [r.add(_POOLS[r.op_type], r.shape()[2:], (1, 1), (0, 0, 0, 0), of=[r.term(0)])]


def _batch_norm(r: OnnxNode) -> Results:
    if r.opset < 9 or r.get("training_mode", 0):
        return None
    epsilon = float(np.float32(r.get("epsilon", 1e-5)))
    return [r.add("batch_norm", epsilon, of=[r.term(i) for i in range(5)])]


def _softmax(r: OnnxNode) -> Results:
    """Before operator set 13 it went over all axes from one on."""
    rank = len(r.shape())
    axis = r.get("axis", -1 if r.opset >= 13 else 1) % max(rank, 1)
    return [r.add("softmax", axis, of=[r.term(0)])] if rank and (r.opset >= 13 or axis == rank - 1) else None


def _layer_norm(r: OnnxNode) -> Results:
    shape = r.shape()
    kinds = r.inputs[1:]
    if not shape or r.get("axis", -1) % len(shape) != len(shape) - 1 or any(k and k.shape != shape[-1:] for k in kinds):
        return None
    plain = r.inputs[0] is not None and r.inputs[0].dtype == "float32"
    if not r.has(2) and not plain:
        return None
    bias = r.term(2) if r.has(2) else r.add("fill", 0.0, shape[-1:], of=[])
    epsilon = float(np.float32(r.get("epsilon", 1e-5)))
    return [r.add("layer_norm", epsilon, of=[r.term(0), r.term(1), bias])]


def _gather(r: OnnxNode) -> Results:
    rank = len(r.shape())
    return [r.add("gather", r.get("axis", 0) % rank, of=[r.term(0), r.term(1)])] if rank else None


def _pad(r: OnnxNode) -> Results:
    """Of zeros on the sides of all axes."""
    rank, listed = len(r.shape()), r.constant(1) if r.has(1) else np.array(r.get("pads", ()))
    value = r.constant(2) if r.has(2) else np.asarray(r.get("value", 0.0))
    if r.get("mode", "constant") not in ("constant", b"constant") or r.has(3) or listed is None or value is None:
        return None
    pads = tuple(int(pad) for pad in listed.flatten())
    if len(pads) != 2 * rank or min(pads, default=0) < 0 or value.any():
        return None
    return [r.add("pad", pads[:rank], pads[rank:], of=[r.term(0)])]


def _pads(r: OnnxNode, kernel: Sequence[int], strides: Sequence[int]) -> Pads:
    """(top, left, bottom, right) as ONNX lists them."""
    automatic = r.get("auto_pad", "NOTSET")
    if automatic in ("NOTSET", ""):
        return tuple(r.get("pads", (0, 0, 0, 0)))
    if automatic == "VALID":
        return (0, 0, 0, 0)
    lower = automatic == "SAME_LOWER"
    (top, bottom), (left, right) = (same_pads(n, k, s, lower) for n, k, s in zip(r.shape()[2:], kernel, strides))
    return top, left, bottom, right


def _grown(r: OnnxNode, kernel: Sequence[int], strides: Sequence[int], pads: Pads) -> Pads:
    """Padding that lets the last windows of `ceil_mode` fit: it is no maximum, and means do not count it."""
    ends = []
    for axis in (0, 1):
        size, windows = r.shape()[2 + axis], r.outputs[0].shape[2 + axis]
        needed = (windows - 1) * strides[axis] + kernel[axis] - size - pads[axis]
        ends.append(max(needed, pads[2 + axis]) if r.get("ceil_mode", 0) else pads[2 + axis])
    return pads[0], pads[1], ends[0], ends[1]


_POOLS = {"MaxPool": "pool_max", "GlobalMaxPool": "pool_max", "AveragePool": "pool_avg",
          "GlobalAveragePool": "pool_avg"}  # fmt: skip
OLDEST = 7  # older operator sets broadcast by attributes; their nodes stay opaque
# What works on any element type.
MOVES = frozenset(("Dropout", "Flatten", "Squeeze", "Unsqueeze", "Reshape", "Transpose", "Concat", "Split"))
RULES: dict[str, Callable[[OnnxNode], Results]] = {
    **dict.fromkeys(("Relu", "Tanh", "Sigmoid"), _unary),
    **dict.fromkeys(("Add", "Mul"), _binary),
    **dict.fromkeys(("Flatten", "Squeeze", "Unsqueeze", "Reshape"), _reshape),
    **dict.fromkeys(("MaxPool", "AveragePool"), _pool),
    **dict.fromkeys(("GlobalMaxPool", "GlobalAveragePool"), _global_pool),
    "Sum": _sum,
    "MatMul": _matmul,
    "Gemm": _gemm,
    "Dropout": _dropout,
    "Transpose": _transpose,
    "Concat": _concat,
    "Split": _split,
    "Conv": _conv,
    "BatchNormalization": _batch_norm,
    "Softmax": _softmax,
    "LayerNormalization": _layer_norm,
    "Gather": _gather,
    "Pad": _pad,
}
