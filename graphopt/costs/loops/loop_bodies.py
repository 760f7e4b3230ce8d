"""A program as loops: TorchInductor's loop for every value by itself, were all of them stored. The loops of any set of
stored values follow without another lowering (`graphopt.costs.loops`). Plain data, no torch.

Loop bodies under a plan: a stored value evaluates the values that it reads and that are not stored, once at each place.
Two parts that need the same value at the same place share it, as they do in the compiled loop.

Each access is known by the places that it touches at a few chosen points of its loops. Two accesses that touch the same
places at all of these are taken to be the same. So expressions are never simplified: an index is composed with another
by evaluating it at the places that the other found, and remembered.

A leaf is a stored value as Inductor's scheduler first sees it, one loop. Its dimensions are in order, and merged where
all accesses allow it (torch 2.13, `simplify_and_reorder`, `pick_loop_order`). A leaf has its reads and writes, too.

Shape legend: D dimensions of a loop, S = (1 + D) (1 + DRAWN) points: zero and drawn ones, and a step from each along
each dimension.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cmp_to_key, lru_cache
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

Index = tuple[Any, ...]
"""An element's place in a buffer: ("number", n), ("loop", d) the loop's d-th variable, ("found", k) the k-th index that
is itself read from memory, and ("add" | "mul", *parts), ("div", a, b), ("mod", a, b), all on whole numbers."""


class Read(NamedTuple):
    """buffer: its number. place: of the element that is read, in elements of the buffer's storage."""

    buffer: int
    place: Index


@dataclass(frozen=True, slots=True)
class Buffer:
    """numel, item: elements, and bytes of one. whole: of a whole-number type, so that it may hold indices. missed: of
    truth values, the share that is mispredicted. kept: read by the caller."""

    name: str
    numel: int
    item: int
    whole: bool = False
    kept: bool = False
    missed: float | None = None


@dataclass(frozen=True, slots=True)
class Loop:
    """A value that is computed element by element, or a reduction. Without dimensions of one element.

    buffer: that it would be written to. op: name of the graph's op that decides whether it is, "" where it always is.
    shape, reduced: sizes of the loops over its elements, and over the terms of each sum. stride: in the buffer, of each
    loop of `shape`. ops: operation -> how often it is evaluated for one element. size: operations as Inductor counts
    them, constants included and reads not.
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
    spread: one that has more elements; reads: it may have gathered too many; made: it was just lowered, so that a
    decision takes effect now; will: a reader wants it in memory."""

    op: str
    kind: Literal["reuse", "spread", "reads", "made", "will"]


@dataclass(frozen=True, eq=False)
class LoopProgram:
    """steps: loops and calls in the order of the program. hints: in the order in which they come."""

    buffers: tuple[Buffer, ...]
    steps: tuple[Loop | LibraryCall, ...]
    hints: tuple[Hint, ...]


DRAWN = 4
STRAY = 1 << 40  # elements: a step that is not the same everywhere
Places = NDArray[np.int64]
Sizes = tuple[int, ...]


@lru_cache(maxsize=4096)
def points(sizes: Sizes) -> Places:
    """[D, S] of loops over `sizes`, all larger than 1."""
    count = len(sizes)
    drawn = np.random.default_rng(count).random((count, DRAWN)) * (np.array(sizes, np.float64)[:, None] - 1)
    starts = np.concatenate([np.zeros((count, 1), np.int64), drawn.astype(np.int64)], 1)
    steps = np.concatenate([np.zeros((count, 1), np.int64), np.eye(count, dtype=np.int64)], 1)
    every: Places = starts[:, :, None] + steps[:, None, :]
    return every.reshape(count, (1 + count) * (1 + DRAWN))


def place(index: Index, at: Places, found: Places) -> Places:
    """[S] where an index points. at: [D, S] values of the loop's variables; found: [S] placeholders for indices that
    are themselves read from memory."""
    kind, *parts = index
    if kind == "number":
        return np.full(at.shape[1], parts[0], np.int64)
    if kind == "loop":
        return np.asarray(at[parts[0]])
    if kind == "found":
        return np.asarray((found * 40503 + parts[0] * 9973) % (1 << 20))
    values = [place(part, at, found) for part in parts]
    if kind in ("add", "mul"):
        return np.asarray((np.add if kind == "add" else np.multiply).reduce(values))
    first, second = values
    return np.asarray(first // np.maximum(second, 1) if kind == "div" else first % np.maximum(second, 1))


def unflattened(flat: Places, sizes: Sizes, stride: Sizes) -> Places:
    """[D, S] the loop's variables at places [S] of the buffer that it writes."""
    out, left = np.zeros((len(sizes), flat.shape[-1]), np.int64), flat
    for d in sorted(range(len(sizes)), key=lambda d: -stride[d]):
        step = max(stride[d], 1)
        out[d] = left // step % sizes[d]
        left = left - out[d] * step
    return out


def steps_of(touched: Places, dimensions: int) -> tuple[int, ...]:
    """[D] steps of an access along each dimension, STRAY where they differ."""
    groups = touched.reshape(-1, 1 + dimensions)
    steps = groups[:, 1:] - groups[:, :1]
    return tuple(np.where((steps == steps[:1]).all(0), steps[0], STRAY).tolist())


class Access(NamedTuple):
    """buffer, and number of the places that it is touched at."""

    buffer: int
    places: int


@dataclass(frozen=True, slots=True)
class Body:
    """made: loop and places (number) of each evaluation. reads: the loads. size: operations as Inductor counts them."""

    made: frozenset[tuple[int, int]]
    reads: frozenset[Access]
    size: int
    heavy: bool


HEAVY = frozenset({"exp", "log", "log10", "log1p", "log2", "sigmoid", "tanh"})  # Inductor stores their shared values
LARGEST = 600  # evaluations of one body that are followed


class Bodies:
    """Of one program. Everything that is found is kept, so that plans that differ little cost little."""

    def __init__(self, program: LoopProgram) -> None:
        self.program = program
        self.loops: dict[int, Loop] = {i: s for i, s in enumerate(program.steps) if isinstance(s, Loop)}
        self.maker = {loop.buffer: i for i, loop in self.loops.items()}  # buffer -> loop
        self.bit = {i: 1 << k for k, (i, loop) in enumerate(self.loops.items()) if loop.op}
        self._heavy = {i: not HEAVY.isdisjoint(loop.ops) for i, loop in self.loops.items()}
        self._numbers: dict[bytes, int] = {}
        self._places: list[Places] = []
        self._linked: dict[tuple[int, int], tuple[Access, ...]] = {}
        self._above: dict[int, int] = {}
        self._bodies: dict[tuple[int, int], Body] = {}
        self._steps: dict[tuple[int, Sizes], tuple[tuple[int, ...], bool]] = {}

    def number(self, touched: Places) -> int:
        key = touched.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self._places)
            self._places.append(touched)
        return self._numbers[key]

    def space(self, loop: int) -> Sizes:
        return self.loops[loop].shape + self.loops[loop].reduced

    def written(self, loop: int) -> Access:
        """Where a loop writes its value."""
        of = self.loops[loop]
        at = points(self.space(loop))
        flat = sum((at[d] * of.stride[d] for d in range(len(of.shape))), start=at[:0].sum(0))
        return Access(of.buffer, self.number(flat))

    def steps(self, places: int, space: Sizes) -> tuple[tuple[int, ...], bool]:
        """Steps of an access along each dimension of the loops, and whether it is linear."""
        key = (places, space)
        if key not in self._steps:
            touched = self._places[places]
            steps = touched[1 : 1 + len(space)] - touched[0]
            linear = bool((touched[0] + steps @ points(space) == touched).all())
            self._steps[key] = steps_of(touched, len(space)), linear
        return self._steps[key]

    def above(self, loop: int) -> int:
        """Bits of the loops with a choice that an evaluation of this one may lead to."""
        if loop not in self._above:
            self._above[loop] = 0
            for read in self.loops[loop].reads:
                made = self.maker.get(read.buffer)
                if made in self.bit and made != loop:
                    self._above[loop] |= self.bit[made] | self.above(made)
        return self._above[loop]

    def body(self, loop: int, stored: int) -> Body:
        """Of a loop's own value. stored: bits of the loops with a choice that are."""
        key = (loop, stored & self.above(loop))
        if key in self._bodies:
            return self._bodies[key]
        made, reads, queue = {(loop, -1)}, set[Access](), [(loop, -1)]
        while queue:
            for access in self._links(*queue.pop(), self.space(loop)):
                maker = self.maker.get(access.buffer, -1)
                inlined = maker in self.bit and not stored & self.bit[maker] and len(made) < LARGEST
                if not inlined:
                    reads.add(access)
                elif (maker, access.places) not in made:
                    made.add((maker, access.places))
                    queue.append((maker, access.places))
        size = sum(self.loops[of].size for of, _ in made) + len(reads)
        heavy = any(self._heavy[of] for of, _ in made)
        self._bodies[key] = Body(frozenset(made), frozenset(reads), size, heavy)
        return self._bodies[key]

    def _links(self, loop: int, places: int, space: Sizes) -> tuple[Access, ...]:
        """The reads of a loop for its elements at some places; at -1, for all of its own."""
        if places < 0:
            return self._read(loop, points(space))
        key = (loop, places)
        if key not in self._linked:
            of = self.loops[loop]
            self._linked[key] = self._read(loop, unflattened(self._places[places], of.shape, of.stride))
        return self._linked[key]

    def _read(self, loop: int, at: Places) -> tuple[Access, ...]:
        found = np.zeros(at.shape[1], np.int64)
        for read in self.loops[loop].reads:
            if self.program.buffers[read.buffer].whole:
                found = (found * 31 + place(read.place, at, found) + read.buffer + 1) % (1 << 30)
        return tuple(Access(r.buffer, self.number(place(r.place, at, found))) for r in self.loops[loop].reads)


Pattern = tuple[tuple[int, int], ...] | int
"""How an access runs through a buffer: (stride, size) of each dimension, merged; or a number that stands for itself."""
Touch = tuple[int, Pattern]  # a buffer, and how


@dataclass(frozen=True, slots=True)
class Leaf:
    """outer, inner: sizes of the loops over elements and over the terms of sums. shape: before they were merged. bytes:
    of the elements touched in each way. levels: of each merged loop the innermost dimension. steps: of the write, then
    of each read, along each dimension; STRAY where it is uneven.
    """

    loop: int
    body: Body
    outer: Sizes
    inner: Sizes
    shape: Sizes
    reads: frozenset[Touch]
    write: Touch
    bytes: dict[Touch, int]
    levels: tuple[int, ...]
    steps: tuple[tuple[int, ...], ...]


def leaf_of(bodies: Bodies, loop: int, body: Body) -> Leaf:
    of, space, written = bodies.loops[loop], bodies.space(loop), bodies.written(loop)
    every = [written, *sorted(body.reads)]
    steps = [bodies.steps(access.places, space)[0] for access in every]
    first = len(of.shape)
    outer, out_levels = _merged(_order(range(first), steps, space), steps, space)
    inner, in_levels = _merged(_order(range(first, len(space)), steps, space), steps, space)
    touched = [(access.buffer, _pattern(bodies, access, space)) for access in every]
    sizes = {}
    for buffer, pattern in touched:
        elements = prod(space if isinstance(pattern, int) else (size for stride, size in pattern if stride))
        sizes[buffer, pattern] = elements * bodies.program.buffers[buffer].item
    return Leaf(loop, body, outer, inner, of.shape, frozenset(touched[1:]), touched[0], sizes,
                out_levels + in_levels, tuple(steps))  # fmt: skip


def _order(dimensions: Sequence[int], steps: list[tuple[int, ...]], space: Sizes) -> list[int]:
    """Outermost first: the innermost dimension is the one that most accesses step through in small strides."""

    def inside(a: int, b: int) -> int:
        a_in = sum(s[b] == 0 or abs(s[a]) < abs(s[b]) for s in steps)
        b_in = sum(s[a] == 0 or abs(s[b]) < abs(s[a]) for s in steps)
        return 1 if a_in > b_in else -1 if b_in > a_in else a - b

    return sorted(dimensions, key=cmp_to_key(inside))


def _merged(order: list[int], steps: list[tuple[int, ...]], space: Sizes) -> tuple[Sizes, tuple[int, ...]]:
    """Sizes of loops, neighbours of which are one where each access steps on evenly, and the innermost dimension of
    each."""
    sizes: list[int] = []
    levels: list[int] = []
    for d in order:
        if sizes and all(s[levels[-1]] == s[d] * space[d] for s in steps):
            sizes[-1], levels[-1] = sizes[-1] * space[d], d
        else:
            sizes.append(space[d])
            levels.append(d)
    return tuple(sizes), tuple(levels)


def _pattern(bodies: Bodies, access: Access, space: Sizes) -> Pattern:
    steps, linear = bodies.steps(access.places, space)
    if not linear:
        return access.places
    pairs: list[tuple[int, int]] = []
    for stride, size in zip(steps, space):
        if pairs and pairs[-1][0] == stride * size:
            pairs[-1] = (stride, pairs[-1][1] * size)
        else:
            pairs.append((stride, size))
    while pairs and pairs[-1][0] == 0:
        pairs.pop()
    return tuple(pairs)
