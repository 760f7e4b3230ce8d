"""`Grouping`: the schedules that searches look at, the changes of one, and their prices.

Every op is stored or fused. A stored op's result goes to slow memory (or stays for the next step), and the op runs in
one group. A fused op runs inside every group that reads its result, again in each: so the choice of fused ops is the
choice of recomputation. A stored op may run again in groups that read it, beside the one that stores it: its readers
there have it `again`. A group is a set of stored ops and all ops that they need computed with them; its tile is the
best one. Groups may be linked: the next one runs right after and finds tensors of this one in fast memory.

Sets of ops are bits of integers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from graphopt.contests.tiling.footprint import NOTHING
from graphopt.contests.tiling.tile_latency import Kept, TileCosts, bits
from graphopt.contests.tiling.tile_workload import TileSchedule

LEAST_GAIN = 1e-9
NO_AGAIN: Mapping[int, int] = {}


class TileGroup(NamedTuple):
    """stored: its stored ops. ops: with the fused ones that they need. needs: stored ops of others that it reads from.
    resident, retained: tensors that links keep for it, and that it keeps."""

    stored: int
    ops: int
    needs: int
    resident: Kept = NOTHING
    retained: Kept = NOTHING


Offer = tuple[float, int, int, int, TileGroup, TileGroup]  # gain, op, from and to a group, and their new forms


class Wiring:
    """Who reads whom, as bits. before, after: [N] producers and readers of each op."""

    def __init__(self, costs: TileCosts) -> None:
        workload = self.workload = costs.workload
        self.costs = costs
        self.after = [sum(1 << op for op in workload.readers[made]) for made in workload.output]
        self.before = [0] * workload.num_ops
        for op, mask in enumerate(self.after):
            for reader in bits(mask):
                self.before[reader] |= 1 << op
        self.fits = [workload.elements(made) <= workload.capacity for made in workload.output]

    @cached_property
    def alike(self) -> list[list[int]]:
        """[N] ops that each op shares a tensor with, or a neighbour."""
        w, found = self.workload, []
        for op in range(w.num_ops):
            near = sum({1 << other for tensor in w.inputs[op] for other in w.readers[tensor]})
            for other in bits(self.before[op] | self.after[op]):
                near |= self.after[other] | self.before[other] | 1 << other
            found.append([*bits(near & ~(1 << op))])
        return found

    def group(self, stored: int, fused: int, again: Mapping[int, int] = NO_AGAIN) -> TileGroup:
        """The group of stored ops when these ops are fused. again: as of `Grouping`."""
        ops = new = stored
        needs = 0
        while new:
            before = inside = 0
            for op in bits(new):
                before |= self.before[op]
                inside |= self.before[op] & (fused | again.get(op, 0))
            needs |= before
            new = inside & ~ops
            ops |= new
        return TileGroup(stored, ops, needs & ~ops)

    def read_only_in(self, stored: int, ops: int) -> int:
        """Those of `stored` that have readers, all of them among `ops`."""
        return sum(1 << op for op in bits(stored) if self.after[op] and not self.after[op] & ~ops)

    def cost(self, group: TileGroup) -> float:
        """Latency of a group with its best tile; inf where it cannot be."""
        return self.costs.best(group.ops, group.resident, group.retained).latency

    def alone(self, group: TileGroup) -> bool:
        """Whether no stored op of it is read inside it."""
        return not any(self.after[op] & group.ops for op in bits(group.stored))


@dataclass(frozen=True, slots=True)
class Grouping:
    """groups by number, links from a group to the one that runs right after it, cost: of all. again: of an op, the
    stored ops that it reads and that run once more in its group, as bits."""

    wiring: Wiring
    groups: Mapping[int, TileGroup]
    links: Mapping[int, int]
    fused: int
    cost: float
    unused: int  # the next number
    again: Mapping[int, int]

    def group_of(self, op: int) -> int:
        """The number of the group of a stored op."""
        return next(number for number, group in self.groups.items() if group.stored >> op & 1)

    def schedule(self) -> TileSchedule:
        """Groups in an order in which they can run."""
        order = in_order(self.groups, self.links)
        assert order is not None
        groups = [self.groups[number] for number in order]
        return TileSchedule(tuple(self.wiring.costs.step(g.ops, g.resident, g.retained) for g in groups))


def apart(wiring: Wiring) -> Grouping:
    """Every op is stored, a group of its own."""
    groups = {op: wiring.group(1 << op, 0) for op in range(wiring.workload.num_ops)}
    return Grouping(wiring, groups, {}, 0, sum(map(wiring.cost, groups.values())), len(groups), NO_AGAIN)


def changed(now: Grouping, gone: Iterable[int], new: Sequence[int], fused: int,
            again: Mapping[int, int] | None = None) -> Grouping | None:  # fmt: skip
    """With other groups in the place of some (`new`: their stored ops), and other ops fused, or run again; None where
    that cannot be. Links of changed groups are dropped, and those that pay are made."""
    wiring, gone, new = now.wiring, {*gone}, [*filter(None, new)]
    again = now.again if again is None else again
    touched = [number for number in _touched(now, fused, again) if number not in gone]
    gone.update(touched)
    new += [now.groups[number].stored for number in touched]
    made = dict(enumerate((wiring.group(stored, fused, again) for stored in new), now.unused))
    if any(not wiring.alone(group) or wiring.cost(group) == float("inf") for group in made.values()):
        return None
    groups = {number: group for number, group in now.groups.items() if number not in gone}
    links = {a: b for a, b in now.links.items() if a in groups and b in groups}
    for a, b in now.links.items():
        if a in groups and a not in links:
            groups[a] = groups[a]._replace(retained=NOTHING)
        if b in groups and links.get(a) != b:
            groups[b] = groups[b]._replace(resident=NOTHING)
    groups |= made
    if in_order(groups, links) is None:
        return None
    loose = {number for pair in now.links.items() for number in pair if number in groups}
    before = sum(wiring.cost(now.groups[number]) for number in (*gone, *loose))
    cost = now.cost + (sum(wiring.cost(groups[number]) for number in (*made, *loose)) - before)
    freed = {number for a, b in now.links.items() if links.get(a) != b for number in (a, b) if number in groups}
    return linked(Grouping(wiring, groups, links, fused, cost, now.unused + len(made), again), {*made, *freed})


def _touched(now: Grouping, fused: int, again: Mapping[int, int]) -> list[int]:
    """Groups that are others when other ops are fused, or run again."""
    turned = now.fused ^ fused
    readers = 0
    if again is not now.again:
        readers = sum(1 << op for op in {*again, *now.again} if again.get(op, 0) != now.again.get(op, 0))
    if not turned | readers:
        return []
    return [number for number, g in now.groups.items() if (g.ops | g.needs) & turned or g.ops & readers]


def linked(now: Grouping, near: Iterable[int]) -> Grouping:
    """With the links into and out of some groups that pay, the best first."""
    wiring = now.wiring
    ops = 0
    for number in near:
        ops |= now.groups[number].needs | now.groups[number].stored
    offers = {op: _offer(now, op) for op in bits(ops) if wiring.fits[op] and wiring.after[op]}
    while any(offers.values()):
        gain, op, a, b, keeps, finds = min(filter(None, offers.values()), key=lambda offer: offer[:2])
        links = {**now.links, a: b}
        groups = {**now.groups, a: keeps, b: finds}
        if now.links.get(a) != b and in_order(groups, links) is None:
            del offers[op]
            continue
        now = replace(now, groups=groups, links=links, cost=now.cost + gain)
        touched = keeps.stored | keeps.needs | finds.stored | finds.needs
        offers |= {op: _offer(now, op) for op in offers if touched >> op & 1}
    return now


def _offer(now: Grouping, op: int) -> Offer | None:
    """The gain of retaining the result of a stored op for its only reading group; None where there is none."""
    readers = [number for number, group in now.groups.items() if group.needs >> op & 1]
    if len(readers) != 1:
        return None
    a, b = now.group_of(op), readers[0]
    if now.links.get(a, b) != b or (now.links.get(a) != b and b in now.links.values()):
        return None
    wiring, tensor, keeps, finds = now.wiring, now.wiring.workload.output[op], now.groups[a], now.groups[b]
    if tensor in keeps.retained:
        return None
    keeps = keeps._replace(retained=keeps.retained | {tensor})
    finds = finds._replace(resident=finds.resident | {tensor})
    gain = wiring.cost(keeps) - wiring.cost(now.groups[a])
    if gain == float("inf"):
        return None
    gain += wiring.cost(finds) - wiring.cost(now.groups[b])
    return (gain, op, a, b, keeps, finds) if gain < -LEAST_GAIN else None


def in_order(groups: Mapping[int, TileGroup], links: Mapping[int, int]) -> list[int] | None:
    """Groups in an order in which they can run, linked ones after each other; None where there is none."""
    followers = {*links.values()}
    chains = [[number] for number in groups if number not in followers]
    for chain in chains:
        while chain[-1] in links:
            chain.append(links[chain[-1]])
    waiting = []
    for chain in chains:
        stored = needs = 0
        for number in chain:
            group = groups[number]
            if stored and group.needs & ~stored & sum(groups[member].stored for member in chain):
                return None
            stored |= group.stored
            needs |= group.needs
        if len(chain) > 1 and groups[chain[0]].needs & stored:
            return None
        waiting.append((needs & ~stored, stored, chain))
    if sum(len(chain) for chain in chains) < len(groups):
        return None
    done, order = 0, list[int]()
    while waiting:
        later = []
        for entry in waiting:
            needs, stored, chain = entry
            if needs & ~done:
                later.append(entry)
            else:
                done |= stored
                order += chain
        if len(later) == len(waiting):
            return None
        waiting = later
    return order


def fuse(now: Grouping, op: int) -> Grouping | None:
    """A stored op is computed inside every group that reads it."""
    if now.fused >> op & 1 or not now.wiring.after[op]:
        return None
    home = now.group_of(op)
    return changed(now, [home], [now.groups[home].stored & ~(1 << op)], now.fused | 1 << op)


def store(now: Grouping, op: int, beside: int | None = None) -> Grouping | None:
    """A fused op is computed once, in a group of its own or in the group `beside`."""
    fused = now.fused & ~(1 << op)
    if beside is None:
        return changed(now, [], [1 << op], fused)
    return changed(now, [beside], [now.groups[beside].stored | 1 << op], fused)


def merge(now: Grouping, op: int, other: int) -> Grouping | None:
    """The group of a stored op and another become one."""
    home = now.group_of(op)
    return changed(now, [home, other], [now.groups[home].stored | now.groups[other].stored], now.fused)


def absorb(now: Grouping, op: int, reader: int) -> Grouping | None:
    """The group of a stored op joins one that reads it; ops that only that one reads are fused."""
    home = now.group_of(op)
    stored = now.groups[home].stored
    lone = now.wiring.read_only_in(stored, now.groups[reader].ops)
    return changed(now, [home, reader], [stored & ~lone | now.groups[reader].stored], now.fused | lone)


def shift(now: Grouping, op: int, other: int) -> Grouping | None:
    """A stored op moves to another group."""
    home = now.group_of(op)
    return changed(now, [home, other], [now.groups[home].stored & ~(1 << op), now.groups[other].stored | 1 << op],
                   now.fused)  # fmt: skip


def split(now: Grouping, op: int, part: int) -> Grouping | None:
    """The group of a stored op falls into two; part: stored ops of one, as bits."""
    home = now.group_of(op)
    return changed(now, [home], [part, now.groups[home].stored & ~part], now.fused)


def run_again(now: Grouping, op: int, number: int, *, also: bool) -> Grouping | None:
    """A stored op also runs in a group that reads it, or (`also` false) no longer does."""
    inside = now.groups[number].ops & now.wiring.after[op]
    turned = [reader for reader in bits(inside) if bool(now.again.get(reader, 0) >> op & 1) != also]
    if not turned or now.fused >> op & 1:
        return None
    again = {**now.again, **{reader: now.again.get(reader, 0) ^ 1 << op for reader in turned}}
    return changed(now, [], [], now.fused, again)
