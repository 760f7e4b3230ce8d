"""Moves from one grouping to another: fuse, store, absorb, merge, move, split. Each is drawn at random around an op."""

from collections.abc import Callable

import numpy as np

from graphopt.search.tiling.groupings import Grouping, changed
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


def fuse(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """A stored op is computed inside every group that reads it."""
    if now.fused >> op & 1 or not now.wiring.after[op]:
        return None
    home = now.group_of(op)
    return changed(now, [home], [now.groups[home].stored & ~(1 << op)], now.fused | 1 << op)


def store(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """A fused op is computed once: in a group of its own, or in another."""
    if not now.fused >> op & 1:
        return None
    if draw.unit() < 0.7:
        return changed(now, [], [1 << op], now.fused & ~(1 << op))
    number = _any(now, draw)
    return changed(now, [number], [now.groups[number].stored | 1 << op], now.fused & ~(1 << op))


def absorb(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """The group of a stored op joins one that reads it; what only that one reads is fused."""
    if now.fused >> op & 1:
        return None
    readers = [number for number, group in now.groups.items() if group.needs >> op & 1]
    if not readers:
        return None
    home, reader = now.group_of(op), readers[draw.below(len(readers))]
    inside, stored, fused = now.groups[reader].ops, now.groups[reader].stored, now.fused
    for other in bits(now.groups[home].stored):
        if now.wiring.after[other] and not now.wiring.after[other] & ~inside:
            fused |= 1 << other
        else:
            stored |= 1 << other
    return changed(now, [home, reader], [stored], fused)


def merge(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """Two groups near each other become one."""
    pair = _near(now, op, draw)
    return pair and changed(now, pair, [now.groups[pair[0]].stored | now.groups[pair[1]].stored], now.fused)


def shift(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """A stored op moves to a group near its own."""
    pair = _near(now, op, draw)
    if pair is None:
        return None
    home, other = (now.groups[number].stored for number in pair)
    return changed(now, pair, [home & ~(1 << op), other | 1 << op], now.fused)


def split(now: Grouping, op: int, draw: Draw) -> Grouping | None:
    """A group falls into two: one op and the others, or any two parts."""
    if now.fused >> op & 1:
        return None
    home = now.group_of(op)
    stored = now.groups[home].stored
    if not stored & (stored - 1):
        return None
    part = 1 << op if draw.unit() < 0.5 else sum(1 << other for other in bits(stored) if draw.unit() < 0.5)
    return changed(now, [home], [part, stored & ~part], now.fused)


def _near(now: Grouping, op: int, draw: Draw) -> tuple[int, int] | None:
    """The group of a stored op and another one with an op that is near it."""
    if now.fused >> op & 1:
        return None
    others = [other for other in now.wiring.alike[op] if not now.fused >> other & 1]
    if not others:
        return None
    home, other = now.group_of(op), now.group_of(others[draw.below(len(others))])
    return None if home == other else (home, other)


def _any(now: Grouping, draw: Draw) -> int:
    return [*now.groups][draw.below(len(now.groups))]


STORED_MOVES: tuple[tuple[float, Move], ...] = ((0.4, fuse), (0.55, absorb), (0.68, merge), (0.8, shift), (1.0, split))


def propose(now: Grouping, draw: Draw) -> Grouping | None:
    """A random move; None where it cannot be made."""
    op = draw.below(now.wiring.workload.num_ops)
    if now.fused >> op & 1:
        return store(now, op, draw)
    chance = draw.unit()
    return next(move for most, move in STORED_MOVES if chance < most)(now, op, draw)
