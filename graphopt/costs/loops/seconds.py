"""What nests of loops take: evaluations of operations, elements that are read and written, and how far away these are.

Nearest data costs a read; the first touch of a buffer in a nest costs what its distance costs on top: the bytes that
were touched since.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from graphopt.costs.loops.leaves import Leaf
from graphopt.costs.loops.loop_bodies import Access, Bodies
from graphopt.costs.loops.nests import LoopGroup
from graphopt.costs.loops.preset import Level, Preset
from graphopt.inductor.loop_program import Loop

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
    wide = max(leaves, key=lambda leaf: (bool(leaf.inner), len(leaf.levels)))
    sizes = wide.outer + wide.inner
    return Stage(tuple(leaves), prod(sizes), _tiled(leaves, len(sizes)), len(sizes), len(wide.outer), (1, *sizes)[-1])


def _tiled(leaves: Sequence[Leaf], levels: int) -> int:
    """The level along which accesses step by one, as Inductor's `TilingSelect` has it; -1 where it gives up."""
    if not levels:
        return -1
    even, uneven = [0] * levels, [0] * levels
    for leaf in leaves:
        for steps in leaf.steps:
            for level in range(levels):
                step = along(leaf, steps, level, levels)
                even[level] += step == 1
                uneven[level] += step not in (0, 1)
    only = [level for level in range(levels) if even[level] and not uneven[level]]
    some = [level for level in range(levels) if even[level]]
    tiled = only[-1] if only else max(some, key=lambda level: even[level]) if some else levels - 1
    work = sum(leaf.body.size + 2 for leaf in leaves)
    return -1 if uneven[tiled] >= MOST_UNEVEN or uneven[tiled] >= UNEVEN_SHARE * work else tiled


def along(leaf: Leaf, steps: tuple[int, ...], level: int, levels: int) -> int:
    """How an access steps along a level of the loop that a leaf is in, which may have more levels than the leaf."""
    own = level if len(leaf.levels) == levels else level - levels + len(leaf.levels)
    return steps[leaf.levels[own]] if 0 <= own < len(leaf.levels) else 0


def nests_of(group: LoopGroup, stages: list[Stage]) -> list[list[Stage]]:
    """What a group is compiled to: one nest, unless its stages are vectorised along different outer loops."""
    at = {stage.tiled if 0 <= stage.tiled < group.depth else -1 for stage in stages}
    return [stages] if len(stages) == 1 or len(at) == 1 else [[stage] for stage in stages]


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


def reads_of(bodies: Bodies, stage: Stage, made: set[int]) -> dict[Access, int]:
    """Each read, of what the loop does not hold already, and its step. made: buffers that the loop makes."""
    found: dict[Access, int] = {}
    level = stage.tiled if stage.tiled >= 0 else stage.depth - 1
    for leaf in stage.leaves:
        for access in leaf.body.reads:
            if access.buffer not in made and access not in found:
                found[access] = _steps(bodies, leaf, access.places, level, stage.depth) if stage.depth else 0
    return found


def moving(bodies: Bodies, stage: Stage, reads: Mapping[Access, int], writes: int, preset: Preset) -> float:
    """Nanoseconds of reading and writing a stage's elements in the nearest cache. writes: results that are kept."""
    table = preset.scalar if stage.tiled < 0 else preset.vector
    cost = table["write"] * writes
    for step in reads.values():
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
