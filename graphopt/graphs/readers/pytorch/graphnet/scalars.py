"""Arithmetic of numbers in the text of a program, within limits: no number grows beyond 64 bits."""

import ast
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

OPERATORS: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod, ast.Pow: operator.pow, ast.MatMult: operator.matmul,
    ast.BitAnd: operator.and_, ast.BitOr: operator.or_, ast.BitXor: operator.xor,
    ast.LShift: operator.lshift, ast.RShift: operator.rshift,
    ast.USub: operator.neg, ast.UAdd: operator.pos, ast.Invert: operator.invert, ast.Not: operator.not_,
    ast.Eq: operator.eq, ast.NotEq: operator.ne, ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}  # fmt: skip
IN_PLACE: Mapping[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.iadd, ast.Sub: operator.isub, ast.Mult: operator.imul, ast.Div: operator.itruediv,
    ast.FloorDiv: operator.ifloordiv, ast.Mod: operator.imod, ast.Pow: operator.ipow, ast.MatMult: operator.imatmul,
    ast.BitAnd: operator.iand, ast.BitOr: operator.ior, ast.BitXor: operator.ixor,
}  # fmt: skip
SCALARS: Mapping[str, Callable[..., Any]] = {
    "torch.sym_sum": sum, "torch.sym_max": max, "torch.sym_min": min, "torch.sym_float": float, "torch.sym_int": int,
    "torch.sym_not": operator.not_, "torch._sym_sqrt": math.sqrt, "torch.sym_sqrt": math.sqrt, "max": max, "min": min,
    "int": int, "float": float, "math.ceil": math.ceil, "math.floor": math.floor, "math.sqrt": math.sqrt,
    "math.trunc": math.trunc, "math.log": math.log, "math.exp": math.exp,
}  # fmt: skip
_GROWING = (operator.pow, operator.lshift)
Number = bool | int | float | complex


def computed(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of numbers, or a part or the sum of tuples of them. Raises Python's own exceptions, and ValueError
    where a number leaves 64 bits."""
    if kwargs:
        raise TypeError("numbers take no arguments by name")
    if function in _GROWING and not all(isinstance(a, Number) and abs(a) < 2**31 for a in args):
        raise ValueError("its numbers are too large")
    if function in _GROWING and abs(args[1]) > 64:
        raise ValueError("its exponent is too large")
    joins = function is operator.add and all(isinstance(a, tuple | list) for a in args)
    if function not in (operator.getitem, sum, max, min) and not joins and not all(isinstance(a, Number) for a in args):
        raise TypeError("its operands are no numbers")
    made = function(*args)
    if isinstance(made, int) and not -(2**63) <= made < 2**63:
        raise ValueError("the number does not fit into 64 bits")
    return made
