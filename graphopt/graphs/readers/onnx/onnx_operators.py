"""ONNX operators: which of our kinds each one is, and how many FLOP it takes.

An operator of no table is unknown: an opaque op. FLOP are by formula, from the definitions of the operators; a
multiply-add is two. Formulas raise IndexError, KeyError, TypeError or ValueError where a shape or an attribute that
they need is not there.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, prod
from typing import Any

from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category
from graphopt.graphs.readers.onnx.folding import STANDARD

Shape = tuple[int, ...]
DIVISION, GELU, NORM, SOFTMAX = (OPERATORS[OPERATOR_ID[k]].flop for k in ("div", "gelu", "layer_norm", "softmax"))


@dataclass(frozen=True)
class NodeShapes:
    """One node with the results of shape inference; None where an input or output is absent or its shape is unknown."""

    op_type: str
    attributes: Mapping[str, Any]
    inputs: Sequence[Shape | None]
    outputs: Sequence[Shape | None]
    domain: str = ""

    def input(self, position: int) -> Shape | None:
        return self.inputs[position] if position < len(self.inputs) else None

    def shape(self, position: int) -> Shape:
        """Of an input that has to be known."""
        found = self.inputs[position]
        if found is None:
            raise TypeError("unknown shape")
        return found


Formula = Callable[[NodeShapes], float]


def _elements(shape: Shape | None) -> int:
    if shape is None:
        raise TypeError("unknown shape")
    return prod(shape)


def _conv(call: NodeShapes, weight: int = 1, bias: int = 2) -> float:
    """2 * outputs * (input channels per group * window); the weight is [M, C / groups, *window]."""
    out = _elements(call.outputs[0])
    return 2 * out * prod(call.shape(weight)[1:]) + (out if call.input(bias) is not None else 0)


def _conv_transpose(call: NodeShapes) -> float:
    """2 * inputs * (output channels per group * window); the weight is [C, M / groups, *window]."""
    bias = _elements(call.outputs[0]) if call.input(2) is not None else 0
    return 2 * _elements(call.inputs[0]) * prod(call.shape(1)[1:]) + bias


def _matmul(call: NodeShapes) -> float:
    return 2 * _elements(call.outputs[0]) * call.shape(0)[-1]


def _gemm(call: NodeShapes) -> float:
    """The product and the addition of the third input."""
    out, a = _elements(call.outputs[0]), call.shape(0)
    inner = a[0] if call.attributes.get("transA", 0) else a[1]
    return 2 * out * int(inner) + (out if call.input(2) is not None else 0)


def _einsum(call: NodeShapes) -> float:
    """2 * outputs * sizes of the summed labels; a single operand is only summed."""
    terms, arrow, result = str(call.attributes["equation"]).replace(" ", "").partition("->")
    if not arrow:  # the implicit form keeps the labels that occur once
        result = "".join(label for label in terms if terms.count(label) == 1)
    sizes: dict[str, int] = {}
    shapes = [call.shape(i) for i in range(len(call.inputs))]
    for term, shape in zip(terms.split(","), shapes, strict=True):
        head, dots, tail = term.partition("...")
        sizes.update(zip(head, shape, strict=False))
        sizes.update(zip(reversed(tail), reversed(shape), strict=False) if dots else ())
    summed = prod(size for label, size in sizes.items() if label not in result)
    return (2 if len(call.inputs) > 1 else 1) * _elements(call.outputs[0]) * summed


def _pool(call: NodeShapes) -> float:
    window: int = prod(call.attributes["kernel_shape"])
    return _elements(call.outputs[0]) * window


def _input_elements(call: NodeShapes) -> float:
    return _elements(call.inputs[0])


def _variadic(call: NodeShapes) -> float:
    """n inputs combined two at a time."""
    return max(len(call.inputs) - 1, 0) * _elements(call.outputs[0])


def _lrn(call: NodeShapes) -> float:
    """Per element: the window's squares and their sum, then a power and a division."""
    return _elements(call.outputs[0]) * (2 * int(call.attributes["size"]) + 24)


def _batch_norm(call: NodeShapes) -> float:
    return 2 * _elements(call.outputs[0])


def _recurrent(call: NodeShapes) -> float:
    """LSTM, GRU and RNN: input [steps, batch, width], or the first two the other way round; both weight matrices are
    used once per step and sample. Gates and biases, a small share, are left out."""
    steps, batch = call.shape(0)[:2]
    return 2 * steps * batch * (_elements(call.inputs[1]) + _elements(call.inputs[2]))


def _attention(call: NodeShapes) -> float:
    """Scores, their softmax and their product with the values. [batch, heads, steps, width], or
    [batch, steps, heads x width] with the number of heads as an attribute; past keys come first."""
    queries, keys, results = call.shape(0), call.shape(1), call.outputs[0]
    past = call.input(4)
    length = keys[-2] + (past[-2] if past is not None else 0)
    width = queries[-1] if len(queries) == 4 else queries[-1] // int(call.attributes["q_num_heads"])
    scores = length * _elements(queries) // width
    return 2 * length * (_elements(queries) + _elements(results)) + SOFTMAX * scores


def _rotary(call: NodeShapes) -> float:
    """Pairs (a, b) become a cos - b sin and a sin + b cos. [batch, heads, steps, width] or [batch, steps, all]."""
    shape, rotated = call.shape(0), int(call.attributes.get("rotary_embedding_dim", 0))
    heads = 1 if len(shape) == 4 else int(call.attributes.get("num_heads", 0)) or 1
    share = rotated * heads / shape[-1] if rotated else 1.0
    return 3 * share * prod(shape)


def _grid_sample(call: NodeShapes) -> float:
    """Every result is a sum over 2 (linear) or 4 (cubic) neighbours along each axis."""
    mode = call.attributes.get("mode", "linear")
    neighbours: int = {"nearest": 0, "linear": 2, "bilinear": 2, "cubic": 4, "bicubic": 4}[mode]
    return 2 * float(neighbours ** call.shape(1)[-1]) * _elements(call.outputs[0])


def _roi_align(call: NodeShapes) -> float:
    """Every result is a mean or maximum of sampling_ratio^2 points, each from four neighbours."""
    ratio = int(call.attributes["sampling_ratio"])
    if ratio < 1:
        raise ValueError("as many samples as the regions need")
    return 9 * ratio**2 * _elements(call.outputs[0])


def _affine_grid(call: NodeShapes) -> float:
    """Every coordinate is a product with a row of [d, d + 1]."""
    return (2 * call.shape(0)[-2] + 1) * _elements(call.outputs[0])


def _determinant(call: NodeShapes) -> float:
    """By LU decomposition."""
    return 2 / 3 * call.shape(0)[-1] * _elements(call.inputs[0])


def _quantize(call: NodeShapes) -> float:
    """saturate(round(x / scale) + zero point)"""
    return (DIVISION + 2 + (call.input(2) is not None)) * _elements(call.outputs[0])


def _dequantize(call: NodeShapes) -> float:
    """(x - zero point) * scale"""
    return (1 + (call.input(2) is not None)) * _elements(call.outputs[0])


def _quantize_by_range(call: NodeShapes) -> float:
    """Least and largest element, then as `_quantize` with a zero point."""
    return (2 + DIVISION + 3) * _elements(call.inputs[0])


def _fused_matmul(call: NodeShapes) -> float:
    a = call.shape(0)
    return 2 * _elements(call.outputs[0]) * (a[-2] if call.attributes.get("transA", 0) else a[-1])


def _quantized_gemm(call: NodeShapes) -> float:
    """A, its scale and zero point, B, ..."""
    a = call.shape(0)
    return 2 * _elements(call.outputs[0]) * (a[0] if call.attributes.get("transA", 0) else a[1])


def _packed_matmul(call: NodeShapes) -> float:
    """Weights of few bits: unpacked (a product and a sum each), then multiplied."""
    rows, columns = int(call.attributes["K"]), int(call.attributes["N"])
    return 2 * _elements(call.outputs[0]) * rows + 2 * rows * columns


def _biased_gelu(call: NodeShapes) -> float:
    return (GELU + (call.input(1) is not None)) * _elements(call.outputs[0])


def _skip_norm(call: NodeShapes) -> float:
    """The sum of two inputs, and of a bias, normalised."""
    bias = len(call.inputs) > 3 and call.inputs[-1] is not None and call.op_type.startswith("Skip")
    return (NORM + 1 + bias) * _elements(call.inputs[0])


def _packed_attention(call: NodeShapes) -> float:
    """Input [batch, steps, width] and one matrix for queries, keys and values; past [2, batch, heads, steps, width]."""
    (batch, steps, width), packed = call.shape(0), call.shape(1)[1]
    queries, _, values = call.attributes.get("qkv_hidden_sizes") or [packed // 3] * 3
    past = call.input(4)
    length = steps + (past[3] if past is not None else 0)
    projected = 2 * batch * steps * width * packed + (batch * steps * packed if call.input(2) is not None else 0)
    return projected + _scored(batch * steps * length, queries, values, int(call.attributes["num_heads"]))


def _headed_attention(call: NodeShapes) -> float:
    """Queries, keys and values, each [batch, steps, heads x width]."""
    (batch, steps, queries), (_, length, _), (_, _, values) = (call.shape(i) for i in range(3))
    past = call.input(6)
    length += past[2] if past is not None else 0
    return _scored(batch * steps * length, queries, values, int(call.attributes["num_heads"]))


def _grouped_attention(call: NodeShapes) -> float:
    """As many keys as the keys to be kept are long, whose heads are shared by several queries."""
    (batch, steps, queries), kept = call.shape(0), call.outputs[1]
    assert kept is not None
    return _scored(batch * steps * kept[2], queries, queries, int(call.attributes["num_heads"]))


def _scored(pairs: int, queries: int, values: int, heads: int) -> float:
    """Scores, softmax and weighted values of pairs of steps."""
    return pairs * (2 * (queries + values) + SOFTMAX * heads)


FORMULAS: dict[str, Formula] = {
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
    "RotaryEmbedding": _rotary,
    "GridSample": _grid_sample,
    "RoiAlign": _roi_align,
    "AffineGrid": _affine_grid,
    "Det": _determinant,
    "Col2Im": _input_elements,
    "Compress": _input_elements,
    "MaxUnpool": lambda call: 0.0,
    "SoftmaxCrossEntropyLoss": lambda call: SOFTMAX * _elements(call.inputs[0]),
    "NegativeLogLikelihoodLoss": lambda call: 2.0 * _elements(call.inputs[1]),
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "DynamicQuantizeLinear": _quantize_by_range,
    "TopK": _input_elements,
    "NonZero": _input_elements,
    "Shape": lambda call: 0.0,
    "Size": lambda call: 0.0,
}

MICROSOFT: dict[str, Formula] = {
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "FusedGemm": _gemm,
    "FusedConv": _conv,
    "QGemm": _quantized_gemm,
    "MatMulNBits": _packed_matmul,
    "DynamicQuantizeMatMul": _matmul,
    "MatMulIntegerToFloat": _matmul,
    "FastGelu": _biased_gelu,
    "BiasGelu": _biased_gelu,
    "SkipLayerNormalization": _skip_norm,
    "SkipSimplifiedLayerNormalization": _skip_norm,
    "QuantizeLinear": _quantize,
    "DequantizeLinear": _dequantize,
    "Attention": _packed_attention,
    "MultiHeadAttention": _headed_attention,
    "GroupQueryAttention": _grouped_attention,
    "RotaryEmbedding": _rotary,
}
"""Of the domain com.microsoft."""


# --- Kinds.


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

_MICROSOFT_KINDS: dict[str, str] = {
    "matmul": "FusedMatMul TransposeMatMul FusedGemm QGemm MatMulNBits DynamicQuantizeMatMul MatMulIntegerToFloat",
    "conv": "FusedConv",
    "gelu": "Gelu FastGelu BiasGelu",
    "silu": "QuickGelu",
    "affine": "DequantizeLinear",
    "round": "QuantizeLinear",
    "layer_norm": "SkipLayerNormalization SkipSimplifiedLayerNormalization SimplifiedLayerNormalization",
    "opaque": "Attention MultiHeadAttention GroupQueryAttention RotaryEmbedding",
}
"""Of the domain com.microsoft, into which ONNX Runtime fuses."""

KIND_OF: dict[str, str] = {onnx_name: kind for kind, names in _KINDS.items() for onnx_name in names.split()}
MICROSOFT_KIND_OF: dict[str, str] = {name: kind for kind, names in _MICROSOFT_KINDS.items() for name in names.split()}


def kind_of(domain: str, op_type: str) -> str | None:
    """Our kind of an ONNX operator, or None when it is unknown."""
    if domain == "com.microsoft":
        return MICROSOFT_KIND_OF.get(op_type)
    return KIND_OF.get(op_type) if domain in STANDARD else None


def category_of(kind: str) -> Category:
    return OPERATORS[OPERATOR_ID[kind]].category


@dataclass(frozen=True, slots=True)
class FlopCount:
    """FLOP of a node; missing: why they are not all, in a few words, or empty."""

    flop: float
    missing: str = ""


def formula_of(call: NodeShapes) -> Formula | None:
    """How the FLOP of a known operator are counted, None where it is by elements."""
    formulas = MICROSOFT if call.domain == "com.microsoft" else FORMULAS
    return formulas.get(call.op_type) if kind_of(call.domain, call.op_type) else None


def work_of(call: NodeShapes) -> FlopCount:
    """FLOP of one node without subgraphs: by its formula, else by its kind's count per element."""
    kind, formula = kind_of(call.domain, call.op_type), formula_of(call)
    try:
        flop = float(formula(call)) if formula else _by_elements(kind or "opaque", call.inputs, call.outputs)
    except (IndexError, KeyError, TypeError, ValueError, ArithmeticError):
        return FlopCount(0.0, "a shape is not known")  # or too short: nothing can be counted
    if not flop >= 0 or not isfinite(flop):
        return FlopCount(0.0, "its attributes mean nothing")
    return FlopCount(flop, "" if formula or kind not in (None, "opaque") else "no formula")


def _by_elements(kind: str, inputs: Sequence[Shape | None], outputs: Sequence[Shape | None]) -> float:
    """The kind's own count: per element of the first input for reductions, else of the results."""
    operator = OPERATORS[OPERATOR_ID[kind]]
    counted = inputs[:1] if operator.category is Category.REDUCTION else outputs
    if operator.flop and any(shape is None for shape in counted):
        raise TypeError("unknown shape")
    return operator.flop * sum(prod(shape) for shape in counted if shape is not None)
