"""Loop bodies under a plan: a stored value evaluates whatever it reads that is not stored, once at each place.

Two parts that need the same value at the same place share it, as they do in the compiled loop.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from graphopt.costs.loops.places import Places, Sizes, is_linear, place, points, steps_of, unflattened
from graphopt.inductor.loop_program import Buffer, Loop, LoopProgram


class Access(NamedTuple):
    """buffer, and number of the places that it is touched at."""

    buffer: int
    places: int


@dataclass(frozen=True, slots=True)
class Body:
    """made: loop and places (number) of each evaluation. reads: what is loaded. size: operations as Inductor counts
    them."""

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

    def buffer(self, number: int) -> Buffer:
        return self.program.buffers[number]

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
            self._steps[key] = steps_of(touched, len(space)), is_linear(touched, space)
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
        if key not in self._bodies:
            self._bodies[key] = self._followed(loop, stored)
        return self._bodies[key]

    def _followed(self, loop: int, stored: int) -> Body:
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
        which = {loop for loop, _ in made}
        size = sum(self.loops[of].size for of, _ in made) + len(reads)
        return Body(frozenset(made), frozenset(reads), size, any(self._heavy[i] for i in which))

    def _links(self, loop: int, places: int, space: Sizes) -> tuple[Access, ...]:
        """What a loop reads for its elements at some places; at -1, for all of its own."""
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
            if self.buffer(read.buffer).whole:
                found = (found * 31 + place(read.place, at, found) + read.buffer + 1) % (1 << 30)
        return tuple(Access(r.buffer, self.number(place(r.place, at, found))) for r in self.loops[loop].reads)


def work(bodies: Bodies, made: frozenset[tuple[int, int]] | set[tuple[int, int]]) -> Mapping[str, float]:
    """Operation -> evaluations for one element."""
    found: dict[str, float] = {}
    for loop, _ in made:
        for name, count in bodies.loops[loop].ops.items():
            found[name] = found.get(name, 0.0) + count
    return found
