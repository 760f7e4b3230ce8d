"""ONNX operators: which of our kinds each one is, and how many FLOP it takes.

Operators of the standard domain that stand nowhere in the table, and all of other domains, are unknown: opaque ops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from graphopt.operators import OPERATOR_ID, OPERATORS, Category

Shape = tuple[int, ...]

_KINDS: dict[str, str] = {
    # elementwise
    "add": "Add Sum Mean",
    "sub": "Sub",
    "mul": "Mul",
    "maximum": "Max",
    "minimum": "Min",
    "abs": "Abs",
    "neg": "Neg",
    "sign": "Sign",
    "relu": "Relu LeakyRelu PRelu ThresholdedRelu Shrink",
    "clamp": "Clip",
    "compare": "Equal Greater GreaterOrEqual Less LessOrEqual IsInf IsNaN OneHot",
    "logical": "And Or Not Xor BitwiseAnd BitwiseNot BitwiseOr BitwiseXor BitShift",
    "select": "Where Trilu",
    "cast": "Cast CastLike BitCast",
    "round": "Ceil Floor Round QuantizeLinear",
    "fill": "ConstantOfShape EyeLike",
    "iota": "Range",
    "affine": "BatchNormalization DequantizeLinear",
    "div": "Div Softsign",
    "sqrt": "Sqrt",
    "reciprocal": "Reciprocal",
    "remainder": "Mod",
    "exp": "Exp",
    "log": "Log",
    "sigmoid": "Sigmoid",
    "silu": "Swish",
    "softplus": "Softplus",
    "sin": "Sin Asin Sinh Asinh Tan",
    "cos": "Cos Acos Cosh Acosh",
    "tanh": "Tanh Atan Atanh Mish",
    "erf": "Erf",
    "gelu": "Gelu",
    "pow": "Pow",
    "elu": "Elu Selu Celu",
    "hardswish": "HardSwish HardSigmoid",
    # views: no kernel. Dropout does nothing at inference; depth and space are exchanged by a transposition
    "reshape": "Reshape Flatten Squeeze Unsqueeze Identity Dropout",
    "transpose": "Transpose DepthToSpace SpaceToDepth",
    "slice": "Slice",
    "split": "Split",
    "broadcast": "Expand Tile",
    # data movement
    "concat": "Concat",
    "pad": "Pad CenterCropPad",
    "gather": "Gather GatherElements GatherND",
    "reverse": "ReverseSequence",
    "upsample": "Resize Upsample",
    # reductions
    "sum": "ReduceSum ReduceL1 ReduceL2 ReduceSumSquare ReduceLogSum ReduceLogSumExp",
    "mean": "ReduceMean",
    "amax": "ReduceMax",
    "amin": "ReduceMin",
    "prod": "ReduceProd",
    "argmax": "ArgMax ArgMin",
    "cumsum": "CumSum CumProd",
    "pool_max": "MaxPool GlobalMaxPool",
    "pool_avg": "AveragePool GlobalAveragePool LpPool GlobalLpPool",
    "softmax": "Softmax LogSoftmax Hardmax",
    "layer_norm": "LayerNormalization RMSNormalization InstanceNormalization GroupNormalization "
    "LpNormalization MeanVarianceNormalization",
    "lrn": "LRN",
    # contractions
    "matmul": "MatMul Gemm Einsum MatMulInteger QLinearMatMul",
    "conv": "Conv ConvInteger QLinearConv",
    "conv_transpose": "ConvTranspose",
    # not fusible
    "topk": "TopK",
    "scatter": "Scatter ScatterElements ScatterND TensorScatter",
    "random": "RandomNormal RandomNormalLike RandomUniform RandomUniformLike Bernoulli Multinomial",
    "opaque": "If Loop Scan SequenceMap LSTM GRU RNN Attention NonZero Unique Compress NonMaxSuppression RoiAlign "
    "MaxRoiPool MaxUnpool GridSample AffineGrid Col2Im DeformConv Det DFT STFT Shape Size DynamicQuantizeLinear "
    "RotaryEmbedding NegativeLogLikelihoodLoss SoftmaxCrossEntropyLoss",
}

KIND_OF: dict[str, str] = {onnx_name: kind for kind, names in _KINDS.items() for onnx_name in names.split()}


def kind_of(domain: str, op_type: str) -> str | None:
    """Our kind of an ONNX operator, or None when it is unknown."""
    return KIND_OF.get(op_type) if domain in ("", "ai.onnx") else None


def category_of(kind: str) -> Category:
    return OPERATORS[OPERATOR_ID[kind]].category


@dataclass(frozen=True)
class Call:
    """One node with what shape inference found; None where an input or output is absent or its shape is unknown."""

    op_type: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]

    def input(self, position: int) -> Shape | None:
        return self.inputs[position] if position < len(self.inputs) else None


def flops(call: Call) -> float | None:
    """FLOP of one node (a multiply-add is two), 0 when a shape it needs is unknown, None for the kind's own count."""
    rule = _RULES.get(call.op_type)
    if rule is None:
        return None
    try:
        return float(rule(call))
    except (IndexError, KeyError, TypeError, ValueError):  # a shape is unknown or too short: nothing can be counted
        return 0.0


def _elements(shape: Shape | None) -> int:
    if shape is None:
        raise TypeError("unknown shape")
    return prod(shape)


def _conv(call: Call, weight: int = 1, bias: int = 2) -> float:
    """2 * outputs * (input channels per group * window); the weight is [M, C / groups, *window]."""
    out = _elements(call.outputs[0])
    return 2 * out * prod(call.inputs[weight][1:]) + (out if call.input(bias) is not None else 0)  # type: ignore[index]


def _conv_transpose(call: Call) -> float:
    """2 * inputs * (output channels per group * window); the weight is [C, M / groups, *window]."""
    bias = _elements(call.outputs[0]) if call.input(2) is not None else 0
    return 2 * _elements(call.inputs[0]) * prod(call.inputs[1][1:]) + bias  # type: ignore[index]


def _matmul(call: Call) -> float:
    return 2 * _elements(call.outputs[0]) * int(call.inputs[0][-1])  # type: ignore[index]


def _gemm(call: Call) -> float:
    """The product and the addition of the third input."""
    out, a = _elements(call.outputs[0]), call.inputs[0]
    inner = a[0] if call.attributes.get("transA", 0) else a[1]  # type: ignore[index]
    return 2 * out * int(inner) + (out if call.input(2) is not None else 0)


def _einsum(call: Call) -> float:
    """2 * outputs * sizes of the summed labels; a single operand is only summed."""
    terms, arrow, result = str(call.attributes["equation"]).replace(" ", "").partition("->")
    if not arrow:  # the implicit form keeps the labels that occur once
        result = "".join(label for label in terms if terms.count(label) == 1)
    sizes: dict[str, int] = {}
    for term, shape in zip(terms.split(","), call.inputs, strict=True):
        head, dots, tail = term.partition("...")
        sizes.update(zip(head, shape, strict=False))  # type: ignore[arg-type]
        sizes.update(zip(reversed(tail), reversed(shape), strict=False) if dots else ())  # type: ignore[arg-type]
    summed = prod(size for label, size in sizes.items() if label not in result)
    return (2 if len(call.inputs) > 1 else 1) * _elements(call.outputs[0]) * summed


def _pool(call: Call) -> float:
    window: int = prod(call.attributes["kernel_shape"])
    return _elements(call.outputs[0]) * window


def _input_elements(call: Call) -> float:
    return _elements(call.inputs[0])


def _output_elements(call: Call) -> float:
    return _elements(call.outputs[0])


def _variadic(call: Call) -> float:
    """n inputs combined two at a time."""
    return max(len(call.inputs) - 1, 0) * _elements(call.outputs[0])


def _lrn(call: Call) -> float:
    """Per element: the window's squares and their sum, then a power and a division."""
    return _elements(call.outputs[0]) * (2 * int(call.attributes["size"]) + 24)


def _batch_norm(call: Call) -> float:
    return 2 * _elements(call.outputs[0])


def _recurrent(call: Call) -> float:
    """LSTM, GRU and RNN: input [steps, batch, width]; both weight matrices are used once per step and sample."""
    steps, batch = call.inputs[0][:2]  # type: ignore[index]
    return 2 * steps * batch * (_elements(call.inputs[1]) + _elements(call.inputs[2]))


def _attention(call: Call) -> float:
    """Scores and their product with the values; the keys' last but one dimension is the sequence."""
    return 2 * call.inputs[1][-2] * (_elements(call.inputs[0]) + _elements(call.outputs[0]))  # type: ignore[index]


_RULES: dict[str, Callable[[Call], float]] = {
    "Conv": _conv,
    "ConvInteger": lambda call: _conv(call, bias=len(call.inputs)),
    "DeformConv": lambda call: _conv(call, bias=3),
    "QLinearConv": lambda call: _conv(call, weight=3, bias=8),
    "ConvTranspose": _conv_transpose,
    "MatMul": _matmul,
    "MatMulInteger": _matmul,
    "QLinearMatMul": _matmul,
    "Gemm": _gemm,
    "Einsum": _einsum,
    "MaxPool": _pool,
    "AveragePool": _pool,
    "LpPool": _pool,
    "GlobalAveragePool": _input_elements,
    "GlobalMaxPool": _input_elements,
    "GlobalLpPool": _input_elements,
    "LRN": _lrn,
    "BatchNormalization": _batch_norm,
    "Sum": _variadic,
    "Max": _variadic,
    "Min": _variadic,
    "Mean": _variadic,
    "LSTM": _recurrent,
    "GRU": _recurrent,
    "RNN": _recurrent,
    "Attention": _attention,
    "TopK": _input_elements,
    "NonZero": _input_elements,
    "Shape": lambda call: 0.0,
    "Size": lambda call: 0.0,
}
