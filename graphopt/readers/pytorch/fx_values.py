"""Arguments and operators of FX nodes as plain JSON values, and back. What is read names tensor operators only."""

import operator
import re
from collections.abc import Mapping
from importlib import import_module
from typing import Any

import torch
from torch.fx import Node

from graphopt.core.graph import GraphError
from graphopt.readers.pytorch.program_operators import NAMESPACES, is_allowed

GETITEM = "getitem"
_TARGET = re.compile(rf"({'|'.join(NAMESPACES)})\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_DEVICE = re.compile(r"(cpu|cuda)(:\d{1,2})?", re.ASCII)
_PACKED = re.compile("q|bits")  # types whose elements mean nothing without a quantiser
_KINDS: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def target_name(target: Any) -> str:
    """`aten.add.Tensor` of the operator, `getitem` of Python's. Raises GraphError for what no program file may call."""
    if target is operator.getitem:
        return GETITEM
    if not isinstance(target, torch._ops.OpOverload) or not is_allowed(target):
        raise GraphError(
            f"{target} is no tensor operator that a program file may call, so the program cannot be stored; "
            "list it in graphopt/readers/pytorch/program_operators.py if it is a pure function of tensors"
        )
    return str(target)


def target_of(name: object) -> Any:
    """The operator of that name, to be called. Raises GraphError where there is none, or none that a file may call."""
    if name == GETITEM:
        return operator.getitem
    found = operator_of(name)
    if not is_allowed(found):
        raise GraphError(f"a program file may not call {name!r}, which is none of the listed tensor operators")
    return found


def operator_of(name: object) -> torch._ops.OpOverload:
    """The operator of that name, which may be any of torch's: of what a node stems from. It is not to be called."""
    parts = _TARGET.fullmatch(name) if isinstance(name, str) else None
    if parts is None:
        raise GraphError(f"a program file may not name {name!r}; it may name operators of {', '.join(NAMESPACES)}")
    if parts[1] in ("prims", "mkldnn"):  # Inductor's own come with it
        import_module("torch._inductor.inductor_prims")
    try:
        found = getattr(getattr(getattr(torch.ops, parts[1]), parts[2]), parts[3])
    except AttributeError:
        found = None
    if not isinstance(found, torch._ops.OpOverload):
        raise GraphError(f"torch {torch.__version__} has no operator {name!r}; use the version that wrote the program")
    return found


def encode(value: Any) -> Any:
    """An argument as JSON. Raises GraphError for what is neither a number, a text, a node nor a setting of tensors."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, Node):
        return {"node": value.name}
    if isinstance(value, tuple):
        return {"tuple": [encode(v) for v in value]}
    if isinstance(value, list):
        return [encode(v) for v in value]
    if isinstance(value, complex):
        return {"complex": [value.real, value.imag]}
    if isinstance(value, torch.device):
        return {"device": str(value)}
    for kind, of in _KINDS.items():
        if isinstance(value, of):
            return {kind: str(value).removeprefix("torch.")}
    raise GraphError(f"an argument of type {type(value).__name__} cannot be stored; give a model with fixed shapes")


def decode(value: Any, nodes: Mapping[str, Node]) -> Any:
    """The argument again. Raises GraphError where the value is not what `encode` writes."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list):
        return [decode(v, nodes) for v in value]
    if isinstance(value, dict) and len(value) == 1:
        ((kind, of),) = value.items()
        if kind == "node" and isinstance(of, str) and of in nodes:
            return nodes[of]
        if kind == "tuple" and isinstance(of, list):
            return tuple(decode(v, nodes) for v in of)
        if kind == "complex" and isinstance(of, list) and len(of) == 2 and all(isinstance(v, float) for v in of):
            return complex(*of)
        if kind == "device" and isinstance(of, str) and _DEVICE.fullmatch(of):
            return torch.device(of)
        if kind in _KINDS and isinstance(getattr(torch, str(of), None), _KINDS[kind]) and not _PACKED.match(str(of)):
            return getattr(torch, str(of))
    raise GraphError(f"{str(value)[:100]!r} is no argument of a program; write the file anew")
