"""The text of a torch program to an FX graph of the functions that it calls. The text is data: it is parsed by `ast`,
and neither executed nor imported.

The text is that of torch.compile's frontend: a class with one method `forward` whose statements assign the results of
functions of torch (`functions.yaml`), tensor methods and operators. Whole numbers among the arguments take their stored
values, devices become the CPU, and arithmetic of numbers is done while reading.
"""

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NoReturn

import torch
import yaml
from torch.fx import Graph as FxGraph
from torch.fx import Node

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.pytorch.graphnet.scalars import IN_PLACE, OPERATORS, SCALARS, computed
from graphopt.graphs.readers.pytorch.program_operators import is_allowed

MOST_BYTES = 16 * 2**20  # of a text
MOST_NODES = 50_000  # calls
MOST_ITEMS = 4096  # of a tuple or list
_SPACES: Mapping[str, Any] = {
    "torch": torch, "torch.functional": torch.functional, "torch.nn.functional": torch.nn.functional,
    "torch._C._nn": torch._C._nn, "torch.linalg": torch.linalg, "torch.fft": torch.fft, "torch.special": torch.special,
    "torch.Tensor": torch.Tensor,
}  # fmt: skip
_LISTED = {
    space: frozenset(names.split())
    for space, names in yaml.safe_load(Path(__file__).with_name("functions.yaml").read_text()).items()
}
METHODS = _LISTED["torch.Tensor"]
ATTRIBUTES = frozenset(("shape", "dtype", "device", "ndim", "T", "mT", "H", "mH", "real", "imag", "is_cuda"))
_CONSTANTS = {"torch.inf": math.inf, "torch.nan": math.nan, "torch.pi": math.pi, "math.inf": math.inf,
              "math.pi": math.pi, "inf": math.inf, "nan": math.nan, "Ellipsis": ...}  # fmt: skip
_IGNORED = _LISTED.pop("ignored")
_FUNCTORCH = {
    name: getattr(torch._C._functorch, name)
    for name in ("_vmap_increment_nesting", "_vmap_decrement_nesting", "_add_batch_dim", "_remove_batch_dim")
}
_AUTOCAST = {f"torch.amp.autocast_mode.{name}": getattr(torch.amp.autocast_mode, name)
             for name in ("_enter_autocast", "_exit_autocast")}  # fmt: skip
_READS_VALUE = ("torch.ops.aten._local_scalar_dense", "torch.ops.aten._local_scalar_dense.default")
_SIZE = "torch.ops.aten.sym_size.int"
_ATEN = re.compile(r"torch\.ops\.aten\.(\w+)(?:\.(\w+))?", re.ASCII)
_TEXT = re.compile(r"[A-Za-z0-9_ ,.>-]{0,200}", re.ASCII)  # modes, and equations of einsum
_DEVICE = re.compile(r"(cpu|cuda|meta)(:\d{1,3})?", re.ASCII)
_MADE_OF_NUMBERS = (torch.dtype, torch.memory_format, torch.layout)


def read_text(text: bytes, place: str, numbers: Mapping[str, int | float | bool]) -> tuple[FxGraph, tuple[str, ...]]:
    """The graph, whose placeholders are the tensors that `forward` is given and uses, and which of its arguments are
    parameters. numbers: of arguments that are numbers, by name. Raises GraphError that names place, line and operator.
    """
    forward = _forward(text, place)
    reader = _TextReader(place, numbers)
    try:
        learned = reader.arguments(forward.args)
        for statement in forward.body:
            reader.statement(statement)
    except RecursionError:
        raise GraphError(f"{place}: expressions are nested too deep to be read") from None
    if reader.open:
        raise GraphError(f"{place}: forward returns nothing; return the tensors that it computes")
    return reader.graph, learned


def parsed(text: bytes, place: str) -> ast.Module:
    """Raises GraphError on other text than Python, or too large a text."""
    if len(text) > MOST_BYTES:
        raise GraphError(f"{place} has more than {MOST_BYTES:,} bytes, the most that is read")
    try:
        return ast.parse(text.decode())
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None)
        said = getattr(error, "msg", None) or "it is nested too deep" if not isinstance(error, ValueError) else error
        raise GraphError(f"{place}{f', line {line}' if line else ''}: no Python text ({said})") from None


def _forward(text: bytes, place: str) -> ast.FunctionDef:
    """The one function of the one class; other statements may import torch only."""
    found: list[ast.FunctionDef] = []
    for statement in parsed(text, place).body:
        match statement:
            case ast.ClassDef(body=[ast.FunctionDef(name="forward") as function], decorator_list=[]):
                found.append(function)
            case ast.Import() | ast.ImportFrom() if _is_known_import(statement):
                pass
            case ast.Expr(value=ast.Constant()):
                pass
            case _:
                raise GraphError(f"{place}, line {statement.lineno}: {_brief(statement)} is not read; a program is "
                                 "imports of torch and one class with one method, forward")  # fmt: skip
    if len(found) != 1 or found[0].decorator_list:
        raise GraphError(f"{place} has {len(found)} classes with a method forward; one is read")
    return found[0]


def _is_known_import(statement: ast.Import | ast.ImportFrom) -> bool:
    if isinstance(statement, ast.Import):
        return all(name.name in ("torch", "math") and name.asname is None for name in statement.names)
    names = [(name.name, name.asname) for name in statement.names]
    return statement.module == "torch" and names in ([("device", None)], [("inf", None)], [("tensor", None)])


def _brief(node: ast.AST) -> str:
    """The text of a piece of program, on one short line."""
    text = " ".join(ast.unparse(node).split())
    return repr(text if len(text) < 80 else text[:77] + "...")


class _TextReader:
    """Statements become nodes. `names` holds a node for every tensor, and numbers, tuples and settings as they are."""

    def __init__(self, place: str, numbers: Mapping[str, int | float | bool]) -> None:
        self.place, self.numbers = place, numbers
        self.graph = FxGraph()
        self.names: dict[str, Any] = {}
        self.open, self.calls = True, 0

    def refuse(self, node: ast.AST, why: str) -> NoReturn:
        raise GraphError(f"{self.place}, line {getattr(node, 'lineno', '?')}: {why}")

    def arguments(self, given: ast.arguments) -> tuple[str, ...]:
        if given.vararg or given.kwarg or given.kwonlyargs or given.posonlyargs or given.defaults or not given.args:
            self.refuse(given, "forward has to have plain arguments")
        learned = []
        for argument in given.args[1:]:
            name = argument.arg
            if name in self.names:
                self.refuse(argument, f"argument {name} stands twice")
            kind = "" if argument.annotation is None else ast.unparse(argument.annotation).rpartition(".")[2]
            if kind == "SymInt" and name not in self.numbers:
                self.refuse(argument, f"the value of number {name} is not stored")
            self.names[name] = self.numbers[name] if kind == "SymInt" else self.graph.placeholder(name)
            if kind == "Parameter":
                learned.append(name)
        return tuple(learned)

    def statement(self, node: ast.stmt) -> None:
        if not self.open:
            self.refuse(node, "nothing may follow the result")
        match node:
            case ast.Assign(targets=targets, value=value):
                made = self.value(value)
                for target in targets:
                    self.assign(target, made)
            case ast.AugAssign(target=ast.Name(id=name) as target, op=op, value=value) if type(op) in IN_PLACE:
                if name not in self.names:
                    self.refuse(node, f"name {name!r} is not defined")
                table = IN_PLACE if isinstance(self.names[name], Node) else OPERATORS
                self.assign(target, self.call(node, table[type(op)], (self.names[name], self.value(value))))
            case ast.Expr(value=value):
                self.value(value)
            case ast.Return(value=value):
                outputs = self.value(value) if value is not None else ()
                self.graph.output(outputs if isinstance(outputs, tuple | list) else (outputs,))
                self.open = False
            case ast.Pass():
                pass
            case _:
                self.refuse(node, f"{_brief(node)} is not read; only assignments, calls and the result are")

    def assign(self, target: ast.expr, made: Any) -> None:
        match target:
            case ast.Name(id=name):
                self.names[name] = made
            case ast.Subscript(value=of, slice=index):
                self.call(target, operator.setitem, (self.tensor(of), self.value(index), made))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if not isinstance(made, Node) and not (isinstance(made, tuple | list) and len(made) == len(parts)):
                    self.refuse(target, f"{_brief(target)} cannot be taken from that")
                for i, part in enumerate(parts):
                    self.assign(part, self.call(target, operator.getitem, (made, i)))
            case _:
                self.refuse(target, f"{_brief(target)} cannot be assigned")

    def tensor(self, node: ast.expr) -> Node:
        found = self.value(node)
        return found if isinstance(found, Node) else self.refuse(node, f"{_brief(node)} is no tensor")

    def value(self, node: ast.expr) -> Any:
        match node:
            case ast.Constant(value=value):
                return self.constant(node, value)
            case ast.Name(id=name):
                if name not in self.names and name not in _CONSTANTS:
                    self.refuse(node, f"name {name!r} is not defined")
                return self.names.get(name, _CONSTANTS.get(name))
            case ast.Tuple(elts=parts) | ast.List(elts=parts):
                if len(parts) > MOST_ITEMS:
                    self.refuse(node, f"{len(parts):,} items are more than {MOST_ITEMS:,}, the most that are read")
                items = [self.value(part) for part in parts]
                return tuple(items) if isinstance(node, ast.Tuple) else items
            case ast.Slice(lower=lower, upper=upper, step=step):
                return slice(*(None if part is None else self.value(part) for part in (lower, upper, step)))
            case ast.Subscript(value=of, slice=index):
                return self.call(node, operator.getitem, (self.value(of), self.value(index)))
            case ast.UnaryOp(op=op, operand=operand) if type(op) in OPERATORS:
                return self.call(node, OPERATORS[type(op)], (self.value(operand),))
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return self.call(node, OPERATORS[type(op)], (self.value(left), self.value(right)))
            case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in OPERATORS:
                return self.call(node, OPERATORS[type(op)], (self.value(left), self.value(right)))
            case ast.Attribute():
                return self.attribute(node)
            case ast.Call():
                return self.called(node)
        self.refuse(node, f"{_brief(node)} is not read")

    def constant(self, node: ast.expr, value: Any) -> Any:
        if isinstance(value, str):
            if _DEVICE.fullmatch(value):
                return "cpu"
            if not _TEXT.fullmatch(value):
                self.refuse(node, f"text {value[:40]!r} names no setting of an operator")
        elif isinstance(value, int) and not -(2**63) <= value < 2**63:
            self.refuse(node, "a whole number does not fit into 64 bits")
        elif isinstance(value, bytes):
            self.refuse(node, f"{_brief(node)} is not read")
        return value

    def attribute(self, node: ast.Attribute) -> Any:
        dotted = _dotted(node)
        if dotted is not None and dotted.partition(".")[0] not in self.names:
            if dotted in _CONSTANTS:
                return _CONSTANTS[dotted]
            found = getattr(torch, node.attr, None) if dotted == f"torch.{node.attr}" else None
            return found if isinstance(found, _MADE_OF_NUMBERS) else self.refuse(node, f"{dotted[:80]!r} is not read")
        if node.attr not in ATTRIBUTES:
            self.refuse(node, f"attribute {node.attr[:80]!r} of a tensor is not read")
        return self.call(node, getattr, (self.tensor(node.value), node.attr))

    def called(self, node: ast.Call) -> Any:
        if any(isinstance(a, ast.Starred) for a in node.args) or any(key.arg is None for key in node.keywords):
            self.refuse(node, "arguments by * are not read")
        if (dotted := _dotted(node.func)) is not None and dotted.partition(".")[0] not in self.names:
            if dotted in _IGNORED:
                return None
            args, kwargs = self.given(node)
            return self.function(node, dotted, args, kwargs)
        if not isinstance(node.func, ast.Attribute):
            self.refuse(node, f"{_brief(node.func)} cannot be called")
        name = node.func.attr
        if name not in METHODS:
            self.refuse(node, f"method {name[:80]!r} of a tensor is not read")
        args, kwargs = self.given(node)
        return self.method(node, name, (self.tensor(node.func.value), *args), kwargs)

    def given(self, node: ast.Call) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return tuple(self.value(a) for a in node.args), {str(k.arg): self.value(k.value) for k in node.keywords}

    def function(self, node: ast.Call, dotted: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        space, _, name = dotted.rpartition(".")
        if dotted in ("device", "torch.device"):
            return torch.device("cpu")
        if dotted == "slice":
            return slice(*args)
        if dotted == "torch.Size":
            return tuple(args[0]) if args and isinstance(args[0], tuple | list) else self.refuse(node, "no sizes")
        if dotted in SCALARS:
            return self.call(node, SCALARS[dotted], args, kwargs)
        if dotted in _READS_VALUE:
            return self.method(node, "item", args, {})
        if dotted == _SIZE:
            return self.method(node, "size", args, {})
        if dotted == "tensor":
            space, name = "torch", "tensor"
        if space in _LISTED and space != "torch.Tensor" and name in _LISTED[space]:
            function = getattr(_SPACES[space], name, None)
        elif space in ("torch._C._functorch", "torch._functorch.predispatch") and name in _FUNCTORCH:
            function = _FUNCTORCH[name]
        else:
            function = _AUTOCAST.get(dotted) or _operator(dotted)
        if function is None:
            self.refuse(node, f"function {dotted[:80]!r} is not read; functions of torch are listed in functions.yaml")
        return self.call(node, function, args, kwargs)

    def method(self, node: ast.Call, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        tensor = args[0] if args else None
        if not isinstance(tensor, Node):
            self.refuse(node, f"{name} needs a tensor")
        if name == "item" and tensor.op == "placeholder" and tensor.target in self.numbers:
            return self.numbers[str(tensor.target)]
        if name == "cuda":
            return tensor
        return self._node(node, "call_method", name, args, kwargs)

    def call(self, node: ast.AST, function: Callable[..., Any], args: tuple[Any, ...],
             kwargs: Mapping[str, Any] | None = None) -> Any:  # fmt: skip
        """A node, or the number that comes out where all arguments are numbers."""
        if function in _COMPUTED and not any(_holds_node(a) for a in (*args, *(kwargs or {}).values())):
            try:
                return computed(function, args, kwargs or {})
            except (ArithmeticError, TypeError, ValueError, LookupError) as error:
                self.refuse(node, f"{_brief(node)} cannot be computed ({error})")
        return self._node(node, "call_function", function, args, dict(kwargs or {}))

    def _node(self, node: ast.AST, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Node:
        self.calls += 1
        if self.calls > MOST_NODES:
            self.refuse(node, f"it calls more than {MOST_NODES:,} functions, the most that are read")
        made = self.graph.create_node(op, target, args, kwargs)
        made.meta["line"] = getattr(node, "lineno", 0)
        return made


_COMPUTED = frozenset((*OPERATORS.values(), *SCALARS.values(), operator.getitem))


def _holds_node(value: Any) -> bool:
    if isinstance(value, slice):
        return any(isinstance(v, Node) for v in (value.start, value.stop, value.step))
    return any(map(_holds_node, value)) if isinstance(value, tuple | list) else isinstance(value, Node)


def _dotted(node: ast.expr) -> str | None:
    """`torch.nn.functional.relu` of such an expression; None of others."""
    parts = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join(reversed([*parts, node.id])) if isinstance(node, ast.Name) and len(parts) < 8 else None


def _operator(dotted: str) -> Any:
    """An operator of `torch.ops.aten` that a program file may call, with or without its overload; None of others."""
    parts = _ATEN.fullmatch(dotted)
    packet = getattr(torch.ops.aten, parts[1], None) if parts else None
    if not isinstance(packet, torch._ops.OpOverloadPacket):
        return None
    overloads = [getattr(packet, name) for name in packet.overloads()]  # type: ignore[no-untyped-call]
    if parts is not None and parts[2]:
        overloads = [overload for overload in overloads if overload._overloadname == parts[2]]
    allowed = [overload for overload in overloads if is_allowed(overload)]
    return None if not allowed else allowed[0] if parts is not None and parts[2] else packet
