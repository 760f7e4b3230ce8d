"""ONNX forms of common ATen operators, for programs that came from torch modules. Operator set 17."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx

from graphopt.errors import UserError
from graphopt.rewrite.io.torch_arguments import Slot
from graphopt.rewrite.ir.vocabulary import TensorType

if TYPE_CHECKING:
    from graphopt.rewrite.io.torch_call import TorchCall


class Writing:
    """One call on its way into a model: `operand` names an argument, which may be a tensor or a number."""

    def __init__(self, call: "TorchCall", export: Any, inputs: Sequence[str], types: Sequence[TensorType]) -> None:
        self.call, self.export, self.inputs, self.types = call, export, inputs, types

    def arg(self, position: int, name: str = "", default: Any = None) -> Any:
        args = self.call.args
        return args[position] if position < len(args) else dict(self.call.kwargs).get(name, default)

    def operand(self, position: int) -> str:
        """A number takes the element type of the first tensor."""
        value = self.arg(position)
        return self.inputs[value.index] if isinstance(value, Slot) else self.number(value)

    def number(self, value: Any) -> str:
        return str(self.export.constant(value, np.dtype(self.types[0].dtype)))

    def integers(self, values: Sequence[int]) -> str:
        return str(self.export.constant(list(values), np.int64))

    @property
    def rank(self) -> int:
        return len(self.types[0].shape)

    def node(self, operator: str, inputs: Sequence[str], outputs: Sequence[str] | None = None,
             **attributes: Any) -> str:  # fmt: skip
        return str(self.export.node(operator, inputs, outputs, **attributes))


Form = Callable[[Writing, list[str]], Any]


def write(call: "TorchCall", export: Any, inputs: list[str], outputs: list[str], types: list[TensorType]) -> None:
    """Adds the nodes of a call. Raises UserError for an operator without a form."""
    form = FORMS.get(call.name)
    if form is None:
        raise UserError(f"operator {call.label} has no ONNX form here; export the module with torch.onnx and give that "
                        "file, or replace the operator")  # fmt: skip
    form(Writing(call, export, inputs, types), outputs)


def _plain(operator: str, count: int) -> Form:
    """An ONNX operator of the first so many arguments."""
    return lambda w, out: w.node(operator, [w.operand(i) for i in range(count)], out)


def _scaled(operator: str) -> Form:
    """a + alpha b, a - alpha b."""

    def form(w: Writing, out: list[str]) -> None:
        second, alpha = w.operand(1), w.arg(2, "alpha", 1)
        w.node(operator, [w.operand(0), second if alpha == 1 else w.node("Mul", [second, w.number(alpha)])], out)

    return form


def _after(operator: str, first: str) -> Form:
    """An operator of what another makes of the argument."""
    return lambda w, out: w.node(operator, [w.node(first, [w.operand(0)])], out)


def _reduced(operator: str) -> Form:
    """Over some axes, or all. Only ReduceSum takes its axes as an input."""

    def form(w: Writing, out: list[str]) -> None:
        given = w.arg(1, "dim")
        dims = [given] if isinstance(given, int) else list(given or range(w.rank))
        axes, keep = [d % max(w.rank, 1) for d in dims], int(bool(w.arg(2, "keepdim", False)))
        if operator == "ReduceSum":
            w.node(operator, [w.operand(0), w.integers(axes)], out, keepdims=keep)
        else:
            w.node(operator, [w.operand(0)], out, axes=axes, keepdims=keep)

    return form


def _logical(operator: str) -> Form:
    """any and all, as the largest and the smallest of 0 and 1."""

    def form(w: Writing, out: list[str]) -> None:
        axes = [w.arg(1) % w.rank] if w.arg(1) is not None else list(range(w.rank))
        bits = w.node("Cast", [w.operand(0)], to=onnx.TensorProto.INT32)
        found = w.node(operator, [bits], axes=axes, keepdims=int(bool(w.arg(2, "keepdim", False))))
        w.node("Cast", [found], out, to=onnx.TensorProto.BOOL)

    return form


def _clamp(w: Writing, out: list[str]) -> None:
    low, high = w.arg(1, "min"), w.arg(2, "max")
    w.node("Clip", [w.operand(0), *("" if v is None else w.number(v) for v in (low, high))], out)


def _bound(operator: str) -> Form:
    return lambda w, out: w.node(operator, [w.operand(0), w.operand(1)], out)


def _slice(w: Writing, out: list[str]) -> None:
    axis, start, end = w.arg(1, "dim", 0), w.arg(2, "start") or 0, w.arg(3, "end")
    last = np.iinfo(np.int64).max if end is None else end
    ends = [w.integers([n]) for n in (start, last, axis % w.rank, w.arg(4, "step", 1))]
    w.node("Slice", [w.operand(0), *ends], out)


def _select(w: Writing, out: list[str]) -> None:
    w.node("Gather", [w.operand(0), str(w.export.constant(w.arg(2), np.int64))], out, axis=w.arg(1) % w.rank)


def _expand(w: Writing, out: list[str]) -> None:
    sizes = [1 if n == -1 else n for n in w.arg(1)]  # 1 keeps what is there
    w.node("Expand", [w.operand(0), w.integers(sizes)], out)


def _embedding(w: Writing, out: list[str]) -> None:
    w.node("Gather", [w.operand(0), w.operand(1)], out, axis=0)


def _cast(w: Writing, out: list[str]) -> None:
    dtype = str(dict(w.call.kwargs).get("dtype") or w.types[0].dtype).removeprefix("torch.")
    w.node("Cast", [w.operand(0)], out, to=onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def _softmax(operator: str) -> Form:
    return lambda w, out: w.node(operator, [w.operand(0)], out, axis=w.arg(1) % w.rank)


def _where(w: Writing, out: list[str]) -> None:
    kind = next((t for t in w.types if t.dtype != "bool"), w.types[0])
    sides = [w.inputs[a.index] if isinstance(a := w.arg(i), Slot) else str(w.export.constant(a, np.dtype(kind.dtype)))
             for i in (1, 2)]  # fmt: skip
    w.node("Where", [w.operand(0), *sides], out)


def _not_equal(w: Writing, out: list[str]) -> None:
    w.node("Not", [w.node("Equal", [w.operand(0), w.operand(1)])], out)


def _reversed(w: Writing, out: list[str]) -> None:
    w.node("Sub", [w.operand(1), w.operand(0)], out)


def _conv(w: Writing, out: list[str]) -> None:
    """Also dilated, along a line, or transposed."""
    _, _, bias, strides, pads, dilation, transposed, more, groups = w.call.args
    operands = [w.operand(i) for i in range(2 if bias is None else 3)]
    extra = {"output_padding": more} if transposed else {}
    w.node("ConvTranspose" if transposed else "Conv", operands, out, strides=strides, pads=[*pads, *pads],
           dilations=dilation, group=groups, **extra)  # fmt: skip


def _pad(w: Writing, out: list[str]) -> None:
    """torch lists pairs from the last axis on."""
    pairs = list(zip(w.arg(1)[::2], w.arg(1)[1::2]))
    pairs = [(0, 0)] * (w.rank - len(pairs)) + pairs[::-1]
    pads = w.integers([before for before, _ in pairs] + [after for _, after in pairs])
    w.node("Pad", [w.operand(0), pads, w.number(w.arg(2, "value", 0))], out)


def _avg_pool(w: Writing, out: list[str]) -> None:
    kernel = w.arg(1)
    if w.arg(6, "divisor_override") is not None:
        raise UserError("a mean pooling with a divisor of its own has no ONNX form here; leave divisor_override away")
    strides, pads = w.arg(2, "stride") or kernel, w.arg(3, "padding", 0) or [0]
    pads = list(pads) * (len(kernel) // len(pads))
    w.node("AveragePool", [w.operand(0)], out, kernel_shape=kernel, strides=strides, pads=[*pads, *pads],
           ceil_mode=int(bool(w.arg(4, "ceil_mode", False))),
           count_include_pad=int(bool(w.arg(5, "count_include_pad", True))))  # fmt: skip


_SAME = {"Sqrt": "sqrt", "Exp": "exp", "Log": "log", "Erf": "erf", "Neg": "neg", "Abs": "abs", "Sin": "sin",
         "Cos": "cos", "Floor": "floor", "Ceil": "ceil", "Sign": "sign", "Reciprocal": "reciprocal",
         "Tanh": "tanh", "Sigmoid": "sigmoid", "Relu": "relu", "Not": "logical_not"}  # fmt: skip
_OF_TWO = {"Div": "div", "Max": "maximum", "Min": "minimum", "Pow": "pow", "Mul": "mul", "Greater": "gt", "Less": "lt",
           "GreaterOrEqual": "ge", "LessOrEqual": "le", "Equal": "eq", "And": "logical_and", "Or": "logical_or",
           "MatMul": "mm"}  # fmt: skip
FORMS: dict[str, Form] = {
    **{name: _plain(operator, 1) for operator, name in _SAME.items()},
    **{name: _plain(operator, 2) for operator, name in _OF_TWO.items()},
    "add": _scaled("Add"),
    "sub": _scaled("Sub"),
    "rsub": _reversed,
    "rsqrt": _after("Reciprocal", "Sqrt"),
    "sum": _reduced("ReduceSum"),
    "mean": _reduced("ReduceMean"),
    "amax": _reduced("ReduceMax"),
    "amin": _reduced("ReduceMin"),
    "prod": _reduced("ReduceProd"),
    "any": _logical("ReduceMax"),
    "all": _logical("ReduceMin"),
    "clamp": _clamp,
    "hardtanh": _clamp,
    "clamp_min": _bound("Max"),
    "clamp_max": _bound("Min"),
    "slice": _slice,
    "select": _select,
    "expand": _expand,
    "embedding": _embedding,
    "_to_copy": _cast,
    "_softmax": _softmax("Softmax"),
    "_log_softmax": _softmax("LogSoftmax"),
    "where": _where,
    "ne": _not_equal,
    "convolution": _conv,
    "constant_pad_nd": _pad,
    "avg_pool2d": _avg_pool,
    "bmm": _plain("MatMul", 2),
    "clone": _plain("Identity", 1),
}
