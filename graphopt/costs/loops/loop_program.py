"""A program as loops: what TorchInductor would compute for every value by itself, were all of them stored. From this
any set of stored values follows without another lowering (`graphopt.costs.loops`). Plain data, no torch."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

Index = tuple[Any, ...]
"""An element's place in a buffer: ("number", n), ("loop", d) the loop's d-th variable, ("found", k) the k-th index that
is itself read from memory, and ("add" | "mul", *parts), ("div", a, b), ("mod", a, b), all on whole numbers."""


class Read(NamedTuple):
    """buffer: its number. place: of the element that is read, in elements of the buffer's storage."""

    buffer: int
    place: Index


@dataclass(frozen=True, slots=True)
class Buffer:
    """numel, item: elements, and bytes of one. whole: of a whole-number type, so that it may hold indices. kept: read
    by the caller."""

    name: str
    numel: int
    item: int
    whole: bool = False
    kept: bool = False


@dataclass(frozen=True, slots=True)
class Loop:
    """A value that is computed element by element, or a reduction. Without dimensions of one element.

    buffer: that it would be written to. op: name of the graph's op that decides whether it is, "" where it always is.
    shape, reduced: sizes of the loops over its elements, and over what is summed for each. stride: in the buffer, of
    each loop of `shape`. ops: operation -> how often it is evaluated for one element. size: operations as Inductor
    counts them, constants included and reads not.
    """

    buffer: int
    op: str
    shape: tuple[int, ...]
    reduced: tuple[int, ...]
    stride: tuple[int, ...]
    reads: tuple[Read, ...]
    ops: Mapping[str, float]
    size: int = 1


@dataclass(frozen=True, slots=True)
class LibraryCall:
    """Of a library, between loops: which buffers it reads and makes."""

    reads: tuple[int, ...]
    makes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Hint:
    """A moment at which Inductor asks itself whether to store the value of an op. reuse: it has several readers,
    spread: one that has more elements; reads: it may have gathered too many; made: it was just lowered, so that what
    was decided happens now; will: a reader wants it in memory."""

    op: str
    kind: Literal["reuse", "spread", "reads", "made", "will"]


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """steps: loops and calls in the order of the program. hints: in the order in which they come."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Loop | LibraryCall, ...]
    hints: tuple[Hint, ...]
