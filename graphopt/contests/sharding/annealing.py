"""Simulated annealing of a pairwise model: one variable at a time takes a state by its Boltzmann weight (a heat bath).

Where interactions are dense, regions solved exactly are small and see little; a move here costs one pass over the
neighbours of a variable, since the costs of all states are kept. Moves that memory has no room for are refused.

Shape legend: V variables, S states, P times.
"""

from typing import NamedTuple

import numpy as np

from graphopt.contests.sharding.memory_profile import MemoryProfile, add, segment_tree
from graphopt.contests.sharding.pairwise import Pairwise
from graphopt.contests.sharding.region_walk import softened
from graphopt.contests.sharding.regions import Adjacency, State, below, links, uniform
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit


class Annealed(NamedTuple):
    """Arrays that change. cost: [2] of labels, of best. score: [S] the cost of each state of a variable beside the
    others'. weight: scratch. least, pending: the free memory, a segment tree."""

    labels: I64  # [V]
    best: I64  # [V] the cheapest that were seen
    cost: F64
    score: F64
    weight: F64
    least: F64
    pending: F64


class HeatBath:
    """The state of an annealing; `begin` starts one."""

    def __init__(self, model: Pairwise, memory: MemoryProfile) -> None:
        self.memory, self.link, self.free = memory, links(model), np.flatnonzero(model.counts > 1)
        self.model = model._replace(unary=softened(model.unary), table=softened(model.table))

    def begin(self, labels: I64) -> None:
        """From labels [V] that fit, at the mean over variables of a middling state's cost less the best."""
        model = self.model
        least, pending = segment_tree(self.memory.room - self.memory.used(labels))
        self.now = Annealed(labels.copy(), labels.copy(), np.full(2, model.energy(labels)), np.zeros(len(model.unary)),
                            np.zeros(int(model.counts.max(initial=1))), least, pending)  # fmt: skip
        _score(model, self.link, labels, self.now.score)
        parts = [self.now.score[model.ptr[v] : model.ptr[v + 1]] for v in self.free]
        self.hottest = float(np.mean([np.median(part) - part.min() for part in parts])) if parts else 0.0

    def go(self, share: float, visits: int, seed: int) -> None:
        """So many visits at this share of the first temperature."""
        if len(self.free) and self.hottest > 0.0:
            _anneal(self.model, self.link, self.memory, self.now, self.free, share * self.hottest, visits, seed)


@njit(cache=True, nogil=True)
def _score(model: Pairwise, link: Adjacency, labels: I64, score: F64) -> None:
    for v in range(len(model.ptr) - 1):
        for s in range(model.ptr[v + 1] - model.ptr[v]):
            cost = model.unary[model.ptr[v] + s]
            for k in range(link.ptr[v], link.ptr[v + 1]):
                cost += model.table[link.start[k] + s * link.own_step[k] + labels[link.other[k]] * link.other_step[k]]
            score[model.ptr[v] + s] = cost


@njit(cache=True, nogil=True)
def _anneal(model: Pairwise, link: Adjacency, memory: MemoryProfile, now: Annealed, free: I64, temperature: float,
            visits: int, seed: int) -> None:  # fmt: skip
    state = np.array([seed], np.uint64)
    for _ in range(visits):
        v = free[below(state, len(free))]
        first, old = model.ptr[v], now.labels[v]
        new = _drawn(now, first, model.ptr[v + 1] - first, temperature, state)
        if new == old:
            continue
        _move_memory(memory, now, v, old, new)
        if now.least[1] < 0.0:
            _move_memory(memory, now, v, new, old)
            continue
        now.cost[0] += now.score[first + new] - now.score[first + old]
        now.labels[v] = new
        for k in range(link.ptr[v], link.ptr[v + 1]):
            other, step = model.ptr[link.other[k]], link.other_step[k]
            here, there = link.start[k] + new * link.own_step[k], link.start[k] + old * link.own_step[k]
            for s in range(model.ptr[link.other[k] + 1] - other):
                now.score[other + s] += model.table[here + s * step] - model.table[there + s * step]
        if now.cost[0] < now.cost[1]:
            now.cost[1] = now.cost[0]
            now.best[:] = now.labels


@njit(cache=True, nogil=True)
def _drawn(now: Annealed, first: int, count: int, temperature: float, state: State) -> int:
    """A state by its Boltzmann weight."""
    least, total = np.inf, 0.0
    for s in range(count):
        least = min(least, now.score[first + s])
    for s in range(count):
        now.weight[s] = np.exp((least - now.score[first + s]) / temperature)
        total += now.weight[s]
    left = uniform(state) * total
    for s in range(count):
        left -= now.weight[s]
        if left < 0.0:
            return s
    return count - 1


@njit(cache=True, nogil=True)
def _move_memory(memory: MemoryProfile, now: Annealed, v: int, old: int, new: int) -> None:
    for k in range(memory.ptr[v], memory.ptr[v + 1]):
        more = memory.use[memory.use_ptr[k] + new] - memory.use[memory.use_ptr[k] + old]
        if more != 0.0:
            add(now.least, now.pending, memory.low[k], memory.high[k], -more)
