"""`Preset`: what one machine takes for the parts of loops, and its file."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from graphopt import cache_dir
from graphopt.errors import UserError, writing
from graphopt.utils.limits import parse_json, read_bytes
from graphopt.utils.whole import whole_file

FILE = "calibrated.json"
SHIPPED = Path(__file__).parent / "presets"
COMMAND = "graphopt measure calibrate"
FORMAT = 1
LARGEST = 1 << 20  # bytes of a file
MOST = 1e15  # of anything
NEEDED = frozenset({"read", "write", "uneven", "unknown"})  # of both tables of operations
Level = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Preset:
    """Nanoseconds. vector, scalar: operation -> of one element, in loops that are and are not vectorised; `read`,
    `write`: of an element in the nearest cache, `uneven`: of one that the loop does not step to by one, `unknown`: of
    operations that were not measured. read, write: (bytes that were touched since, of one byte on top), ascending.
    result: of allocating a buffer and beginning the loop that writes it; kernel: of calling a compiled function; flop:
    of products of matrices.
    """

    vector: Mapping[str, float]
    scalar: Mapping[str, float]
    read: tuple[Level, ...]
    write: tuple[Level, ...]
    result: float
    kernel: float
    flop: float


def save(path: Path, preset: Preset, machine: str, date: str) -> None:
    """Writes the file, all or nothing. machine: processor, library and version that it was measured with."""
    content = {"format": FORMAT, "machine": machine, "date": date,
               "vector": _rounded(preset.vector), "scalar": _rounded(preset.scalar),
               "read": [list(level) for level in preset.read], "write": [list(level) for level in preset.write],
               "result": preset.result, "kernel": preset.kernel, "flop": preset.flop}  # fmt: skip
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with whole_file(path) as file:
            file.write(json.dumps(content, indent=1).encode() + b"\n")


def _rounded(table: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 5) for name, value in sorted(table.items())}


def load(name: str | None) -> Preset:
    """The preset of that name that comes with graphopt; None: the one that was measured here. Raises UserError."""
    if name is None:
        path = cache_dir() / FILE
        if not path.is_file():
            raise UserError(f"there is no {path}: run `{COMMAND}`, which measures it in some minutes, or choose a "
                            f"preset: cost.preset={' or '.join(shipped())}")  # fmt: skip
        return read(path)
    if name not in shipped():
        raise UserError(f"there is no preset {name[:60]!r}; there are {', '.join(shipped())}, and null: what "
                        f"`{COMMAND}` measured here")  # fmt: skip
    return read(SHIPPED / f"{name}.json")


def shipped() -> list[str]:
    return sorted(path.stem for path in SHIPPED.glob("*.json"))


def read(path: Path) -> Preset:
    """Raises UserError."""
    stored = parse_json(read_bytes(path, LARGEST), str(path), LARGEST)
    try:
        if stored["format"] != FORMAT:
            raise ValueError("of another format")
        vector, scalar = _table(stored["vector"]), _table(stored["scalar"])
        return Preset(vector, scalar, _levels(stored["read"]), _levels(stored["write"]),
                      *(_number(stored[part]) for part in ("result", "kernel", "flop")))  # fmt: skip
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UserError(f"{path} holds no preset of cost=calibrated ({type(error).__name__}: {str(error)[:80]}); "
                        f"delete it and run `{COMMAND}`") from None  # fmt: skip


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not (isfinite(value) and 0 <= value <= MOST):
        raise ValueError(f"{str(value)[:40]} is no number of nanoseconds")
    return float(value)


def _table(stored: Any) -> dict[str, float]:
    table = {str(name): _number(value) for name, value in stored.items()}
    if not table.keys() >= NEEDED:
        raise ValueError(f"{min(NEEDED - table.keys())} is missing")
    return table


def _levels(stored: Any) -> tuple[Level, ...]:
    levels = tuple((_number(size), _number(cost)) for size, cost in stored)
    if not levels or sorted(levels) != list(levels):
        raise ValueError("levels must ascend")
    return levels
