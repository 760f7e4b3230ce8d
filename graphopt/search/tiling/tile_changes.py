"""Changes of a grouping around an op, which are drawn by chance (`tile_moves`) or by scores (`move_table`); None where
one cannot be."""

from graphopt.search.tiling.groupings import Grouping, changed
from graphopt.tiling.tile_costs import bits


def fuse(now: Grouping, op: int) -> Grouping | None:
    """A stored op is computed inside every group that reads it."""
    if now.fused >> op & 1 or not now.wiring.after[op]:
        return None
    home = now.group_of(op)
    return changed(now, [home], [now.groups[home].stored & ~(1 << op)], now.fused | 1 << op)


def store(now: Grouping, op: int) -> Grouping | None:
    """A fused op is computed once, in a group of its own."""
    return changed(now, [], [1 << op], now.fused & ~(1 << op))


def store_beside(now: Grouping, op: int, number: int) -> Grouping | None:
    """A fused op is computed once, in a group that there is."""
    return changed(now, [number], [now.groups[number].stored | 1 << op], now.fused & ~(1 << op))


def run_again(now: Grouping, op: int, number: int, *, also: bool) -> Grouping | None:
    """A stored op also runs in a group that reads it, or (`also` false) no longer does."""
    inside = now.groups[number].ops & now.wiring.after[op]
    turned = [reader for reader in bits(inside) if bool(now.again.get(reader, 0) >> op & 1) != also]
    if not turned or now.fused >> op & 1:
        return None
    again = {**now.again, **{reader: now.again.get(reader, 0) ^ 1 << op for reader in turned}}
    return changed(now, [], [], now.fused, again)


def absorb(now: Grouping, op: int, reader: int) -> Grouping | None:
    """The group of a stored op joins one that reads it; what only that one reads is fused."""
    home = now.group_of(op)
    inside, stored, fused = now.groups[reader].ops, now.groups[reader].stored, now.fused
    for other in bits(now.groups[home].stored):
        if now.wiring.after[other] and not now.wiring.after[other] & ~inside:
            fused |= 1 << other
        else:
            stored |= 1 << other
    return changed(now, [home, reader], [stored], fused)


def merge(now: Grouping, op: int, other: int) -> Grouping | None:
    """The group of a stored op and another become one."""
    home = now.group_of(op)
    return changed(now, [home, other], [now.groups[home].stored | now.groups[other].stored], now.fused)


def shift(now: Grouping, op: int, other: int) -> Grouping | None:
    """A stored op moves to another group."""
    home = now.group_of(op)
    return changed(now, [home, other], [now.groups[home].stored & ~(1 << op), now.groups[other].stored | 1 << op],
                   now.fused)  # fmt: skip


def split(now: Grouping, op: int, part: int) -> Grouping | None:
    """The group of a stored op falls into two; part: stored ops of one, as bits."""
    home = now.group_of(op)
    return changed(now, [home], [part, now.groups[home].stored & ~part], now.fused)
