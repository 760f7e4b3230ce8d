"""A plan's nests of loops and their times, from a program's loops. Counted are the values that TorchInductor stores,
evaluations of operations, elements read and written, and the distance of these in the cache.

Values are stored as the plan asks. Where it asks for nothing, Inductor's own rules decide (torch 2.13,
`GraphLowering.run_node`, `StorageBox`), which depend on the values stored before. Data in the nearest cache costs a
read; the first touch of a buffer in a nest costs its distance on top: the bytes that were touched since.

Which loops Inductor's scheduler makes one (torch 2.13, `Scheduler.fuse_nodes_once`, `CppScheduling`): loops of equal
sizes that share data become one, with several results; loops of the same outer sizes share these (a row at a time).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from graphopt.costs.loops.loop_bodies import Access, Bodies, Leaf, LibraryCall, Loop, LoopProgram, Sizes, Touch, leaf_of
from graphopt.costs.loops.preset import Level, Preset

MOST_LEAVES = 64
LEAST_SHARED = 10  # bytes, for loops of which none reads the other
FURTHEST = 64  # steps between loops of which none reads the other
WINDOW = 64  # users of a buffer that each is compared with
ROUNDS = 10


@dataclass(eq=False, slots=True)
class LoopGroup:
    """Loops that are one. stages: one after the other below the `depth` outermost loops, each one loop of leaves (by
    number); a single stage has depth 0. first, last: its steps in the order of the program. before: bits of the leaves
    and calls that must have run, others than its own."""

    stages: list[list[int]]
    outer: Sizes
    inner: Sizes
    shapes: set[Sizes]
    first: int
    last: int
    own: int
    before: int
    touched: dict[Touch, int]
    reads: set[Touch]
    writes: set[Touch]
    reduction: bool
    depth: int = 0
    ends: tuple[Sizes, Sizes] = field(default=((), ()))  # outer sizes of the first and the last stage

    @property
    def leaves(self) -> list[int]:
        return [leaf for stage in self.stages for leaf in stage]


class Fusing:
    """leaves: and calls between them, in the order of the program, by which they are numbered. apart: buffers whose
    maker is fused with no reader. ahead: [n] bits of the loops that must have run."""

    def __init__(self, leaves: Sequence[Leaf | LibraryCall], apart: frozenset[int] = frozenset()) -> None:
        self.apart = apart
        self.made: dict[int, int] = {}  # buffer -> its maker
        for i, item in enumerate(leaves):
            for buffer in item.makes if isinstance(item, LibraryCall) else (item.write[0],):
                self.made.setdefault(buffer, i)
        self.ahead: list[int] = []
        for i, item in enumerate(leaves):
            reads = item.reads if isinstance(item, LibraryCall) else {buffer for buffer, _ in item.reads}
            bits = 0
            for j in (self.made[b] for b in reads if self.made.get(b, i) < i):
                bits |= self.ahead[j] | 1 << j
            self.ahead.append(bits)
        self.groups = [
            LoopGroup([[i]], leaf.outer, leaf.inner, {leaf.shape}, i, i, 1 << i, self.ahead[i], dict(leaf.bytes),
                      set(leaf.reads), {leaf.write}, bool(leaf.inner), ends=(leaf.outer, leaf.outer))
            for i, leaf in enumerate(leaves) if isinstance(leaf, Leaf)
        ]  # fmt: skip
        self.now = {group.first: group for group in self.groups}  # leaf -> the group that it is in

    def run(self) -> list[LoopGroup]:
        for _ in range(ROUNDS):
            count = len(self.groups)
            if count == 1 or not self._round() or len(self.groups) == count:
                break
        return self.groups

    def _round(self) -> bool:
        found = list(self._candidates())
        least = min((outer for *_, outer in found), default=0)
        found = [one for one in found if one[2] == least]
        found.sort(key=lambda one: _preference(one[0], one[1]), reverse=True)
        changed = False
        for a, b, _ in found:
            first, second = self.now[a.first], self.now[b.first]
            if first is second:
                continue
            way = self._way(first, second)
            if way is not None and not self._circle(first, second):
                fused = self._fused(first, second, way)
                self.now.update(dict.fromkeys(fused.leaves, fused))
                changed = True
        if changed:
            unique = {id(group): group for group in self.now.values()}
            self.groups = sorted(unique.values(), key=lambda group: group.first)
        return changed

    def _candidates(self) -> Iterator[tuple[LoopGroup, LoopGroup, bool]]:
        users: dict[int, list[LoopGroup]] = {}
        for group in self.groups:
            for buffer in {buffer for buffer, _ in group.touched}:
                users.setdefault(buffer, []).append(group)
        seen = set[tuple[int, int]]()
        for of in users.values():
            for i, a in enumerate(of):
                for b in of[i + 1 : i + 1 + WINDOW]:
                    if (id(a), id(b)) not in seen:
                        seen.add((id(a), id(b)))
                        way = self._way(a, b)
                        if way is not None:
                            yield a, b, way

    def _way(self, a: LoopGroup, b: LoopGroup) -> bool | None:
        """Whether only the outer loops of two groups would become one; None where nothing would."""
        if a.before & b.own:
            if b.before & a.own:
                return None
            a, b = b, a
        depends = bool(b.before & a.own)
        same = not a.depth and not b.depth and _fits(a, b)
        outer = depends and not (same and not a.reduction) and _depth(a, b) >= 1
        if not outer and (not same or (depends and a.reduction)):
            return None
        if len(a.leaves) + len(b.leaves) > MOST_LEAVES:
            return None
        if self.apart and not self.apart.isdisjoint(_between(a, b)):
            return None
        shared = _shared(a, b)
        if not shared or (depends and not self._in_step(a, b)):
            return None
        if not depends and (shared < LEAST_SHARED or _apart(a, b) > FURTHEST):
            return None
        return outer

    def _in_step(self, a: LoopGroup, b: LoopGroup) -> bool:
        """Whether b reads results of a only as they are made, and no other loop or call stands between them."""
        made = {buffer for buffer, _ in a.writes}
        if any(buffer in made for buffer, _ in b.reads - a.writes):
            return False
        for buffer, _ in b.reads:
            maker = self.made.get(buffer, -1)
            if maker >= 0 and not (a.own | b.own) >> maker & 1 and self.ahead[maker] & a.own:
                return False
        return True

    def _circle(self, a: LoopGroup, b: LoopGroup) -> bool:
        """Whether something outside both would have to run after and before their union."""
        own = a.own | b.own
        todo, seen = (a.before | b.before) & ~own, 0
        while todo:
            i = (todo & -todo).bit_length() - 1
            group = self.now.get(i)
            bits, before = (group.own, group.before) if group else (1 << i, self.ahead[i])
            if before & own:
                return True
            seen |= bits
            todo = (todo | before) & ~seen
        return False

    def _fused(self, a: LoopGroup, b: LoopGroup, outer: bool) -> LoopGroup:
        if b.before & a.own == 0 and a.before & b.own:
            a, b = b, a
        own = a.own | b.own
        stages = a.stages + b.stages if outer else [sorted(a.stages[0] + b.stages[0])]
        wide = a if a.reduction > b.reduction or (a.reduction == b.reduction and len(a.outer) >= len(b.outer)) else b
        first, last = min(a.first, b.first), max(a.last, b.last)
        return LoopGroup(stages, wide.outer, wide.inner, a.shapes | b.shapes, first, last, own,
                     (a.before | b.before) & ~own, a.touched | b.touched, a.reads | b.reads, a.writes | b.writes,
                     a.reduction or b.reduction, _depth(a, b) if outer else 0,
                     (a.ends[0], b.ends[1]) if outer else (wide.outer, wide.outer))  # fmt: skip


def _preference(a: LoopGroup, b: LoopGroup) -> tuple[int, int, int]:
    """The highest pair is fused first."""
    shared = _shared(a, b)
    return int(a.reduction == b.reduction and shared > 0), shared, -_apart(a, b)


def _apart(a: LoopGroup, b: LoopGroup) -> int:
    """Steps between two groups."""
    return max(abs(a.first - b.last), abs(b.first - a.last))


def _between(a: LoopGroup, b: LoopGroup) -> set[int]:
    """Buffers that one makes and the other reads."""
    made = [{buffer for buffer, _ in group.writes} for group in (a, b)]
    read = [{buffer for buffer, _ in group.reads} for group in (b, a)]
    return made[0] & read[0] | made[1] & read[1]


def _shared(a: LoopGroup, b: LoopGroup) -> int:
    few, many = (a.touched, b.touched) if len(a.touched) < len(b.touched) else (b.touched, a.touched)
    return sum(size for touch, size in few.items() if touch in many)


def _fits(a: LoopGroup, b: LoopGroup) -> bool:
    """Whether a's loops, which come first, and b's can be the same."""
    if a.outer == b.outer and a.inner == b.inner:
        return True
    if not a.inner and a.outer == b.outer + b.inner:
        return True
    if a.inner or b.inner or prod(a.outer) != prod(b.outer) or min(len(a.outer), len(b.outer)) != 1:
        return False
    short = a if len(a.outer) < len(b.outer) else b
    return len(short.leaves) == 1 and len(a.shapes | b.shapes) == 1


def _depth(a: LoopGroup, b: LoopGroup) -> int:
    """Outermost loops that both have, where b comes after a."""
    first, second = a.ends[1], b.ends[0]
    if a.depth and b.depth:
        return a.depth if a.depth == b.depth else 0
    depth = min(len(first), len(second))
    if not depth or first[:depth] != second[:depth]:
        return 0
    return depth if (a.depth or b.depth or depth) == depth else 0


LARGEST_TREE = 150  # of an inlined expression, see graphopt.hardware.inductor.lowering
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
    levels; across: of these, those over elements. last: iterations of the innermost. row: elements along the level that
    is vectorised."""

    leaves: tuple[Leaf, ...]
    points: int
    tiled: int
    depth: int
    across: int
    last: int
    row: int


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
    row = sizes[tiled] if levels and tiled >= 0 else 1
    return Stage(tuple(leaves), prod(sizes), tiled, levels, len(wide.outer), (1, *sizes)[-1], row)


def along(leaf: Leaf, steps: tuple[int, ...], level: int, levels: int) -> int:
    """How an access steps along a level of the loop that a leaf is in, which may have more levels than the leaf."""
    own = level if len(leaf.levels) == levels else level - levels + len(leaf.levels)
    return steps[leaf.levels[own]] if 0 <= own < len(leaf.levels) else 0


def working(bodies: Bodies, stage: Stage, writes: int, preset: Preset) -> float:
    """Nanoseconds of a stage's operations. Values that do not change along the innermost loop are computed before it.
    One number for all loops is computed for every vector where results are written: they may be its operands."""
    table = preset.scalar if stage.tiled < 0 else preset.vector
    lanes = preset.lanes if stage.tiled >= 0 else 1
    cost, done = 0.0, set[tuple[int, int]]()
    for leaf in stage.leaves:
        for evaluated in leaf.body.made - done:
            loop, places = evaluated
            still = (not _steps(bodies, leaf, places, level, stage.depth) for level in reversed(range(stage.depth)))
            once = places >= 0 and next(still, False)
            if once and writes and stage.across == stage.depth and all(still):
                cost += _work(bodies.loops[loop], stage, preset.scalar) / lanes
            else:
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


def moving(bodies: Bodies, stage: Stage, made: set[int], kept: Sequence[int], preset: Preset) -> float:
    """Nanoseconds of reading and writing a stage's elements in the nearest cache. made: buffers that the loop makes,
    which it does not read; kept: of these, those that it writes."""
    table = preset.scalar if stage.tiled < 0 else preset.vector
    level = stage.tiled if stage.tiled >= 0 else stage.depth - 1
    part = preset.part / stage.row if stage.tiled >= 0 and stage.row % preset.lanes else 0.0

    def moved(way: str, buffer: int) -> float:
        missed = bodies.program.buffers[buffer].missed
        if missed is None:
            return table[way]
        return table.get(f"truth_{way}", table[way]) + missed * table.get(f"missed_{way}", 0.0)

    cost, seen = sum(moved("write", buffer) + part for buffer in kept), set[Access]()
    for leaf in stage.leaves:
        for access in leaf.body.reads:
            if access.buffer not in made and access not in seen:
                seen.add(access)
                step = _steps(bodies, leaf, access.places, level, stage.depth) if stage.depth else 0
                cost += moved("read", access.buffer) if step == 1 else table["uneven"] if step else 0.0
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
    """The estimate of one program; results for one plan are used for others."""

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
            work += working(self.bodies, stage, len(kept), preset)
            move += moving(self.bodies, stage, own, kept, preset)
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
