"""Marks in the types of settings: ranges, and who may set a value; `construct` and `stored` check them.

- Ranges: `rounds: Annotated[int, Between(0, 1000)]`.
- Settings that reach beyond a configuration: `path: Annotated[str | None, Outside("would be opened")]`. A user may set
  them. A file may not: where an answer, a checkpoint or a problem of the leaderboard has such a setting, its mark
  decides the value (`graphopt.run.config.stored`). A setting that imports, opens, starts or connects needs one.
"""

from argparse import ArgumentTypeError
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from graphopt.core.errors import UserError
from graphopt.core.utils.terminal import short

Number = TypeVar("Number", int, float)


@dataclass(frozen=True)
class Between:
    """From `least` to `most`, both included; NaN is in no range."""

    least: float
    most: float

    def holds(self, value: Any) -> bool:
        return bool(self.least <= value <= self.most)

    def __str__(self) -> str:
        return f"from {_said(self.least)} to {_said(self.most)}"


def check_ranges(thing: Any, where: str) -> None:
    """Raises UserError where a field of a data class, made by whomever, is beyond the range that its type says."""
    for name, between in _ranges_of(thing.__class__).items():
        if not between.holds(getattr(thing, name)):
            raise UserError(f"{where}: {name}={short(getattr(thing, name))} must be {between}")


@cache
def _ranges_of(kind: type[object]) -> dict[str, Between]:
    hints = get_type_hints(kind, include_extras=True)
    marks = {name: get_args(hint)[1:] for name, hint in hints.items() if get_origin(hint) is Annotated}
    return {name: mark for name, all_marks in marks.items() for mark in all_marks if isinstance(mark, Between)}


def _said(bound: float) -> str:
    return f"{bound:,}" if isinstance(bound, int) else f"{bound:g}"


# Shared ranges. Limits are far beyond useful values; larger ones only take hours or fill the memory.
Count = Annotated[int, Between(1, 10**9)]  # at least one
Whole = Annotated[int, Between(0, 10**9)]  # 0: never, or none
Few = Annotated[int, Between(1, 1000)]  # of things that are all in memory at once
Width = Annotated[int, Between(1, 4096)]  # of a network
Layers = Annotated[int, Between(0, 256)]
AttentionHeads = Annotated[int, Between(1, 64)]
Workers = Annotated[int, Between(1, 512)]
Seed = Annotated[int, Between(0, 2**31 - 1)]  # of random numbers; some libraries take no more
Graphs = Annotated[int, Between(0, 10**6)]  # of a split
Ops = Annotated[int, Between(1, 10**7)]  # of a graph that is drawn
Levels = Annotated[int, Between(1, 2**15 - 1)]  # of a choice, which is kept in 16 bits
Cap = Annotated[int, Between(1, 4096)]  # on a kernel: tables are as large
AtLeastOne = Annotated[float, Between(1.0, 1e12)]
Shift = Annotated[float, Between(-1000.0, 1000.0)]  # of a logit or the like
Share = Annotated[float, Between(0.0, 1.0)]
Positive = Annotated[float, Between(1e-12, 1e12)]
NotNegative = Annotated[float, Between(0.0, 1e12)]


# `type=` of numbers on command lines that `argparse` reads.


def count(text: str) -> int:
    """At least one."""
    return _read(int(text), Between(1, 10**9))


def whole(text: str) -> int:
    """0 or more."""
    return _read(int(text), Between(0, 10**9))


def sizes_of(entries: Iterable[str]) -> dict[str, int]:
    """Of `NAME=SIZE` each."""
    try:
        return {name: int(size) for name, size in (entry.split("=", 1) for entry in entries)}
    except ValueError:
        raise UserError("--dim takes NAME=SIZE") from None


def seconds(text: str) -> float:
    """More than none."""
    return _read(float(text), Between(1e-3, 1e9))


def _read(value: Number, between: Between) -> Number:
    if not between.holds(value):
        raise ArgumentTypeError(f"{value} must be {between}")
    return value


@dataclass(frozen=True)
class Outside:
    """A setting that a file may only leave null or an empty list. does: another value's effect, for messages."""

    does: str

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        """The effective value for a value from a file. near: the file, if known. Raises UserError."""
        if value is None or value == []:
            return value
        raise UserError(f"{where}={short(value)} {self.does}, and a file may not say so: give it on the command line")


@dataclass(frozen=True)
class Own(Outside):
    """A place of the reader's own, such as a cache: `instead` replaces a file's value."""

    does: str = "is the reader's own"
    instead: Any = None

    def here(self, value: Any, where: str, near: Path | None) -> Any:
        return self.instead


IMPORTS, RUNS = Outside("would be imported"), Outside("would be run")
UserPath = Annotated[str | None, Outside("would be opened")]
OwnFolder = Annotated[str | None, Own()]
