"""A walk over labels of a pairwise model. Regions are solved exactly beside their neighbours, at the price that memory
has or at none. Labels that cost less and fit are taken.

Shape legend: V variables, S states, P times.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.memory_profile import MemoryProfile, add, segment_tree
from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.contests.sharding.regions import (
    Adjacency,
    Space,
    State,
    below,
    grow,
    leave,
    links,
    solve_region,
    space,
    uniform,
)
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit

BROKEN = 1e15  # the cost of an impossible entry for labels that have one: more than all others, and sums are exact
AT_PRICE = 0.8  # share of priced regions at the price itself; others: up to half of it more or less
SIZES = np.array([1, 2, 4, 8, 14, 24, 40, 60])  # of regions
WORK_OF_A_VARIABLE = 20  # beside its states: the cost of solving a region, in states looked at


class Moving(NamedTuple):
    """Arrays that change during a walk."""

    labels: I64  # [V]
    best: I64  # [V] the cheapest that fit
    cost: F64  # [3] of labels, of best, how much labels are over the room at worst
    least: F64  # the free memory, a segment tree
    pending: F64
    fails: I64  # [V] regions grown from a variable without success since something changed near it
    gain: F64  # [2, sizes] the gain of each size
    spent: F64  # [2, sizes] and its work, in states looked at


class RegionWalk:
    """The state of a walk. unpriced: share of regions that are solved as if memory had no price."""

    def __init__(
        self, model: Pairwise, memory: MemoryProfile, labels: I64, entries: int, unpriced: float = 0.5
    ) -> None:
        self.model, self.memory, self.entries, self.unpriced = model, memory, entries, unpriced
        counts = model.counts
        self.free = counts > 1
        self.link = links(model)
        self.work = space(len(counts), int(counts.max(initial=1)), entries)
        self.soft = model._replace(unary=softened(model.unary), table=softened(model.table))
        least, pending = segment_tree(memory.room)
        self.moving = Moving(labels.copy(), labels.copy(), np.zeros(3), least, pending, np.zeros(len(counts), np.int64),
                             np.zeros((2, len(SIZES))), np.zeros((2, len(SIZES))))  # fmt: skip
        self.begin(labels)

    @property
    def best_cost(self) -> float:
        """Of the cheapest labels that are possible and fit; inf where there were none."""
        return float(self.moving.cost[1]) if self.moving.cost[1] < BROKEN else np.inf

    def begin(self, labels: I64) -> None:
        """Goes on from other labels [V], and forgets the best."""
        m, cost = self.moving, self.soft.energy(labels)
        m.labels[:], m.best[:], m.fails[:] = labels, labels, 0
        m.least[:], m.pending[:] = segment_tree(self.memory.room - self.memory.used(labels))
        over = max(0.0, -float(m.least[1]))
        m.cost[:] = cost, cost if over == 0 else np.inf, over

    def go(self, unary: F64, table: F64, paid: F64, proposals: int, seed: int) -> int:
        """So many regions; returns how many changed something. unary, table: an equal model in which memory has its
        price; paid [S]: the part of unary that is for memory."""
        seeds = np.flatnonzero(self.free)
        if not len(seeds):
            return 0
        if self.moving.cost[0] >= BROKEN:
            unary, table = softened(unary), softened(table)
        return int(_walk(self.soft, self.memory, self.moving, self.link, self.work, self.free, seeds, unary, table,
                         paid, proposals, self.entries, seed, self.unpriced))  # fmt: skip


def softened(costs: F64) -> F64:
    """With impossible ones as numbers."""
    return np.where(costs < np.inf, costs, BROKEN)


@njit(cache=True, nogil=True)
def _walk(model: Pairwise, memory: MemoryProfile, m: Moving, link: Adjacency, w: Space, free: NDArray[np.bool_],
          seeds: I64, unary: F64, table: F64, paid: F64, proposals: int, entries: int, seed: int,
          unpriced: float) -> int:  # fmt: skip
    state, changes = np.array([seed], np.uint64), 0
    for _ in range(proposals):
        mode = int(uniform(state) >= 1.0 - unpriced)
        z = _size(m, mode, state)
        n = grow(_seed(m, seeds, state), SIZES[z], w, free, link, 0.3 + 0.7 * uniform(state), state)
        before = m.cost[0]
        looked_at = 0
        for i in range(n):
            looked_at += model.ptr[w.region[i] + 1] - model.ptr[w.region[i]]
        if m.cost[2] > 0.0:
            mode = 0
        weight = -1.0 if mode == 1 else (0.0 if m.cost[2] > 0.0 or uniform(state) < AT_PRICE else uniform(state) - 0.5)
        solve_region(n, w, model.ptr, unary, paid, weight, table, link, m.labels, entries)
        first = w.region[0]
        taken = _take(n, model, memory, m, link, w, mode == 0)
        leave(n, w)
        m.spent[mode, z] = 0.999 * m.spent[mode, z] + looked_at + WORK_OF_A_VARIABLE * n
        m.gain[mode, z] = 0.999 * m.gain[mode, z] + max(0.0, before - m.cost[0])
        if taken:
            changes += 1
            for i in range(n):
                m.fails[w.region[i]] = 0
                for k in range(link.ptr[w.region[i]], link.ptr[w.region[i] + 1]):
                    m.fails[link.other[k]] = 0
        else:
            m.fails[first] += 1
    return changes


@njit(cache=True, nogil=True)
def _seed(m: Moving, seeds: I64, state: State) -> int:
    """Of three, the one that has failed least."""
    v: int = seeds[below(state, len(seeds))]
    for _ in range(2):
        o = seeds[below(state, len(seeds))]
        if m.fails[o] < m.fails[v]:
            v = o
    return v


@njit(cache=True, nogil=True)
def _size(m: Moving, mode: int, state: State) -> int:
    """Mostly the size that wins most for its work."""
    sizes = m.gain.shape[1]
    if uniform(state) < 0.5:
        return below(state, sizes)
    best, most = below(state, sizes), 0.0
    for z in range(sizes):
        rate = m.gain[mode, z] / max(m.spent[mode, z], 1.0)
        if rate > most:
            best, most = z, rate
    return best


@njit(cache=True, nogil=True)
def _take(n: int, model: Pairwise, memory: MemoryProfile, m: Moving, link: Adjacency, w: Space,
          priced: bool) -> bool:  # fmt: skip
    """Makes the region's answer the labels if it fits and is wanted; whether it did."""
    changed = False
    for i in range(n):
        changed |= w.found[i] != m.labels[w.region[i]]
    if not changed:
        return False
    change = _cost_change(n, model, m, link, w)
    if not priced and change >= 0.0 and m.cost[2] == 0.0:
        return False
    _move_memory(n, memory, m, w, 1.0)
    over = max(0.0, -m.least[1])
    if over > m.cost[2]:
        _move_memory(n, memory, m, w, -1.0)
        return False
    for i in range(n):
        m.labels[w.region[i]] = w.found[i]
    m.cost[0] += change
    m.cost[2] = over
    if over == 0.0 and m.cost[0] < m.cost[1]:
        m.cost[1] = m.cost[0]
        m.best[:] = m.labels
    return True


@njit(cache=True, nogil=True)
def _cost_change(n: int, model: Pairwise, m: Moving, link: Adjacency, w: Space) -> float:
    """Exact: all entries are whole numbers."""
    change = 0.0
    for i in range(n):
        v = w.region[i]
        new, old = w.found[i], m.labels[v]
        change += model.unary[model.ptr[v] + new] - model.unary[model.ptr[v] + old]
        for k in range(link.ptr[v], link.ptr[v + 1]):
            o, t = link.other[k], link.start[k]
            j = w.place[o]
            if j > i or j < 0:
                there = m.labels[o] if j < 0 else w.found[j]
                change += model.table[t + new * link.own_step[k] + there * link.other_step[k]]
                change -= model.table[t + old * link.own_step[k] + m.labels[o] * link.other_step[k]]
    return change


@njit(cache=True, nogil=True)
def _move_memory(n: int, memory: MemoryProfile, m: Moving, w: Space, sign: float) -> None:
    for i in range(n):
        v = w.region[i]
        if w.found[i] != m.labels[v]:
            for k in range(memory.ptr[v], memory.ptr[v + 1]):
                more = memory.use[memory.use_ptr[k] + w.found[i]] - memory.use[memory.use_ptr[k] + m.labels[v]]
                if more != 0.0:
                    add(m.least, m.pending, memory.low[k], memory.high[k], -sign * more)
