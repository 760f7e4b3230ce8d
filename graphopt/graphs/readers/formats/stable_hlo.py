"""StableHLO (and MHLO) as MLIR text, the printed form of JAX and OpenXLA or MLIR's generic form, to `Module`.

One operation a line, as MLIR prints them. Functions are computations; regions of loops and branches too, which also
read values from outside. Read are the dialects stablehlo, mhlo, chlo and func. Dynamic sizes are refused.
"""

import re
from dataclasses import dataclass, field
from math import prod
from pathlib import Path

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import MIB, read_text
from graphopt.graphs.readers.formats.hlo import DTYPES, Instruction, Module, Shape, graph_of

MOST_BYTES = 512 * MIB
_DIALECTS = ("stablehlo", "mhlo", "chlo", "func")
_OPCODES = {"broadcast-in-dim": "broadcast", "dot-general": "dot", "case": "conditional", "if": "conditional",
            "composite": "call", "top-k": "topk",
            "dynamic-broadcast-in-dim": "broadcast", "real-dynamic-slice": "dynamic-slice"}  # fmt: skip
_TYPES = {"i1": "pred", **{f"i{n}": f"s{n}" for n in (8, 16, 32, 64)}, **{f"ui{n}": f"u{n}" for n in (8, 16, 32, 64)},
          "complex<f32>": "c64", "complex<f64>": "c128", "f8E4M3FN": "f8e4m3fn", "f8E5M2": "f8e5m2"}  # fmt: skip
_TENSOR = re.compile(r"tensor<((?:[\d?]+x)*)([\w]+(?:<\w+>)?)[^>]*>|!\w+\.token")
_OP = re.compile(r'(?:(%[\w.$\-]+)(?::(\d{1,4}))?\s*=\s*)?"?(\w+\.)?(\w+)"?(.*)$')
_VALUE = re.compile(r"%[\w.$\-]+(?:#\d+)?")
_ARGUMENT = re.compile(r"(%[\w.$\-]+)\s*:\s*([^%]*)")
_SYMBOL = re.compile(r'sym_name\s*=\s*"([^"]+)"|@"?([\w.$\-]+)"?')
_CONTRACTED = re.compile(r"(?:\blhs_contracting_dimensions = |\bcontracting_dims = )\[([\d, ]*)\]")
_LABELS = re.compile(r"\[[\w, ]*\]\s*x\s*\[([\w, ]*)\]\s*->")
_SPLAT = re.compile(r"dense<([^\[\]\"<>]+)>")
_LOC = re.compile(r"\s+loc\(.*\)$")


@dataclass
class _Region:
    """A function or region that is open. op: whose region it is. outside: values of scopes around that it reads."""

    name: str
    opener: "_Open | None" = None
    instructions: list[Instruction] = field(default_factory=list)
    shapes: "dict[str, Shape]" = field(default_factory=dict)
    parameters: int = 0
    root: str = ""
    outside: "dict[str, Shape]" = field(default_factory=dict)


@dataclass
class _Open:
    """An operation with regions, whose types are not known before these end."""

    result: str
    count: int
    opcode: str
    text: str
    arguments: list[str] = field(default_factory=list)  # names in the region of a printed loop
    regions: list[_Region] = field(default_factory=list)


def read_stable_hlo(path: str | Path) -> Graph:
    """Raises GraphError, in one sentence with the line, on other text."""
    path = Path(path)
    try:
        text = read_text(path, MOST_BYTES)
    except Unreadable as error:
        raise GraphError(f"{path} is no MLIR text ({error})") from None
    return graph_of(parse_stable_hlo(text, str(path), path.name.removesuffix(".gz").removesuffix(".mlir")))


def parse_stable_hlo(text: str, place: str, name: str) -> Module:
    """Raises GraphError."""
    reader = _MlirReader(place)
    for number, line in enumerate(text.splitlines(), 1):
        reader.place = f"line {number} of {place}"
        reader.line(_LOC.sub("", line.split("//")[0].strip()))
    functions = [key for key in reader.done if "/" not in key]
    if not functions or any(scope is not None for scope in reader.scopes):
        raise GraphError(f"{place} has no whole function; it is no StableHLO text, or its end is missing")
    entry = "main" if "main" in functions else functions[0]
    computations = {key: scope.instructions for key, scope in reader.done.items()}
    return Module(name, entry, computations, {key: scope.root for key, scope in reader.done.items()})


class _MlirReader:
    def __init__(self, place: str) -> None:
        self.place = place
        self.done: dict[str, _Region] = {}
        self.scopes: list[_Region | None] = []  # None: braces that are no function or region
        self._waiting: list[_Open] = []  # operations whose regions are being read
        self._count = 0

    @property
    def _scope(self) -> _Region:
        if self.scopes and (last := self.scopes[-1]) is not None:
            return last
        raise GraphError(f"{self.place} stands in no function")

    def line(self, line: str) -> None:
        if not line or line.startswith("#"):
            return
        words = line.split("(")[0].split()
        if line.startswith(("module", '"builtin.module"', "builtin.module")):
            self.scopes += [None] if line.endswith("{") else []
        elif "func.func" in words[0] or words[0] == "func":
            self._function(line)
        elif line.startswith("^"):
            self._arguments(line)
        elif line.startswith(("cond {", "reducer(")) or line in ("}, {", "} do {", "} do  {"):
            if line.startswith("}"):
                self._end_region()
            self._begin_region(line)
        elif line.startswith("}"):
            self._close(line)
        else:
            self._operation(line)

    def _function(self, line: str) -> None:
        found = _SYMBOL.search(line)
        if found is None or not line.endswith("{"):
            raise GraphError(f"{self.place} begins no function: {line[:80]!r}")
        self.scopes.append(_Region(found[1] or found[2]))
        if not line.endswith("({"):
            self._arguments(line.split("->")[0])

    def _arguments(self, line: str) -> None:
        for name, kind in _ARGUMENT.findall(line[line.find("(") :]):
            self._parameter(name, self._only(self._shapes(kind)))

    def _parameter(self, name: str, shape: "Shape") -> None:
        scope = self._scope
        self._add(Instruction(name, "parameter", shape, index=scope.parameters))
        scope.parameters += 1

    def _operation(self, line: str) -> None:
        found = _OP.match(line)
        if found is None or not self.scopes:
            raise GraphError(f"{self.place} is no operation of a function: {line[:80]!r}")
        result, dialect, bare, rest = found[1] or "", (found[3] or "func.")[:-1], found[4], found[5]
        if dialect not in _DIALECTS:
            raise GraphError(f"{self.place} is of dialect {dialect[:40]}; read are {', '.join(_DIALECTS)}")
        opcode = bare.replace("_", "-")
        opened = _Open(result, int(found[2] or 1), _OPCODES.get(opcode, opcode), rest)
        if rest.endswith("({"):
            self._waiting.append(opened)
            self._begin_region(line)
        elif opened.opcode == "while" or (opened.opcode in ("reduce", "reduce-window") and " applies " not in rest):
            pairs = re.findall(r"(%[\w.$\-]+)\s*=\s*(%[\w.$\-#]+)", rest)
            opened.arguments = [name for name, _ in pairs] if opened.opcode == "while" else []
            self._waiting.append(opened)
        else:
            self._write(opened, rest)

    def _begin_region(self, line: str) -> None:
        if not self._waiting:
            raise GraphError(f"{self.place} begins a region of no operation")
        opened = self._waiting[-1]
        self._count += 1
        self.scopes.append(_Region(f"{opened.opcode}/{self._count}", opened))
        if line.startswith("reducer("):
            self._arguments(line)
        for name, shape in zip(opened.arguments, self._shapes(opened.text.rpartition(" : ")[2])):
            self._parameter(name, shape)

    def _end_region(self) -> None:
        scope = self._scope
        if scope.opener is None:
            raise GraphError(f"{self.place} ends a region that is none")
        self.scopes.pop()
        scope.opener.regions.append(scope)
        self.done[scope.name] = scope

    def _close(self, line: str) -> None:
        if not self.scopes:
            raise GraphError(f"{self.place} closes what was not opened")
        scope = self.scopes[-1]
        if scope is None or scope.opener is None:
            self.scopes.pop()
            if scope is not None:
                self.done[scope.name] = scope
            return
        self._end_region()
        opened = self._waiting.pop()
        self._write(opened, opened.text.removesuffix("({") + (line[2:] if line.startswith("})") else ""))

    def _write(self, opened: _Open, text: str) -> None:
        """An operation whose types are known, with the values of tuples taken out and regions as computations."""
        before, _, types = text.rpartition(" : ")
        operands = [self._value(name) for name in _VALUE.findall(before) if name not in opened.arguments]
        if opened.opcode == "return":
            self._return(operands)
            return
        if opened.opcode == "constant":
            self._constant(opened.result, before, self._only(self._shapes(types)))
            return
        shapes = self._shapes(types.rpartition("->")[2] if "->" in types else types)
        shape: Shape = shapes if opened.count > 1 else self._only(shapes)
        calls = [region.name for region in opened.regions]
        outside = {name: kind for region in opened.regions for name, kind in region.outside.items()}
        if opened.opcode == "while":
            self._as_tuples(opened)
            shape = shapes
            self._add(Instruction(f"{opened.result}.in", "tuple", shapes, tuple(operands)))
            operands = [f"{opened.result}.in"]
        if opened.opcode in ("while", "conditional"):
            operands += [self._value(name) for name in outside]
        if opened.opcode == "call":
            found = re.search(r'@"?([\w.$\-]+)', text)
            calls = [found[1]] if found else []
        if (applied := re.search(r" applies \w+\.(\w+)", before)) is not None:
            calls = [self._applied(applied[1].replace("_", "-"))]
        summed = self._summed(opened.opcode, text, [self._scope.shapes[name] for name in operands[:2]])
        direction = re.search(r"\b(?:comparison_direction )?(EQ|NE|GE|GT|LE|LT)\b", before)
        name = opened.result or f"{opened.opcode}.{len(self._scope.instructions)}"
        self._add(Instruction(name, opened.opcode, shape, tuple(operands), tuple(calls), summed=summed,
                              direction=direction[1] if direction else ""))  # fmt: skip
        if isinstance(shape, list):
            for i, part in enumerate(shape):
                self._add(Instruction(f"{name}#{i}", "get-tuple-element", part, (name,), index=i))

    def _as_tuples(self, opened: _Open) -> None:
        """In HLO a loop's regions have one argument, a tuple; values that they read from outside come after it."""
        for region in opened.regions:
            own = [one for one in region.instructions if one.opcode == "parameter"]
            mine = [one for one in own if one.name not in region.outside]
            taken = [Instruction(one.name, "get-tuple-element", one.shape, ("state",), index=i)
                     for i, one in enumerate(mine)]  # fmt: skip
            state = Instruction("state", "parameter", [one.shape for one in mine])
            rest = [Instruction(one.name, "parameter", one.shape, index=1 + i)
                    for i, one in enumerate(one for one in own if one.name in region.outside)]  # fmt: skip
            region.instructions = [state, *taken, *rest, *(one for one in region.instructions if one not in own)]

    def _value(self, name: str) -> str:
        """A value that the scope has, which is an argument of it where a scope around has it."""
        scope = self._scope
        if name in scope.shapes or (name := name.removesuffix("#0")) in scope.shapes:
            return name
        for around in reversed(self.scopes[:-1]):
            if around is not None and name in around.shapes and scope.opener is not None:
                made = next((one for one in around.instructions if one.name == name), None)
                if made is not None and made.opcode == "constant":
                    self._add(made)
                else:
                    scope.outside[name] = around.shapes[name]
                    self._parameter(name, around.shapes[name])
                return name
        raise GraphError(f"{self.place} reads {name[:80]}, which nothing above makes")

    def _return(self, operands: list[str]) -> None:
        scope = self._scope
        several = len(operands) != 1 or (scope.opener is not None and scope.opener.opcode == "while"
                                         and bool(scope.opener.regions))  # fmt: skip
        if several:
            self._add(Instruction("returned", "tuple", [scope.shapes[name] for name in operands], tuple(operands)))
        scope.root = "returned" if several else operands[0]

    def _constant(self, name: str, text: str, shape: "Shape") -> None:
        splat = _SPLAT.search(text)
        scalar = splat[1].strip() if splat else ""
        value = int(scalar) if re.fullmatch(r"-?\d{1,15}", scalar) else None
        if splat is None or not isinstance(shape, tuple) or prod(shape[1]) == 1:
            self._add(Instruction(name, "constant", shape, value=value))
        else:
            self._add(Instruction(f"{name}.one", "constant", (shape[0], ()), value=value))
            self._add(Instruction(name, "broadcast", shape, (f"{name}.one",)))

    def _applied(self, opcode: str) -> str:
        name = f"applies/{opcode}"
        self.done.setdefault(name, _Region(name, instructions=[Instruction("one", opcode, ("f32", ()))], root="one"))
        return name

    def _add(self, one: Instruction) -> None:
        if one.name in self._scope.shapes:
            raise GraphError(f"{self.place} makes {one.name[:80]} a second time")
        self._scope.instructions.append(one)
        self._scope.shapes[one.name] = one.shape

    def _summed(self, opcode: str, text: str, shapes: "list[Shape]") -> float:
        sizes = [shape[1] for shape in shapes if isinstance(shape, tuple)]
        if opcode == "dot" and len(sizes) == 2 and sizes[0]:
            found = _CONTRACTED.search(text)
            dims = [int(i) for i in found[1].split(",") if i.strip()] if found else [len(sizes[0]) - 1]
            return prod(map(float, (sizes[0][i] for i in dims if i < len(sizes[0]))))
        if opcode == "convolution" and len(sizes) == 2 and (labels := _LABELS.search(text)) is not None:
            return prod(map(float, (n for label, n in zip(labels[1].split(","), sizes[1]) if label.strip() != "o")))
        return 1.0

    def _shapes(self, text: str) -> "list[Shape]":
        shapes: list[Shape] = []
        for found in _TENSOR.finditer(text):
            dims = [dim for dim in (found[1] or "").split("x") if dim]
            if not all(dim.isdecimal() and len(dim) < 16 for dim in dims):
                raise GraphError(f"{self.place} has a dynamic size, {found[0][:80]}; give the program fixed shapes")
            kind = _TYPES.get(found[2], found[2]) if found[2] else "token"
            shapes.append((kind if kind in DTYPES or kind == "token" else "s8", tuple(map(int, dims))))
        return shapes

    def _only(self, shapes: "list[Shape]") -> "Shape":
        if shapes:
            return shapes[0]
        raise GraphError(f"{self.place} has no type of a tensor")
