"""A plan's nests of loops and what they take, from a program's loops: which values TorchInductor stores, evaluations of
operations, elements that are read and written, and how far away these are.

Stored is what the plan asks for. Where it asks for nothing, Inductor's own rules decide (torch 2.13,
`GraphLowering.run_node`, `StorageBox`), which depend on what was stored before. Nearest data costs a read; the first
touch of a buffer in a nest costs what its distance costs on top: the bytes that were touched since.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from graphopt.costs.loops.loop_bodies import Access, Bodies, Leaf, leaf_of
from graphopt.costs.loops.loop_program import LibraryCall, Loop, LoopProgram
from graphopt.costs.loops.nests import Fusing, LoopGroup
from graphopt.costs.loops.preset import Level, Preset

LARGEST_TREE = 150  # of an inlined expression, see graphopt.hardware.inductor.hooks
TOO_LARGE = 100  # operations that are stored even if inlining was asked for


@dataclass(frozen=True, slots=True)
class Rules:
    """reads: buffers that a value with several readers may read without being stored. size: operations it may take.
    gathered: reads of a value with one reader."""

    reads: int = 4
    size: int = 50
    gathered: int = 12


def stored_loops(bodies: Bodies, asked: Mapping[str, bool], rules: Rules) -> int:
    """Bits of the loops with a choice that are stored. asked: op -> whether it is to be."""
    of: dict[str, list[int]] = {}
    for loop in bodies.bit:
        of.setdefault(bodies.loops[loop].op, []).append(loop)
    stored = 0
    known = 0  # loops that exist by now: later ones cannot be read
    for hint in bodies.program.hints:
        for loop in of.get(hint.op, ()):
            bit = bodies.bit[loop]
            if not stored & bit and _stores(bodies, loop, stored, asked.get(hint.op), hint.kind, rules):
                stored |= bit
            known |= bit
    return stored


def _stores(bodies: Bodies, loop: int, stored: int, asked: bool | None, kind: str, rules: Rules) -> bool:
    if kind == "made" and asked:
        return True
    body = bodies.body(loop, stored)
    if kind == "made":
        return body.size > (max(TOO_LARGE, rules.size) if asked is None else TOO_LARGE)
    if asked is False:
        return False
    if kind in ("reuse", "spread"):
        return body.heavy or body.size > rules.size or (kind == "reuse" and len(body.reads) > rules.reads)
    several = len(body.reads) > 1
    return several and (kind == "will" or len(body.reads) > rules.gathered or body.size > rules.size)


UNEVEN_SHARE = 0.12  # of accesses that do not step by one among operations, from which Inductor does not vectorise
MOST_UNEVEN = 35


@dataclass(frozen=True, slots=True)
class Stage:
    """Leaves that are one loop over `points` elements. tiled: the level whose loop is vectorised, -1 for none. depth:
    levels; across: of these, those over elements. last: iterations of the innermost."""

    leaves: tuple[Leaf, ...]
    points: int
    tiled: int
    depth: int
    across: int
    last: int


def stage_of(leaves: Sequence[Leaf]) -> Stage:
    """Vectorised is the level along which accesses step by one, as Inductor's `TilingSelect` has it."""
    wide = max(leaves, key=lambda leaf: (bool(leaf.inner), len(leaf.levels)))
    sizes = wide.outer + wide.inner
    levels = len(sizes)
    even, uneven = [0] * levels, [0] * levels
    for leaf in leaves:
        for steps in leaf.steps:
            for level in range(levels):
                step = along(leaf, steps, level, levels)
                even[level] += step == 1
                uneven[level] += step not in (0, 1)
    tiled = levels - 1
    if some := [level for level in range(levels) if even[level]]:
        only = [level for level in some if not uneven[level]]
        tiled = only[-1] if only else max(some, key=lambda level: even[level])
    work = sum(leaf.body.size + 2 for leaf in leaves)
    if levels and (uneven[tiled] >= MOST_UNEVEN or uneven[tiled] >= UNEVEN_SHARE * work):
        tiled = -1
    return Stage(tuple(leaves), prod(sizes), tiled, levels, len(wide.outer), (1, *sizes)[-1])


def along(leaf: Leaf, steps: tuple[int, ...], level: int, levels: int) -> int:
    """How an access steps along a level of the loop that a leaf is in, which may have more levels than the leaf."""
    own = level if len(leaf.levels) == levels else level - levels + len(leaf.levels)
    return steps[leaf.levels[own]] if 0 <= own < len(leaf.levels) else 0


def working(bodies: Bodies, stage: Stage, preset: Preset) -> float:
    """Nanoseconds of a stage's operations. What is the same all along the innermost loop is computed before it."""
    table = preset.scalar if stage.tiled < 0 else preset.vector
    cost, done = 0.0, set[tuple[int, int]]()
    for leaf in stage.leaves:
        for evaluated in leaf.body.made - done:
            loop, places = evaluated
            once = places >= 0 and stage.depth and not _steps(bodies, leaf, places, stage.depth - 1, stage.depth)
            cost += _work(bodies.loops[loop], stage, table) / (stage.last if once else 1)
        done |= leaf.body.made
    return cost * stage.points


def _steps(bodies: Bodies, leaf: Leaf, places: int, level: int, levels: int) -> int:
    steps, _ = bodies.steps(places, bodies.space(leaf.loop))
    return along(leaf, steps, level, levels)


def _work(loop: Loop, stage: Stage, table: Mapping[str, float]) -> float:
    way = "outer" if 0 <= stage.tiled < stage.across else "inner"
    cost = 0.0
    for name, times in loop.ops.items():
        kind, _, rest = name.partition(".")
        cost += times * table.get(f"{way}.{rest}" if kind == "reduction" else name, table["unknown"])
    return cost


def moving(bodies: Bodies, stage: Stage, made: set[int], writes: int, preset: Preset) -> float:
    """Nanoseconds of reading and writing a stage's elements in the nearest cache. made: buffers that the loop makes,
    which it does not read; writes: results that are kept."""
    table = preset.scalar if stage.tiled < 0 else preset.vector
    level = stage.tiled if stage.tiled >= 0 else stage.depth - 1
    cost, seen = table["write"] * writes, set[Access]()
    for leaf in stage.leaves:
        for access in leaf.body.reads:
            if access.buffer not in made and access not in seen:
                seen.add(access)
                step = _steps(bodies, leaf, access.places, level, stage.depth) if stage.depth else 0
                cost += table["read"] if step == 1 else table["uneven"] if step else 0.0
    return cost * stage.points


class Distances:
    """How many bytes were touched since a buffer was."""

    def __init__(self) -> None:
        self._last: dict[int, int] = {}  # least recently touched first

    def of(self, buffer: int, size: int) -> float:
        if buffer not in self._last:
            return float("inf")
        total = float(size)
        for other in reversed(self._last):
            if other == buffer:
                break
            total += self._last[other]
        return total

    def touch(self, buffer: int, size: int) -> None:
        self._last.pop(buffer, None)
        self._last[buffer] = size


def per_byte(levels: Sequence[Level], distance: float) -> float:
    """Nanoseconds of a byte that so many others were touched after."""
    return levels[min(bisect_left(levels, (distance, 0.0)), len(levels) - 1)][1]


@dataclass(frozen=True, slots=True)
class LoopPlan:
    """A plan as loops. stored: names of ops. items: stored loops, and calls, in order. nests: each with its
    group, in order. kernels: compiled functions."""

    stored: frozenset[str]
    items: list[Leaf | LibraryCall]
    nests: list[tuple[LoopGroup, list[Stage]]]
    kernels: int


@dataclass(eq=False)
class Estimate:
    """Of one program; what is found for one plan serves others."""

    program: LoopProgram
    bodies: Bodies = field(init=False)
    _leaves: dict[tuple[int, int], Leaf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.program)

    def made(self, asked: Mapping[str, bool], cut: frozenset[str], rules: Rules) -> LoopPlan:
        """asked: op -> whether to store it, where it was asked for. cut: ops that are kept apart from their readers."""
        stored = stored_loops(self.bodies, {**asked, **dict.fromkeys(cut, True)}, rules)
        items = [item for i in range(len(self.program.steps)) if (item := self._item(i, stored)) is not None]
        apart = frozenset(loop.buffer for loop in self.bodies.loops.values() if loop.op in cut)
        groups = Fusing(items, apart).run()
        nests: list[tuple[LoopGroup, list[Stage]]] = []
        for group in groups:
            leaves = [[item for i in stage if isinstance(item := items[i], Leaf)] for stage in group.stages]
            stages = [stage_of(stage) for stage in leaves]
            # Stages that are vectorised along different outer loops are nests of their own.
            vectorised = {stage.tiled if 0 <= stage.tiled < group.depth else -1 for stage in stages}
            nests += [(group, stages)] if len(vectorised) == 1 else [(group, [stage]) for stage in stages]
        names = frozenset(self.bodies.loops[i].op for i, bit in self.bodies.bit.items() if stored & bit)
        calls = [i for i, item in enumerate(items) if isinstance(item, LibraryCall)]
        kernels = len({sum(call < group.first for call in calls) for group in groups})
        return LoopPlan(names, items, nests, kernels)

    def _item(self, i: int, stored: int) -> Leaf | LibraryCall | None:
        """None for a value that is not stored."""
        step = self.program.steps[i]
        if isinstance(step, LibraryCall):
            return step
        if i in self.bodies.bit and not stored & self.bodies.bit[i]:
            return None
        key = (i, stored & self.bodies.above(i))
        if key not in self._leaves:
            self._leaves[key] = leaf_of(self.bodies, i, self.bodies.body(i, stored))
        return self._leaves[key]

    def seconds(self, made: LoopPlan, preset: Preset) -> float:
        readers: dict[int, int] = {}  # buffer -> bits of the items that read it
        for i, item in enumerate(made.items):
            for buffer in item.reads if isinstance(item, LibraryCall) else {buffer for buffer, _ in item.reads}:
                readers[buffer] = readers.get(buffer, 0) | 1 << i
        distances = Distances()
        costs = [self._nest_cost(group, nest, readers, distances, preset) for group, nest in made.nests]
        beginning = preset.kernel * made.kernels + preset.result * sum(results for _, results in costs)
        return (sum(nanoseconds for nanoseconds, _ in costs) + beginning) * 1e-9

    def _nest_cost(self, group: LoopGroup, nest: list[Stage], readers: Mapping[int, int], distances: Distances,
                   preset: Preset) -> tuple[float, int]:  # fmt: skip
        """Nanoseconds of a nest, and how many results it writes."""
        work = move = 0.0
        first: dict[int, int] = {}
        written: dict[int, int] = {}
        for stage in nest:
            own = {leaf.write[0] for leaf in stage.leaves}
            several = len(group.stages) > 1
            kept = [b for b in own
                    if self.bodies.program.buffers[b].kept or readers.get(b, 0) & ~group.own or several]  # fmt: skip
            work += working(self.bodies, stage, preset)
            move += moving(self.bodies, stage, own, len(kept), preset)
            for leaf in stage.leaves:
                for (buffer, _), size in leaf.bytes.items():
                    if buffer in kept:
                        written[buffer] = size
                    elif buffer not in own and buffer not in written:
                        first[buffer] = max(first.get(buffer, 0), size)
        fetch = sum(per_byte(preset.read, distances.of(b, size)) * size for b, size in first.items())
        fetch += sum(per_byte(preset.write, distances.of(b, size)) * size for b, size in written.items())
        for buffer, size in (first | written).items():
            distances.touch(buffer, size)
        return work + move + fetch, len(written)
