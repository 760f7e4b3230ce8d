"""Which loops Inductor's scheduler makes one (torch 2.13, `Scheduler.fuse_nodes_once`, `CppScheduling`): loops of equal
sizes that share data become one, with several results; loops of the same outer sizes share these (a row at a time)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import prod

from graphopt.costs.loops.loop_bodies import Leaf, Sizes, Touch
from graphopt.costs.loops.loop_program import LibraryCall

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
    maker is fused with no reader. ahead: [n] bits of what must have run."""

    def __init__(self, leaves: Sequence[Leaf | LibraryCall], apart: frozenset[int] = frozenset()) -> None:
        self.apart = apart
        self.made: dict[int, int] = {}  # buffer -> what makes it
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
        """Whether b reads what a makes only as it is made, and no other loop or call stands between them."""
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
