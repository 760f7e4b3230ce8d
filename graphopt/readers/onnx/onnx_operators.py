"""ONNX operators: which of our kinds each one is, and how many FLOP it takes.

What stands in no table is unknown: an opaque op.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, prod

from graphopt.core.operators import OPERATOR_ID, OPERATORS, Category
from graphopt.readers.onnx.evaluation import STANDARD
from graphopt.readers.onnx.formulas import FORMULAS, MICROSOFT, Formula, NodeShapes, Shape

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
