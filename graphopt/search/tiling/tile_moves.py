"""Moves from one grouping to another: fuse, store, absorb, merge, move, split, run again. Each is drawn at random
around an op."""

from collections.abc import Callable

import numpy as np

from graphopt.search.tiling import tile_changes as changes
from graphopt.search.tiling.groupings import Grouping
from graphopt.tiling.tile_costs import bits

Move = Callable[[Grouping, int, "Draw"], Grouping | None]


class Draw:
    """Random numbers in batches: one at a time they would take longer than a move."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._ready: list[float] = []

    def unit(self) -> float:
        """In [0, 1)."""
        if not self._ready:
            self._ready = self._rng.random(1024).tolist()
        return self._ready.pop()

    def below(self, number: int) -> int:
        """0 to number - 1."""
        return int(self.unit() * number)


def _store(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    if draw.unit() < 0.7:
        return changes.store(now, op)
    return changes.store_beside(now, op, [*now.groups][draw.below(len(now.groups))])


def _fuse(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    return changes.fuse(now, op)


def _absorb(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    readers = [number for number, group in now.groups.items() if group.needs >> op & 1]
    return changes.absorb(now, op, readers[draw.below(len(readers))]) if readers else None


def _merge(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    other = _near(now, op, draw)
    return None if other is None else changes.merge(now, op, other)


def _shift(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    other = _near(now, op, draw)
    return None if other is None else changes.shift(now, op, other)


def _split(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """One op and the others, or any two parts."""
    stored = now.groups[now.group_of(op)].stored
    if not stored & (stored - 1):
        return None
    part = 1 << op if draw.unit() < 0.5 else sum(1 << other for other in bits(stored) if draw.unit() < 0.5)
    return changes.split(now, op, part)


def _again(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """A stored op also runs in a group that reads it, or no longer does; where one op reads it, it would be fused."""
    after = now.wiring.after[op]
    if not after & (after - 1):
        return None
    groups = [number for number, group in now.groups.items() if group.ops & after]
    number = groups[draw.below(len(groups))]
    return changes.run_again(now, op, number, also=bool(now.groups[number].needs >> op & 1))


def _near(now: Grouping, op: int, draw: Draw) -> int | None:
    """A group with an op that is near a stored one, not its own."""
    others = [other for other in now.wiring.alike[op] if not now.fused >> other & 1]
    if not others:
        return None
    other = now.group_of(others[draw.below(len(others))])
    return None if other == now.group_of(op) else other


STORED_MOVES: tuple[tuple[float, Move], ...] = (
    (0.38, _fuse), (0.52, _absorb), (0.64, _merge), (0.75, _shift), (0.93, _split), (1.0, _again),
)  # fmt: skip


def propose(now: Grouping, draw: Draw) -> Grouping | None:
    """A random move; None where it cannot be made."""
    op = draw.below(now.wiring.workload.num_ops)
    if now.fused >> op & 1:
        return _store(now, op, draw)
    chance = draw.unit()
    return next(move for most, move in STORED_MOVES if chance < most)(now, op, draw)
