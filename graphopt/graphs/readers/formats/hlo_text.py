"""HLO text, as XLA dumps it (`--xla_dump_to`, `jax.jit(f).lower(...).as_text("hlo")`), long or short form, to `Module`.

Layouts, sharding and metadata are not read. Dynamic sizes (`<=8`) count as their bounds.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import MIB, read_text
from graphopt.graphs.readers.formats.hlo import Instruction, Module, Shape, graph_of

MOST_BYTES = 512 * MIB
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*->.*)?\{$")
_LINE = re.compile(r"(?:ROOT\s+)?%?([\w.\-]+)\s*=\s*(.*)")
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[(){}\[\]]')
_WHOLE = re.compile(r"-?\d{1,15}")
_ELEMENT = re.compile(r"([a-z]\w*)\[([^\]]*)\](?:\{[^}]*\})?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_NAME = re.compile(r"%?([A-Za-z_][\w.\-]*)\s*$")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_CALLS = re.compile(r"\b(?:calls|to_apply|condition|body|true_computation|false_computation|branch_computations)="
                    r"(?:%?([\w.\-]+)|\{([^}]*)\})")  # fmt: skip
_TRIPS = re.compile(r'"?known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d{1,15})"?')


def read_hlo(path: str | Path) -> Graph:
    """Raises GraphError, in one sentence with the line, on other text than HLO."""
    path = Path(path)
    try:
        text = read_text(path, MOST_BYTES)
    except Unreadable as error:
        raise GraphError(f"{path} is no HLO text ({error})") from None
    return graph_of(parse_hlo(text, str(path), path.name.removesuffix(".gz").removesuffix(".hlo")))


def parse_hlo(text: str, place: str, name: str) -> Module:
    """Raises GraphError."""
    computations: dict[str, dict[str, Instruction]] = {}
    roots: dict[str, str] = {}
    entry, own = "", ""
    for number, raw in enumerate(text.splitlines(), 1):
        line, where = _COMMENT.sub("", raw).strip(), f"line {number} of {place}"
        header = _HEADER.match(line) if own == "" else None
        if header is not None:
            own = header[2]
            computations[own], entry = {}, own if header[1] else entry
        elif own != "" and line == "}":
            own = ""
        elif own != "" and line:
            found = _instruction(line, computations[own], where)
            computations[own][found.name] = found
            if line.startswith("ROOT "):
                roots[own] = found.name
    if not computations.get(entry) or own != "":
        raise GraphError(f"{place} has no ENTRY computation; it is no HLO text, or its end is missing")
    last = {key: next(reversed(inner), "") for key, inner in computations.items()}  # where no ROOT is marked
    return Module(name, entry, {key: [*inner.values()] for key, inner in computations.items()}, last | roots)


def _instruction(line: str, before: Mapping[str, Instruction], place: str) -> Instruction:
    """before: those of the same computation that stand above."""
    matched = _LINE.match(line)
    if matched is None:
        raise GraphError(f"{place} is no instruction: {line[:80]!r}")
    shape, rest = _shape(matched[2], place)
    opcode = _OPCODE.match(rest)
    if opcode is None:
        raise GraphError(f"{place} has no opcode: {line[:80]!r}")
    inside, tail = _until_closed(rest[opcode.end() :], place)
    bare, whole = _STRING.sub('""', tail), inside.strip()
    calls = [name.strip().lstrip("%") for one in _CALLS.finditer(bare) for name in (one[1] or one[2]).split(",")]
    literal = opcode[1] in ("parameter", "constant")
    operands = () if literal else tuple(_operands(inside))
    index = whole if opcode[1] == "parameter" else _attribute(bare, "index")
    trips = _TRIPS.search(tail) if opcode[1] == "while" else None
    return Instruction(
        matched[1], opcode[1], shape, operands, tuple(calls), int(index) if index.isdecimal() else 0,
        _summed(opcode[1], bare, [before[name].shape for name in operands if name in before]),
        int(whole) if literal and _WHOLE.fullmatch(whole) else None, int(trips[1]) if trips else None,
        _attribute(bare, "direction"),
    )  # fmt: skip


def _shape(text: str, place: str) -> "tuple[Shape, str]":
    """The shape that a text begins with, and the rest."""
    text = text.lstrip()
    if not text.startswith("("):
        found = _ELEMENT.match(text)
        if found is None:
            raise GraphError(f"{place} has no shape: {text[:80]!r}")
        dims = [dim.strip().removeprefix("<=") for dim in found[2].split(",") if dim.strip()]
        if not all(dim.isdecimal() and len(dim) < 16 for dim in dims):
            raise GraphError(f"{place} has a dimension that is no number: {found[0][:80]!r}")
        return (found[1], tuple(map(int, dims))), text[found.end() :]
    inside, rest = _until_closed(text[1:], place)
    parts: list[Shape] = []
    while inside.strip():
        part, inside = _shape(inside, place)
        parts.append(part)
        inside = inside.lstrip().removeprefix(",")
    return parts, rest


def _until_closed(text: str, place: str) -> tuple[str, str]:
    """The text before the bracket that closes one opened before the text, and the text behind it."""
    open_, position = 1, 0
    for found in _BRACKET.finditer(text):
        if len(found[0]) == 1:
            open_ += 1 if found[0] in "({[" else -1
            if open_ == 0:
                position = found.end()
                break
    if position == 0:
        raise GraphError(f"{place} has a bracket that is not closed")
    return text[: position - 1], text[position:]


def _operands(inside: str) -> Iterator[str]:
    """Names, in front of which shapes may stand."""
    level, begin = 0, 0
    for place, letter in enumerate(inside + ","):
        level += (letter in "({[") - (letter in ")}]")
        if letter == "," and level == 0:
            found = _NAME.search(inside[begin:place])
            if found is not None:
                yield found[1]
            begin = place + 1


def _attribute(bare: str, name: str) -> str:
    found = re.search(rf"\b{name}=([\w>\-]+)", bare)
    return found[1] if found else ""


def _summed(opcode: str, bare: str, shapes: "Sequence[Shape]") -> float:
    """How many products each result of a dot or convolution sums."""
    first, second = [shape for shape in shapes[:2] if isinstance(shape, tuple)] if len(shapes) > 1 else (None, None)
    if first is None or second is None:
        return 1.0
    if opcode == "dot" and (found := re.search(r"\blhs_contracting_dims=\{([\d,]*)\}", bare)):
        return prod(map(float, (first[1][int(i)] for i in found[1].split(",") if i and int(i) < len(first[1]))))
    if opcode == "convolution" and (labels := re.search(r"\bdim_labels=\w+_(\w+)->", bare)):
        return prod(map(float, (dim for label, dim in zip(labels[1], second[1]) if label != "o")))
    return 1.0
