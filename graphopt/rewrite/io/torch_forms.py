"""ONNX forms of calls of torch operators that rewriting leaves alone, of programs that came from a torch module."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from graphopt.rewrite.io.torch_import import Slot, TorchCall
from graphopt.rewrite.ir.vocabulary import TensorType

FLOAT, BOOL = 1, 9  # of onnx.TensorProto

ELEMENTWISE = {"abs": "Abs", "ceil": "Ceil", "cos": "Cos", "div": "Div", "erf": "Erf", "exp": "Exp", "floor": "Floor",
               "log": "Log", "maximum": "Max", "minimum": "Min", "neg": "Neg", "pow": "Pow",
               "reciprocal": "Reciprocal", "round": "Round", "sign": "Sign", "sin": "Sin", "sqrt": "Sqrt",
               "sub": "Sub"}  # fmt: skip
REAL = ("ceil", "floor", "round")  # which ONNX has of real numbers alone
LOGICAL = {f"{kind}_{name.lower()}": name for kind in ("logical", "bitwise") for name in ("And", "Or", "Not", "Xor")}
COMPARISONS = {"eq": "Equal", "ge": "GreaterOrEqual", "gt": "Greater", "le": "LessOrEqual", "lt": "Less"}
REDUCTIONS = {"amax": "ReduceMax", "amin": "ReduceMin", "mean": "ReduceMean", "sum": "ReduceSum"}


class Writing(Protocol):
    """The model that is written."""

    opset: int

    def node(self, operator: str, inputs: Sequence[str], outputs: Sequence[str] | None = None,
             **attributes: Any) -> str: ...  # fmt: skip

    def constant(self, values: Any, dtype: Any = ...) -> str: ...


def write_call(onnx: Writing, call: TorchCall, names: Sequence[str], given: Sequence[TensorType],
               outputs: Sequence[str], made: TensorType) -> bool:  # fmt: skip
    """Adds the nodes of a call with one result `made`; False for a call that has no form here. names, given: of the
    tensors that it takes."""
    kinds = [kind.dtype for kind in (given[1:] if call.name == "where" else given)]
    dtype = kinds[0] if kinds and call.name in (*COMPARISONS, "ne") else made.dtype
    if call.kwargs or len(outputs) != 1 or any(kind != dtype for kind in kinds) or onnx.opset < 13:
        return False
    args, result = call.args, list(outputs)

    def argument(position: int, usual: Any = None) -> Any:
        return args[position] if len(args) > position and args[position] is not None else usual

    def operand(value: Any) -> str:
        if value is None:
            return ""
        return names[value.index] if isinstance(value, Slot) else onnx.constant(value, dtype)

    def reduced(operator: str, of: str, into: list[str] | None) -> str:
        over = argument(1)
        axes = [axis % len(given[0].shape) for axis in ([over] if isinstance(over, int) else over)]
        keep = int(argument(2, False))
        if operator == "ReduceSum" or onnx.opset >= 18:
            return onnx.node(operator, [of, onnx.constant(axes)], into, keepdims=keep)
        return onnx.node(operator, [of], into, axes=axes, keepdims=keep)

    def any_() -> None:
        counted = reduced("ReduceMax", onnx.node("Cast", names, to=FLOAT), None)
        onnx.node("Cast", [counted], result, to=BOOL)

    def select() -> None:
        axis = args[1] % len(given[0].shape)
        onnx.node("Gather", [names[0], onnx.constant(args[2] % given[0].shape[axis])], result, axis=axis)

    def slice_() -> None:
        ends = (argument(2, 0), argument(3, 2**62), argument(1, 0), argument(4, 1))
        onnx.node("Slice", [names[0], *(onnx.constant([end]) for end in ends)], result)

    def clip() -> None:
        onnx.node("Clip", [operand(argument(position)) for position in range(3)], result)

    alike = {**ELEMENTWISE, **COMPARISONS, "where": "Where"} | (LOGICAL if made.dtype == "bool" else {})
    forms: dict[str, Callable[[], object]] = {
        **dict.fromkeys(alike, lambda: onnx.node(alike[call.name], [operand(arg) for arg in args], result)),
        **dict.fromkeys(REDUCTIONS, lambda: reduced(REDUCTIONS[call.name], names[0], result)),
        "any": any_,
        "ne": lambda: onnx.node("Not", [onnx.node("Equal", [operand(arg) for arg in args])], result),
        "expand": lambda: onnx.node("Expand", [names[0], onnx.constant(made.shape)], result),
        "cumsum": lambda: onnx.node("CumSum", [names[0], onnx.constant(args[1])], result),
        **dict.fromkeys(("clamp", "hardtanh"), clip),
        "leaky_relu": lambda: onnx.node("LeakyRelu", names, result, alpha=float(argument(1, 0.01))),
        "rsqrt": lambda: onnx.node("Reciprocal", [onnx.node("Sqrt", names)], result),
        "log1p": lambda: onnx.node("Log", [onnx.node("Add", [names[0], onnx.constant(1, dtype)])], result),
        "expm1": lambda: onnx.node("Sub", [onnx.node("Exp", names), onnx.constant(1, dtype)], result),
        "_softmax": lambda: onnx.node("Softmax", names, result, axis=args[1]),
        "select": select,
        "slice": slice_,
    }
    whole = call.name in (*REDUCTIONS, "any") and argument(1) in (None, [], ())  # over all axes
    bounded = call.name == "clamp" and len(given) > 1  # by tensors, which Clip does not take
    integers = call.name in REAL and not made.dtype.startswith(("float", "bfloat"))
    if call.name not in forms or whole or bounded or integers:
        return False
    forms[call.name]()
    return True
