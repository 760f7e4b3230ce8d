"""`Preset`: the times of the parts of loops on one machine, and their file. They follow from the times of probes
(`graphopt.hardware.inductor.probes`): the difference in time of two probes, over the difference of their parts."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any

from graphopt import cache_dir
from graphopt.core.errors import UserError, writing
from graphopt.core.utils.limits import parse_json, read_bytes
from graphopt.core.utils.whole import whole_file

FILE = "calibrated.json"
SHIPPED = Path(__file__).parent / "presets"
COMMAND = "graphopt measure calibrate"
FORMAT = 1
LARGEST = 1 << 20  # bytes of a file
MOST = 1e15  # of anything
NEEDED = frozenset({"read", "write", "uneven", "unknown"})  # of both tables of operations
NUMBERS = ("result", "kernel", "flop", "part")
Level = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Preset:
    """Nanoseconds. vector, scalar: operation -> of one element, in loops that are and are not vectorised; `wide`: of an
    operation on numbers of 64 bits, on top; `read`, `write`: of an element in the nearest cache, `truth_read` and
    `truth_write` of truth values, `missed_read` and `missed_write` of one that is mispredicted, on top;
    `uneven`: of one that the loop does not step to by one; `unknown`: of operations that
    were not measured. read, write: (bytes that were touched since, of one byte on top), ascending. part: of writing a
    vector that is not full, on top. result: of allocating a buffer and beginning the loop that writes it; kernel: of
    calling a compiled function; flop: of products of matrices. lanes: numbers of 32 bits in a vector.
    """

    vector: Mapping[str, float]
    scalar: Mapping[str, float]
    read: tuple[Level, ...]
    write: tuple[Level, ...]
    result: float
    kernel: float
    flop: float
    part: float
    lanes: int


def save(path: Path, preset: Preset, machine: str, date: str) -> None:
    """Writes the file, all or nothing. machine: processor, library and version that it was measured with."""
    content = {"format": FORMAT, "machine": machine, "date": date,
               "vector": _rounded(preset.vector), "scalar": _rounded(preset.scalar),
               "read": [list(level) for level in preset.read], "write": [list(level) for level in preset.write],
               **{name: getattr(preset, name) for name in NUMBERS}, "lanes": preset.lanes}  # fmt: skip
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
                            f"preset: cost.preset=shipped, or {', '.join(shipped())}")  # fmt: skip
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
                      **{name: _number(stored[name]) for name in NUMBERS},
                      lanes=max(1, int(_number(stored["lanes"]))))  # fmt: skip
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


HALF = 0.5  # of truth values that are drawn with equal chances, which are mispredicted
LEAST = 0.001  # ns of an operation: less is noise of a difference
NS = 1e9


def derived(seconds: Mapping[str, float], sizes: Mapping[str, int]) -> Preset:
    """seconds: of one run of each probe. sizes: `terms`, `elements` of sums; `truths` truth values; `rows`, `columns`
    of reduced matrices; `chosen`, `width` of gathered rows; `side` of multiplied matrices; `parts` rows that end in a
    vector that is not full; `lanes` of a vector."""
    ns = {name: value * NS for name, value in seconds.items()}
    read, write, near = _traffic(ns)
    tables = {mode: _table_of_probes(ns, mode, sizes, near) for mode in ("vector", "scalar")}
    result = max((ns["nests 9"] - ns["nests 1"]) / 8, 0.0)
    flop = max(ns["products"] - ns["nests 1"], 0.0) / (2 * sizes["side"] ** 3)
    part = max((ns["rows short"] - ns["rows whole"]) / (2 * sizes["parts"]), 0.0)
    return Preset(tables["vector"], tables["scalar"], read, write, result, ns["nests 1"], flop, part, sizes["lanes"])


def _table_of_probes(ns: Mapping[str, float], mode: str, sizes: Mapping[str, int], near: Level) -> dict[str, float]:
    times = sizes["terms"] * sizes["elements"]
    plain = ns[f"{mode} plain"]
    table = {name.split()[1]: max((value - plain) / times, LEAST)
             for name, value in ns.items() if name.startswith(f"{mode} ") and not name.endswith(" plain")}  # fmt: skip
    scalar = mode == "scalar"
    slow = max(plain - ns["vector plain"], 0.0) / times / 2 if scalar else 0.0  # a term has two plain operations
    numel = sizes["rows"] * sizes["columns"]
    for name in ("sum", "max", "min"):
        for way in ("inner", "outer"):
            found = (ns[f"{way} {name}"] - ns["nests 1"]) / numel - 4 * near[0]
            table[f"{way}.{name}"] = max(found, table["add"]) + slow
    table["inner.welford_reduce"] = (ns["inner welford_reduce"] - ns["nests 1"]) / numel + slow
    gathered = sizes["chosen"] * sizes["width"]
    uneven = max((ns["gathered elements"] - ns["gathered plain"]) / gathered, LEAST)
    table |= {"read": 4 * near[0] + slow, "write": 4 * near[1] + slow, "uneven": 4 * near[0] + uneven}
    table["indirect_indexing"] = max((ns["gathered rows"] - ns["gathered plain"]) / gathered, LEAST)
    table["atomic_add"] = max((ns["gathered added"] - ns["gathered plain"]) / gathered, LEAST)
    table["wide"] = max((ns[f"{mode}_whole wide"] - ns[f"{mode}_whole plain"]) / times, LEAST)
    for way in ("read", "write"):
        plain, steady, drawn = (ns[f"{mode}_{name}"] / sizes["truths"]
                                for name in ("truths plain", f"truths {way}", f"missed {way}"))  # fmt: skip
        table[f"truth_{way}"] = max(table[way] + steady - plain, LEAST)
        table[f"missed_{way}"] = max(drawn - steady, 0.0) / HALF
    table["unknown"] = table["mul"] + slow
    return table


def _traffic(ns: Mapping[str, float]) -> tuple[tuple[Level, ...], tuple[Level, ...], Level]:
    """Of one byte read and written, on top of the nearest, and of the nearest itself."""
    start = ns["nests 1"]
    sizes = sorted(int(name.split()[1]) for name in ns if name.startswith("copy "))
    written = [max(ns[f"fill {size}"] - start, 0.0) / size for size in sizes]
    copied = [max(ns[f"copy {size}"] - start, 0.0) / size for size in sizes]
    loaded = [max(both - one, 0.0) for both, one in zip(copied, written)]
    near = (min(loaded), min(written))
    rising = [_rising([value - least for value in values]) for values, least in zip((loaded, written), near)]
    read = tuple((2.0 * size, extra) for size, extra in zip(sizes, rising[0]))
    return read, tuple((float(size), extra) for size, extra in zip(sizes, rising[1])), near


def _rising(values: list[float]) -> list[float]:
    """None higher than a later one: larger distances cost no less, and calls add noise to small times."""
    return [min(values[i:]) for i in range(len(values))]
