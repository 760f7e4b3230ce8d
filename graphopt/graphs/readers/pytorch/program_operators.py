"""The operators and arguments that a program file may have, and arguments as plain JSON values, and back.

Names stand in lists. The operator's own schema says the rest. An argument of another kind than it states is refused
before the operator sees the argument. torch takes any number for a layout or a type, and some of them end the process.
"""

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from itertools import chain
from math import ceil
from pathlib import Path
from typing import Any

import torch
import yaml
from torch._ops import OpOverload
from torch.fx import Node

from graphopt.core.graph import GraphError
from graphopt.core.graph_builder import RANK

_NAMES: dict[str, frozenset[str]] = {
    space: frozenset(names.split())
    for space, names in yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text()).items()
}
"""Names without overload; of each also its form in place, whose name ends in `_`."""
NAMESPACES = tuple(_NAMES)
_MOVES = frozenset(("as_strided_", "set_", "resize_"))  # in place, but to other memory
MOST_PARTS = 4096  # results of one operator
_SHORT = re.compile(r"[a-z_]{0,32}", re.ASCII)  # texts are names of modes,
_CHECKS, _SENTENCE = frozenset({"_assert_async"}), re.compile(r"[ -~]{0,400}")  # or the message of a failed check


def is_allowed(target: OpOverload) -> bool:
    """Whether a program file may call it: it is listed, and makes tensors of tensors, numbers and settings."""
    name, schema = target._opname, target._schema
    listed = _NAMES.get(target.namespace, frozenset())
    in_place = name.endswith("_") and not name.endswith("__") and name not in _MOVES and name[:-1] in listed
    makes = {str(r.real_type) for r in schema.returns}
    return (
        (name in listed or in_place)
        and makes <= {"Tensor", "List[Tensor]"}
        and (bool(makes) or schema.is_mutable or name in _CHECKS)
        and all(not a.is_out and _KIND.fullmatch(str(a.real_type)) for a in schema.arguments)
    )


def check_call(target: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where an argument is not of the kind that the operator states."""
    stated = target._schema.arguments
    named = {a.name: a for a in stated}
    places = [a for a in stated if not a.kwarg_only]
    if len(args) > len(places) or not kwargs.keys() <= named.keys():
        raise GraphError(f"{target} has no such arguments")
    for argument, value in chain(zip(places, args), ((named[name], value) for name, value in kwargs.items())):
        says = target._opname in _CHECKS and isinstance(value, str) and _SENTENCE.fullmatch(value)
        if not says and not _fits(value, str(argument.real_type)):
            raise GraphError(f"argument {argument.name} of {target} is to be {argument.real_type}, not {value!r:.80}")


_LISTED = {"Tensor", "number", "int", "SymInt", "float", "bool", "complex", "str", "ScalarType", "Layout",
           "MemoryFormat", "Device", "Generator"}  # fmt: skip
_KIND = re.compile(rf"(Optional\[)?(List\[)?(Optional\[)?({'|'.join(sorted(_LISTED))})\]*")


def _fits(value: Any, kind: str) -> bool:
    if kind.startswith("Optional["):
        return value is None or _fits(value, kind[9:-1])
    if kind.startswith("List["):
        inner = kind[5:-1]
        if not isinstance(value, list | tuple):
            return inner != "Tensor" and not inner.startswith("Optional") and _fits(value, inner)  # for all dimensions
        return len(value) <= (MOST_PARTS if "Tensor" in inner else RANK) and all(_fits(v, inner) for v in value)
    return _SCALARS[kind](value)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and -(2**63) <= value < 2**63


def _number(value: Any) -> bool:
    return _whole(value) or isinstance(value, float | complex)


_SCALARS: dict[str, Callable[[Any], bool]] = {
    "Tensor": lambda v: isinstance(v, Node) or _number(v),
    "number": _number,
    "complex": _number,
    "float": lambda v: _whole(v) or isinstance(v, float),
    "int": _whole,
    "SymInt": _whole,
    "bool": lambda v: isinstance(v, bool),
    "str": lambda v: isinstance(v, str) and _SHORT.fullmatch(v) is not None,
    "ScalarType": lambda v: isinstance(v, torch.dtype),
    "Layout": lambda v: v is torch.strided,
    "MemoryFormat": lambda v: isinstance(v, torch.memory_format),
    "Device": lambda v: isinstance(v, torch.device),
    "Generator": lambda v: False,
}


def check_parts(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Raises GraphError where an operator would cut a tensor into very many. args: its values, tensors for nodes."""
    if not isinstance(target, OpOverload) or "List[Tensor]" not in {str(r.real_type) for r in target._schema.returns}:
        return
    given = {**dict(zip((a.name for a in target._schema.arguments), args)), **kwargs}
    x = given.get("self")
    if not isinstance(x, torch.Tensor) or not x.dim():
        return
    size = x.shape[given.get("dim", 0)]
    step = given.get("split_size", 1)
    parts = given["chunks"] if "chunks" in given else ceil(size / step) if isinstance(step, int) and step > 0 else 0
    if parts > MOST_PARTS and min(parts, size) > MOST_PARTS:
        raise GraphError(f"{target} makes {parts:,} tensors, more than {MOST_PARTS:,}")


# --- Arguments and operators of FX nodes as JSON. Files name tensor operators only.


GETITEM = "getitem"
_TARGET = re.compile(rf"({'|'.join(NAMESPACES)})\.([A-Za-z_]\w*)\.([A-Za-z_]\w*)", re.ASCII)
_DEVICE = re.compile(r"(cpu|cuda)(:\d{1,2})?", re.ASCII)
_PACKED = re.compile("q|bits")  # types whose elements mean nothing without a quantiser
_KINDS: dict[str, type] = {"dtype": torch.dtype, "layout": torch.layout, "memory_format": torch.memory_format}


def target_name(target: Any) -> str:
    """`aten.add.Tensor` of the operator, `getitem` of Python's. Raises GraphError for forbidden functions."""
    if target is operator.getitem:
        return GETITEM
    if not isinstance(target, torch._ops.OpOverload) or not is_allowed(target):
        raise GraphError(
            f"{target} is no tensor operator that a program file may call, so the program cannot be stored; "
            "list it in graphopt/graphs/readers/pytorch/program_operators.yaml if it is a pure function of tensors"
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
    """The operator of that name, which may be any of torch's: the origin of a node. It is not to be called."""
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
    """An argument as JSON. Raises GraphError for other arguments than numbers, texts, nodes and settings of tensors."""
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
    """The argument again. Raises GraphError for values that `encode` does not write."""
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
