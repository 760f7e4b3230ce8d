"""`PriceTable`: measured prices, a file NAME.jsonl that processes append lines to in turns, and older lines packed
beside it in NAME.jsonl.gz. Both together are the table; the packed lines come first. Its path is always that of
NAME.jsonl, which need not exist. Stored answers name their table, so their prices replay anywhere.

A line is of a target alone (`op`, `environment`, `seconds`, `spread`, `blocks`), or against a default (`digest`,
`default`, `environment`, and the fields of `Timing`, or `failure`, a reason that lasts), or of a request to a compiler
(`request`, `environment`; `program`, `requests` and `knobs`, the request itself; and `digest` and `features` of the
code, or `failure`).
"""

import fcntl
import gzip
import json
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import graphopt
from graphopt import cache_dir
from graphopt.core.errors import UsageError, UserError, writing
from graphopt.core.utils.limits import MIB, read_gzip
from graphopt.core.utils.marks import Outside
from graphopt.core.utils.plain_json import is_finite, is_measurement, is_seconds, refuse_nan

NAME = "measured.jsonl"  # in a study's folder
PACKED = ".gz"
BYTES = 512 * MIB  # of the lines of a packed file


def packed_path(table: Path) -> Path:
    return table.with_name(table.name + PACKED)


def is_there(table: Path) -> bool:
    """Whether there are lines, packed or not."""
    return table.is_file() or packed_path(table).is_file()


def tables_below(folder: Path) -> list[Path]:
    """Those called NAME, however deep."""
    packed = (file.with_name(NAME) for file in folder.rglob(NAME + PACKED))
    return sorted({*folder.rglob(NAME), *packed})


def packed_lines(table: Path) -> bytes:
    """Those of the packed file, nothing without one. Raises Unreadable."""
    file = packed_path(table)
    return read_gzip(file, BYTES) if file.is_file() else b""


def all_lines(table: Path) -> bytes:
    """Those of both files, whole lines only at their border. Raises UserError."""
    before = packed_lines(table)
    try:
        after = table.read_bytes() if table.is_file() else b""
    except OSError as error:
        raise UserError(f"cannot read {table}: {error.strerror or error}; make it readable") from error
    return before + (b"\n" if before and after and not before.endswith(b"\n") else b"") + after


def pack(lines: bytes) -> bytes:
    """Equal lines make equal bytes."""
    return gzip.compress(lines, 9, mtime=0)


Line = Mapping[str, Any]


class PriceTable:
    """path: the file; neither it nor its packed lines need exist. The first line of a target counts, so prices by it
    stay. Lines that were cut short, or hold no measurement, are left out, with a warning."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._known: dict[tuple[str, str, str], Line] = {}
        self._lowered: dict[tuple[str, str], Line] = {}
        self._read = 0  # bytes of the file
        *lines, rest = packed_lines(path).split(b"\n")
        self._keep_all(lines, rest)
        self._refresh()

    def find(self, digest: str, environment: str, default: str = "") -> Line | None:
        """The line of a target, alone or against a default; None where it was not measured in that environment."""
        return self._known.get((digest, default, environment))

    def lowered(self, request: str, environment: str) -> Line | None:
        """The result of a request to a compiler; None where it was not made in that environment."""
        return self._lowered.get((request, environment))

    def requests(self) -> list[Line]:
        """All lines of requests to a compiler."""
        return list(self._lowered.values())

    def comparisons(self) -> list[Line]:
        """All lines of targets against a default that could be measured."""
        return [line for line in self._known.values() if "ratio" in line]

    def environments(self) -> list[str]:
        """Where something was measured."""
        return sorted({environment for _, _, environment in self._known})

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Nobody else measures for this file; the lines of others are known. Only then is `add` allowed."""
        with writing(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = self.path.open("a")
            fcntl.flock(file, fcntl.LOCK_EX)  # until it is closed
        with file:
            self._refresh()
            yield

    def add(self, line: Line) -> None:
        """Appends a line. Raises UserError when the disk does not take it: a price that stands nowhere could not be
        replayed, so the run ends, and earlier lines stay."""
        refuse_nan(line)
        with writing(self.path):
            whole = not self.path.stat().st_size or self.path.read_bytes().endswith(b"\n")
            with self.path.open("a") as file:
                file.write(("" if whole else "\n") + json.dumps(line) + "\n")
        self._refresh()

    def _refresh(self) -> None:
        """Reads appended lines. A line without an end may still be being written."""
        if not self.path.is_file():
            return
        try:
            with self.path.open("rb") as file:
                file.seek(self._read)
                *lines, rest = file.read().split(b"\n")
        except OSError as error:
            raise UserError(f"cannot read {self.path}: {error.strerror or error}; make it readable") from error
        self._read += sum(len(text) + 1 for text in lines)
        self._keep_all(lines, rest)

    def _keep_all(self, lines: list[bytes], rest: bytes) -> None:
        damaged = sum(not self._keep(text) for text in lines if text)
        self._keep(rest)
        if damaged:
            warnings.warn(f"{self.path}: {damaged} lines cannot be read and do not count", stacklevel=2)

    def _keep(self, text: bytes) -> bool:
        try:
            line = json.loads(text)
        except (ValueError, RecursionError):
            return False
        if not isinstance(line, dict):
            return False
        if "request" in line:
            request, environment = line["request"], line.get("environment")
            if not (is_lowered(line) and isinstance(request, str) and isinstance(environment, str)):
                return False
            self._lowered.setdefault((request, environment), line)
            return True
        sound = is_comparison(line) if "digest" in line else is_measurement(line) and "default" not in line
        own, default, environment = line.get("op", line.get("digest")), line.get("default", ""), line.get("environment")
        if not (sound and isinstance(own, str) and isinstance(default, str) and isinstance(environment, str)):
            return False
        seconds = {} if "failure" in line else {"seconds": float(line["seconds"])}
        self._known.setdefault((own, default, environment), {**line, **seconds})
        return True


def is_lowered(line: Mapping[str, Any]) -> bool:
    """A line of a request to a compiler."""
    if "failure" in line:
        return isinstance(line["failure"], str)
    features = line.get("features")
    return isinstance(line.get("digest"), str) and isinstance(features, dict) and all(map(is_finite, features.values()))


def is_comparison(line: Mapping[str, Any]) -> bool:
    """A line of a target against a default: all numbers of a `Timing`, or why there are none."""
    if "failure" in line:
        return isinstance(line["failure"], str)
    return (all(is_seconds(line.get(key)) for key in ("seconds", "ratio", "rounds", "aa"))
            and is_finite(line.get("noise")) and line["noise"] >= 0
            and isinstance(line.get("equal", True), bool))  # fmt: skip


@dataclass(frozen=True)
class TableFile(Outside):
    """A table of measured prices; a path from a file is looked for and only read. usual: below the cache folder."""

    does: str = "is a table of measured prices"
    usual: Path = Path()

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        return None if near is None else str(found_table(value, near, self.usual))


@dataclass(frozen=True)
class _MeasuredThere(Outside):
    """Without an environment the model would measure here, in processes of its own."""

    does: str = "begins processes that measure"

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        if not isinstance(value, str):
            raise UserError(
                f"{where} does not say in which environment its prices were measured: solve the graph again"
            )
        return value


Environment = Annotated[str | None, _MeasuredThere()]


def found_table(stored: object, near: Path, usual: Path) -> Path:
    """The table that a file was priced by, which is only read: one of that name in a folder above the file, or the path
    below this installation. A file without one was priced by its user's own, which a stored study may have brought
    along under its name; else it is this user's."""
    if not isinstance(stored, str):
        brought = (folder / usual.name for folder in near.resolve().parents)
        return next((place for place in brought if place.is_file()), cache_dir() / usual)
    found = next((place for place in _places(stored, near) if is_there(place)), None)
    if found is None:
        raise UserError(f"{near} was priced by a table of measurements, {Path(stored).name!r}, which is in no folder "
                        "above it: bring it there")  # fmt: skip
    return found


def check_place(table: object, folder: Path, key: str) -> None:
    """Raises UsageError where answers in a folder below `folder` would not find the table again. key: of the table."""
    if isinstance(table, str) and Path(table).resolve() not in [p.resolve() for p in _places(table, folder / "answer")]:
        raise UsageError(f"{key}={table} lies in no folder above {folder}, where stored answers look for their table: "
                         f"put the table there, such as {key}={folder.parent / Path(table).name}")  # fmt: skip


def _places(stored: str, near: Path) -> list[Path]:
    """Where a table of that name may lie, whatever its folder."""
    places = [folder / Path(stored).name for folder in near.resolve().parents]
    if not Path(stored).is_absolute() and ".." not in Path(stored).parts:
        places.append(Path(graphopt.__file__).resolve().parents[1] / stored)
    return places
