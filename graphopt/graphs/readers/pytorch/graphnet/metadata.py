"""GraphNet's descriptions of a program's arguments: a class each with shape, type, mean, deviation, range or values."""

import ast
import math
from collections.abc import Mapping
from math import prod
from typing import Any

import torch

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.graphnet.text import parsed
from graphopt.graphs.readers.pytorch.program_inputs import EXACT_BYTES, InputSpec, raw, torch_dtype

RANK = 16
STATE = "L_self_"  # how names of parameters, buffers and constants of the module begin
FEW = 16  # values of a constant are drawn here, once: numbers that are read from it stand in the graph
WIDE = math.sqrt(3.0)  # half the width of a uniform distribution, in deviations
_NAMES = {"inf": math.inf, "nan": math.nan}
Described = dict[str, Any]  # field -> value


def read_metadata(text: bytes, place: str) -> dict[str, Described]:
    """The fields of every argument by its name. Raises GraphError."""
    found: dict[str, Described] = {}
    for statement in parsed(text, place).body:
        match statement:
            case ast.ClassDef(body=body, decorator_list=[]):
                fields = _fields(body, place)
                if not isinstance(name := fields.get("name"), str):
                    raise GraphError(f"{place}, line {statement.lineno}: an argument has no name")
                found[name] = fields | {"line": statement.lineno}
            case ast.Expr(value=ast.Constant()) | ast.Pass():
                pass
            case _:
                raise GraphError(f"{place}, line {statement.lineno}: only classes that describe tensors are read")
    return found


def _fields(body: list[ast.stmt], place: str) -> Described:
    found: Described = {}
    for statement in body:
        match statement:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                found[name] = _literal(value, place)
            case ast.Pass():
                pass
            case _:
                raise GraphError(f"{place}, line {statement.lineno}: a description has plain values only")
    return found


def _literal(node: ast.expr, place: str) -> Any:
    match node:
        case ast.Constant(value=None | bool() | int() | float() | str() as value):
            return value
        case ast.UnaryOp(op=ast.USub(), operand=operand) if isinstance(value := _literal(operand, place), int | float):
            return -value
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return [_literal(part, place) for part in parts]
        case ast.Name(id=name) if name in _NAMES:
            return _NAMES[name]
        case ast.Call(func=ast.Name(id="float"), args=[ast.Constant(value="inf" | "-inf" | "nan" as value)]):
            return float(value)
    raise GraphError(f"{place}, line {node.lineno}: only numbers, texts and lists of them are read")


def number_of(described: Described) -> int | float | bool | None:
    """The number that an argument of one element is known to be: its one stored value, or the mean of no deviation."""
    if described.get("shape") not in ([], [1]):
        return None
    data = described.get("data")
    if isinstance(data, list) and len(data) == 1 and isinstance(data[0], bool | int | float):
        found = data[0]
        return found if isinstance(found, float) or abs(found) < 2**63 else None
    mean = described.get("mean")
    return mean if isinstance(mean, int | float) and described.get("std") in (0, 0.0) else None


def spec_of(described: Described, place: str) -> InputSpec:
    """The tensor that stands for an argument: its values where they are stored; else drawn, from a normal distribution
    of the stored mean and deviation, or uniformly within the stored range where that cuts the normal one. Raises
    GraphError."""
    where = f"{place}, line {described['line']}: {described['name'][:80]}"
    shape = _shape(described, where)
    dtype = str(described.get("dtype")).removeprefix("torch.")
    try:
        kind = torch_dtype(dtype)
    except GraphError as error:
        raise GraphError(f"{where}: {error}") from None
    stride = tuple(prod(max(s, 1) for s in shape[i + 1 :]) for i in range(len(shape)))
    if (data := described.get("data")) is not None:
        return InputSpec(shape, stride, dtype, "exact", values=_values(data, shape, kind, where))
    low, high = (_number(described.get(key), where) for key in ("min_val", "max_val"))
    if kind is torch.bool or not (kind.is_floating_point or kind.is_complex):
        first = 0.0 if low is None else math.ceil(low)
        last = max(first, 1.0 if high is None else math.floor(high))
        return InputSpec(shape, stride, dtype, "uniform", (float(first), float(last)))
    mean, deviation = _number(described.get("mean"), where) or 0.0, _number(described.get("std"), where) or 0.0
    if prod(shape) <= FEW and described["name"].startswith(STATE):
        values = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * deviation + mean
        return InputSpec(shape, stride, dtype, "exact", values=raw(values.to(kind)))
    from_, to = mean - WIDE * deviation, mean + WIDE * deviation
    if (low is not None and low > mean - 4 * deviation) or (high is not None and high < mean + 4 * deviation):
        first, last = max(from_, -math.inf if low is None else low), min(to, math.inf if high is None else high)
        return InputSpec(shape, stride, dtype, "uniform", (first, max(first, last)))
    return InputSpec(shape, stride, dtype, "normal", (mean, deviation))


def _shape(described: Mapping[str, Any], where: str) -> tuple[int, ...]:
    shape = described.get("shape")
    if not isinstance(shape, list) or len(shape) > RANK or not all(type(s) is int and s >= 0 for s in shape):
        raise GraphError(f"{where}: {str(shape)[:80]} is no shape")
    if prod(shape) >= 2**48:
        raise GraphError(f"{where}: {prod(shape):,} elements are more than any machine holds")
    return tuple(shape)


def _values(data: Any, shape: tuple[int, ...], kind: torch.dtype, where: str) -> bytes:
    flat = _flat(data)
    if len(flat) != prod(shape) or not all(isinstance(v, bool | int | float) for v in flat):
        raise GraphError(f"{where}: its {len(flat)} values are not the {prod(shape):,} of its shape")
    if len(flat) * kind.itemsize > EXACT_BYTES:
        raise GraphError(f"{where}: {len(flat):,} values are more than are kept")
    try:
        return raw(torch.tensor(flat, dtype=kind).reshape(shape))
    except (RuntimeError, OverflowError, ValueError) as error:
        raise GraphError(f"{where}: its values are not of its type ({error})") from None


def _flat(data: Any) -> list[Any]:
    return [v for part in data for v in _flat(part)] if isinstance(data, list) else [data]


def _number(value: Any, where: str) -> float | None:
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return None
    if not isinstance(value, bool | int | float) or abs(value) > 1e300:
        raise GraphError(f"{where}: {str(value)[:40]!r} is no number")
    return float(value)
