"""HLO as protobuf: TpuGraphs' `TuningData` (Phothilimthana et al., 2023), and XLA's `HloModuleProto`, alone or in an
`HloProto`, to `Graph`. Which of them a file is follows from its fields.

Read without generated code: only the fields named here, whose numbers are those of XLA's hlo.proto and xla_data.proto
and TpuGraphs' tuning.proto. A module's runs are its configurations with measured nanoseconds; of these `Tuned` has the
counts. One file may hold many modules: kernels, for tiles.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from graphopt.core.errors import Unreadable
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.limits import MIB, read_bytes
from graphopt.graphs.readers.formats.hlo import Instruction, Module, Shape, graph_of

MOST_BYTES, MOST_DEPTH = 512 * MIB, 32
TYPES = {1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 7: "u16", 8: "u32", 9: "u64", 10: "f16", 11: "f32",
         12: "f64", 15: "c64", 16: "bf16", 17: "token", 18: "c128", 19: "f8e5m2", 20: "f8e4m3fn"}  # fmt: skip
TUPLE = 13
Fields = Mapping[int, list[Any]]  # number -> whole numbers, or bytes of texts and messages


@dataclass(frozen=True)
class Tuned:
    """A module and the runs that were timed: seconds, None where a run failed."""

    module: Module
    seconds: Sequence[float | None]

    @property
    def graph(self) -> Graph:
        return graph_of(self.module)


def read_tuned(path: str | Path) -> list[Tuned]:
    """All modules of a file. Raises GraphError, in one sentence, where it holds none."""
    path = Path(path)
    try:
        fields = _fields(read_bytes(path, MOST_BYTES))
        found = list(_modules(fields, path.name.removesuffix(".pb")))
    except (Unreadable, IndexError, KeyError, ValueError, TypeError, StopIteration) as error:
        raise GraphError(f"{path} holds no HLO module as protobuf ({error!r})") from None
    if not found:
        raise GraphError(f"{path} holds no HLO module as protobuf: it is empty")
    return found


def read_hlo_protobuf(path: str | Path) -> Graph:
    """The graph of a file's only module. Raises GraphError."""
    found = read_tuned(path)
    if len(found) != 1:
        raise GraphError(f"{path} holds {len(found)} modules; read_tuned gives each")
    return found[0].graph


def _modules(fields: Fields, name: str) -> Iterator[Tuned]:
    first = fields.get(1, [b""])[0]
    if isinstance(first, bytes) and 3 in fields and _text(first) is not None:  # HloModuleProto: name, computations
        yield Tuned(_module(fields, name), [])
        return
    for message in fields.get(1, []):
        inner = _fields(message)
        own = name if len(fields[1]) == 1 else f"{name}_{_number(inner, 2):x}"
        if 3 in inner and 1 in inner and _text(inner[1][0]) is not None:  # HloProto holds a module
            yield Tuned(_module(inner, name), [])
        else:
            yield Tuned(_module(_fields(inner[1][0]), own), [_seconds(_fields(run)) for run in inner.get(3, [])])


def _seconds(run: Fields) -> float | None:
    """ConfigProfile: error is 3, profile 4; ExecutionProfile: compute_time_ns is 4."""
    nanoseconds = _number(_fields(run[4][0]), 4) if 4 in run and not _number(run, 3) else 0
    return nanoseconds / 1e9 if nanoseconds > 0 else None


def _module(fields: Fields, name: str) -> Module:
    of = {_number(one, 5): one for one in map(_fields, fields[3])}
    computations, roots = {}, {}
    for number, one in of.items():
        own = [_fields(message) for message in one.get(2, [])]
        called = {_number(inner, 35): _text(inner[1][0]) or str(_number(inner, 35)) for inner in own}
        shapes = {key: _shape(_fields(inner[3][0]), 0) for key, inner in zip(called, own)}
        if len(called) != len(own) or len(set(called.values())) != len(own):
            raise ValueError("two instructions of a computation are called alike")
        computations[str(number)] = [_instruction(inner, called, shapes) for inner in own]
        roots[str(number)] = called[_number(one, 6)]
    entry = str(_number(fields, 6)) if _number(fields, 6) in of else _entry(fields, of)
    return Module(name, entry, computations, roots)


def _entry(fields: Fields, of: Mapping[int, Fields]) -> str:
    """By its name, or, where instructions' numbers stand for it (TpuGraphs), by the root of that number."""
    wanted, number = fields.get(2, [b""])[0], _number(fields, 6)
    return str(next(key for key, one in of.items() if one.get(1, [None])[0] == wanted or _number(one, 6) == number))


def _instruction(one: Fields, called: Mapping[int, str], shapes: "Mapping[int, Shape]") -> Instruction:
    opcode, number = _text(one[2][0]) or "", _number(one, 35)
    operands, config = _numbers(one, 36), _text(one.get(43, [b""])[0]) or ""
    literal = _fields(one[8][0]) if opcode == "constant" and 8 in one else {}
    whole = [_signed(value) for value in (*_numbers(literal, 4), *_numbers(literal, 5))]
    return Instruction(
        called[number], opcode, shapes[number], tuple(called[operand] for operand in operands),
        tuple(map(str, _numbers(one, 38))), _number(one, 9) if opcode == "parameter" else _number(one, 13),
        _summed(opcode, one, [shapes[operand] for operand in operands[:2]]), whole[0] if len(whole) == 1 else None,
        _trips(config), _text(one.get(63, [b""])[0]) or "",
    )  # fmt: skip


def _summed(opcode: str, one: Fields, shapes: "Sequence[Shape]") -> float:
    """DotDimensionNumbers (30): contracting dimensions of the left are 1; ConvolutionDimensionNumbers (16): the
    kernel's dimension of results is 4."""
    sizes = [shape[1] for shape in shapes if isinstance(shape, tuple)]
    if opcode == "dot" and 30 in one and len(sizes) == 2:
        return prod(map(float, (sizes[0][i] for i in _numbers(_fields(one[30][0]), 1))))
    if opcode == "convolution" and 16 in one and len(sizes) == 2:
        results = _number(_fields(one[16][0]), 4)
        return prod(map(float, (size for i, size in enumerate(sizes[1]) if i != results)))
    return 1.0


def _trips(config: str) -> int | None:
    try:
        return int(json.loads(config)["known_trip_count"]["n"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _shape(one: Fields, depth: int) -> "Shape":
    """ShapeProto: element type 2, dimensions 3, shapes of a tuple 4."""
    if depth > MOST_DEPTH:
        raise ValueError("its tuples are nested too deeply")
    kind = _number(one, 2)
    if kind == TUPLE:
        return [_shape(_fields(part), depth + 1) for part in one.get(4, [])]
    return TYPES.get(kind, "s8"), tuple(_numbers(one, 3))


def _fields(message: Any) -> Fields:
    """The fields of a message, by number; fields of fixed size are left out."""
    if not isinstance(message, bytes):
        raise ValueError("a number stands where a message has to")
    found: dict[int, list[Any]] = {}
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        if key & 7 == 0:
            value, place = _varint(message, place)
            found.setdefault(key >> 3, []).append(value)
        elif key & 7 == 2:
            size, place = _varint(message, place)
            if size > len(message) - place:
                raise ValueError("a field is longer than its file")
            found.setdefault(key >> 3, []).append(message[place : place + size])
            place += size
        elif key & 7 in (1, 5):
            place += 8 if key & 7 == 1 else 4
        else:
            raise ValueError("a field has no known type")
    return found


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        part = message[place]
        value, place, shift = value | (part & 127) << shift, place + 1, shift + 7
        if part < 128:
            return value, place
        if shift > 63:
            raise ValueError("a number is longer than 64 bits")


def _numbers(one: Fields, number: int) -> list[int]:
    """A repeated field, packed or not."""
    found: list[int] = []
    for value in one.get(number, []):
        place = 0
        while isinstance(value, bytes) and place < len(value):
            inner, place = _varint(value, place)
            found.append(inner)
        found += [value] if isinstance(value, int) else []
    return found


def _number(one: Fields, number: int) -> int:
    """A field of one whole number; 0 where it is not there."""
    value = one.get(number, [0])[-1]
    if not isinstance(value, int):
        raise ValueError(f"field {number} is no number")
    return value


def _signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def _text(value: Any) -> str | None:
    """None for other values than plain text."""
    text = value.decode(errors="replace") if isinstance(value, bytes) else "\0"
    return text if text.isprintable() else None
