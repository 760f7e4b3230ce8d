"""A plan's nests and what they take, from a program's loops."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from graphopt.costs.loops.leaves import Leaf, leaf_of
from graphopt.costs.loops.loop_bodies import Bodies
from graphopt.costs.loops.nests import Fusing, LoopGroup
from graphopt.costs.loops.preset import Preset
from graphopt.costs.loops.seconds import Distances, Stage, moving, nests_of, per_byte, reads_of, stage_of, working
from graphopt.costs.loops.stored_values import Rules, stored_loops
from graphopt.inductor.loop_program import LibraryCall, LoopProgram


@dataclass(frozen=True, slots=True)
class Made:
    """What becomes of a plan. stored: names of ops. items: stored loops, and calls, in order. nests: each with its
    group, in order. kernels: compiled functions."""

    stored: frozenset[str]
    items: list[Leaf | LibraryCall]
    groups: list[LoopGroup]
    nests: list[tuple[LoopGroup, list[Stage]]]
    kernels: int


@dataclass(frozen=True, slots=True)
class NestCost:
    """Nanoseconds of a nest: of its operations, and reads and writes in the nearest cache; of data from further away.
    results: buffers that it writes."""

    working: float
    fetching: float
    results: int


@dataclass(eq=False)
class Estimate:
    """Of one program; what is found for one plan serves others."""

    program: LoopProgram
    bodies: Bodies = field(init=False)
    _leaves: dict[tuple[int, int], Leaf] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.bodies = Bodies(self.program)

    def made(self, asked: Mapping[str, bool], cut: frozenset[str], rules: Rules) -> Made:
        """asked: op -> whether to store it, where it was asked for. cut: ops that are kept apart from their readers."""
        stored = stored_loops(self.bodies, {**asked, **dict.fromkeys(cut, True)}, rules)
        items = [self._item(i, stored) for i in range(len(self.program.steps))]
        kept = [item for item in items if item is not None]
        apart = frozenset(loop.buffer for loop in self.bodies.loops.values() if loop.op in cut)
        groups = Fusing(kept, apart).run()
        nests = [(group, nest) for group in groups for nest in self._nests(group, kept)]
        names = frozenset(self.bodies.loops[i].op for i, bit in self.bodies.bit.items() if stored & bit)
        return Made(names, kept, groups, nests, _kernels(kept, groups))

    def _item(self, i: int, stored: int) -> Leaf | LibraryCall | None:
        step = self.program.steps[i]
        if isinstance(step, LibraryCall):
            return step
        if i in self.bodies.bit and not stored & self.bodies.bit[i]:
            return None
        key = (i, stored & self.bodies.above(i))
        if key not in self._leaves:
            self._leaves[key] = leaf_of(self.bodies, i, self.bodies.body(i, stored))
        return self._leaves[key]

    def _nests(self, group: LoopGroup, items: list[Leaf | LibraryCall]) -> list[list[Stage]]:
        leaves = [[item for item in (items[i] for i in stage) if isinstance(item, Leaf)] for stage in group.stages]
        return nests_of(group, [stage_of(stage) for stage in leaves])

    def seconds(self, made: Made, preset: Preset) -> float:
        parts = self.nests(made, preset)
        results = sum(nest.results for nest in parts)
        beginning = preset.kernel * made.kernels + preset.result * results
        return (sum(nest.working + nest.fetching for nest in parts) + beginning) * 1e-9

    def nests(self, made: Made, preset: Preset) -> list[NestCost]:
        readers, distances = self._readers(made), Distances()
        return [self._nest_cost(group, nest, readers, distances, preset) for group, nest in made.nests]

    def _readers(self, made: Made) -> dict[int, int]:
        """Buffer -> bits of the items that read it."""
        found: dict[int, int] = {}
        for i, item in enumerate(made.items):
            for buffer in item.reads if isinstance(item, LibraryCall) else {buffer for buffer, _ in item.reads}:
                found[buffer] = found.get(buffer, 0) | 1 << i
        return found

    def _nest_cost(self, group: LoopGroup, nest: list[Stage], readers: Mapping[int, int], distances: Distances,
                   preset: Preset) -> NestCost:  # fmt: skip
        work = move = 0.0
        first: dict[int, int] = {}
        written: dict[int, int] = {}
        for stage in nest:
            own = {leaf.write[0] for leaf in stage.leaves}
            reads = reads_of(self.bodies, stage, own)
            kept = [
                b for b in own if self.bodies.buffer(b).kept or readers.get(b, 0) & ~group.own or len(group.stages) > 1
            ]
            work += working(self.bodies, stage, preset)
            move += moving(self.bodies, stage, reads, len(kept), preset)
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
        return NestCost(work + move, fetch, len(written))


def _kernels(items: list[Leaf | LibraryCall], groups: list[LoopGroup]) -> int:
    """Compiled functions: loops that no call of a library lies between share one."""
    calls = [i for i, item in enumerate(items) if isinstance(item, LibraryCall)]
    return len({sum(call < group.first for call in calls) for group in groups})
