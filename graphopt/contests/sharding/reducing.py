"""An instance as the smallest pairwise model that still has an optimum of it, within its memory. States that some
neighbour cannot go with are removed (arc consistency), and so are dominated ones. A variable that another one
determines becomes part of it.

Shape legend: V variables, S states of all variables, E edges, C entries of all tables, N nodes of the instance.
"""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.contests.sharding.memory_profile import MemoryProfile, memory_profile, roomy
from graphopt.contests.sharding.pairwise import Empty, Pairwise, incidence, pairwise, pointer, rebuilt
from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit

ROUNDS = 12
WORTH = 0.99  # of the states before: a round that leaves more is the last
GROWTH = 200_000  # entries that a contraction may add
MOST_PAIRS = 4_000_000  # entries compared in the search for dominated states of one variable


@lru_cache(maxsize=8)
def reduced(tables: StrategyTables) -> Pairwise:
    """Without states that no state of a neighbour goes with, that no memory is left for, or that others dominate, and
    without variables that others determine. Where no assignment is possible, impossible entries keep their costs."""
    try:
        return closed(pairwise(tables, np.inf), tables)
    except Empty:
        pass
    try:
        return closed(pairwise(tables, None), tables)
    except Empty:  # not even the least fits into the memory
        return pairwise(tables, None)


def closed(model: Pairwise, tables: StrategyTables) -> Pairwise:
    """A model after all reductions. Raises Empty where nothing is possible."""
    for _ in range(ROUNDS):
        before = len(model.unary)
        model = within_memory(model, memory_profile(model, tables))
        model = without_dominated(contracted(model, consistent(model)), tables)
        if len(model.unary) > WORTH * before:
            return model
    return model


def within_memory(model: Pairwise, memory: MemoryProfile) -> Pairwise:
    """Without states that do not fit beside the least of all others."""
    return model._replace(unary=np.where(roomy(model, memory), model.unary, np.inf))


def without_dear(model: Pairwise, unary: F64, table: F64, gap: float) -> Pairwise:
    """Without states that cannot be part of an answer that is better than the best known. unary, table: an equal model
    whose least parts sum to a bound; gap: how far the best known is above that."""
    least = np.minimum.reduceat(unary, model.ptr[:-1])
    dear: NDArray[np.bool_] = unary - np.repeat(least, model.counts) >= gap
    new = np.where(dear, np.inf, model.unary)
    if not len(table):
        return model._replace(unary=new)
    least = np.minimum.reduceat(table, model.table_ptr[:-1])
    dear = table - np.repeat(least, np.diff(model.table_ptr)) >= gap
    return model._replace(unary=new, table=np.where(dear, np.inf, model.table))


def consistent(model: Pairwise) -> NDArray[np.bool_]:
    """[S] states that are possible and go with some state of every neighbour. Raises Empty where none is left."""
    keep = np.isfinite(model.unary)
    while _prune(model, keep):
        pass
    if (np.add.reduceat(keep, model.ptr[:-1]) == 0).any():
        raise Empty
    return keep


def contracted(model: Pairwise, keep: NDArray[np.bool_]) -> Pairwise:
    """With the states of `keep` [S] alone, and every variable that another determines made a part of it."""
    parent, link_ptr, link = _determined(model, keep, GROWTH)
    root, map_ptr, maps = _composed(model.ptr, keep, parent, link_ptr, link)
    return rebuilt(model, root, map_ptr, maps)


def without_dominated(model: Pairwise, tables: StrategyTables) -> Pairwise:
    """Without dominated states (Goldstein's criterion for dead ends). In the place of such a state another of the
    variable is never worse, for any states of the others. The other one uses no more memory at any time."""
    members = np.argsort(model.owner, kind="stable")
    member_ptr = np.searchsorted(model.owner[members], np.arange(len(model.ptr)))
    edge_ptr, edges = incidence(model)
    nodes = Nodes(member_ptr, members, tables.ptr, tables.usage, tables.clock.first < tables.clock.last)
    keep = _undominated(model, edge_ptr, edges, nodes, MOST_PAIRS)
    if keep.all():
        return model
    counts = np.add.reduceat(keep, model.ptr[:-1]).astype(np.int64)
    states = np.flatnonzero(keep) - np.repeat(model.ptr[:-1], counts)
    return rebuilt(model, np.arange(len(counts)), pointer(counts), states)


class Nodes(NamedTuple):
    """Nodes of every variable: member[ptr[v]] .. member[ptr[v+1]-1]. strategies: [N+1] where those of each begin in
    usage; lives: [N] whether it uses memory at any time."""

    ptr: I64  # [V+1]
    member: I64  # [N]
    strategies: I64
    usage: I64
    lives: NDArray[np.bool_]


@njit(cache=True, nogil=True)
def _prune(m: Pairwise, keep: NDArray[np.bool_]) -> bool:
    """Removes states without a partner; whether there were any."""
    changed = False
    for e in range(len(m.first)):
        row, t = m.ptr[m.second[e] + 1] - m.ptr[m.second[e]], m.table_ptr[e]
        for way in range(2):
            u, v = (m.first[e], m.second[e]) if way == 0 else (m.second[e], m.first[e])
            step_u, step_v = (row, 1) if way == 0 else (1, row)
            for a in range(m.ptr[u + 1] - m.ptr[u]):
                if keep[m.ptr[u] + a]:
                    found = False
                    for b in range(m.ptr[v + 1] - m.ptr[v]):
                        if keep[m.ptr[v] + b] and m.table[t + a * step_u + b * step_v] < np.inf:
                            found = True
                            break
                    if not found:
                        keep[m.ptr[u] + a], changed = False, True
    return changed


@njit(cache=True, nogil=True)
def _determined(m: Pairwise, keep: NDArray[np.bool_], growth: int) -> tuple[I64, I64, I64]:
    """parent [V]: the variable that determines each, or -1; link: its state for every state of that, or -1."""
    ptr, first, second, table_ptr, table = m.ptr, m.first, m.second, m.table_ptr, m.table
    variables = len(ptr) - 1
    count, around = np.zeros(variables, np.int64), np.zeros(variables, np.int64)
    for v in range(variables):
        for s in range(ptr[v], ptr[v + 1]):
            count[v] += keep[s]
    for e in range(len(first)):
        around[first[e]] += count[second[e]]
        around[second[e]] += count[first[e]]
    parent, by = np.full(variables, -1), np.full(variables, -1)
    for sweep in range(2):  # bijections first: they make nothing larger
        for e in range(len(first)):
            for way in range(2):
                u, v = (first[e], second[e]) if way == 0 else (second[e], first[e])
                if parent[v] >= 0 or count[u] < count[v] or (sweep == 0) != (count[u] == count[v]):
                    continue
                if (count[u] - count[v]) * around[v] > growth:
                    continue
                top = u
                while parent[top] >= 0:
                    top = parent[top]
                if top == v or (count[top] - count[v]) * around[v] > growth:
                    continue
                row = ptr[second[e] + 1] - ptr[second[e]]
                step_u, step_v = (row, 1) if way == 0 else (1, row)
                single = True
                for a in range(ptr[u + 1] - ptr[u]):
                    if keep[ptr[u] + a]:
                        partners = 0
                        for b in range(ptr[v + 1] - ptr[v]):
                            if keep[ptr[v] + b] and table[table_ptr[e] + a * step_u + b * step_v] < np.inf:
                                partners += 1
                        if partners > 1:
                            single = False
                            break
                if single:
                    parent[v], by[v] = u, e
                    around[top] += around[v]
    link_ptr = np.zeros(variables + 1, np.int64)
    for v in range(variables):
        size = ptr[parent[v] + 1] - ptr[parent[v]] if parent[v] >= 0 else 0
        link_ptr[v + 1] = link_ptr[v] + size
    link = np.full(link_ptr[-1], -1)
    for v in range(variables):
        if parent[v] >= 0:
            u, e = parent[v], by[v]
            row = ptr[second[e] + 1] - ptr[second[e]]
            step_u, step_v = (row, 1) if u == first[e] else (1, row)
            for a in range(ptr[u + 1] - ptr[u]):
                for b in range(ptr[v + 1] - ptr[v]):
                    if keep[ptr[u] + a] and keep[ptr[v] + b] and table[table_ptr[e] + a * step_u + b * step_v] < np.inf:
                        link[link_ptr[v] + a] = b
    return parent, link_ptr, link


@njit(cache=True, nogil=True)
def _composed(ptr: I64, keep: NDArray[np.bool_], parent: I64, link_ptr: I64, link: I64) -> tuple[I64, I64, I64]:
    """(root [V], map_ptr [V+1], map): the state of every variable for each kept state of its root."""
    variables = len(ptr) - 1
    count, root = np.zeros(variables, np.int64), np.zeros(variables, np.int64)
    for v in range(variables):
        for s in range(ptr[v], ptr[v + 1]):
            count[v] += keep[s]
        root[v] = v
        while parent[root[v]] >= 0:
            root[v] = parent[root[v]]
    map_ptr = np.zeros(variables + 1, np.int64)
    for v in range(variables):
        map_ptr[v + 1] = map_ptr[v] + count[root[v]]
    maps = np.zeros(map_ptr[-1], np.int64)
    chain = np.zeros(variables, np.int64)
    for v in range(variables):
        length, here = 0, v
        while parent[here] >= 0:
            chain[length] = here
            length += 1
            here = parent[here]
        place = map_ptr[v]
        for s in range(ptr[here + 1] - ptr[here]):
            if keep[ptr[here] + s]:
                state = s
                for i in range(length - 1, -1, -1):
                    state = link[link_ptr[chain[i]] + state]
                maps[place] = state
                place += 1
    return root, map_ptr, maps


@njit(cache=True, nogil=True)
def _undominated(m: Pairwise, edge_ptr: I64, edges: I64, nodes: Nodes, most: int) -> NDArray[np.bool_]:
    """[S] states that stay. Variables are looked at one after the other, so no two states remove each other."""
    keep = np.ones(len(m.unary), np.bool_)
    for v in range(len(m.ptr) - 1):
        n = m.ptr[v + 1] - m.ptr[v]
        width = nodes.ptr[v + 1] - nodes.ptr[v]
        for i in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[i]
            width += (m.table_ptr[e + 1] - m.table_ptr[e]) // n
        if n == 1 or n * n * width > most:
            continue
        for s in range(n):
            for o in range(n):
                if o != s and keep[m.ptr[v] + o] and _dominates(v, o, s, m, edge_ptr, edges, nodes):
                    keep[m.ptr[v] + s] = False
                    break
    return keep


@njit(cache=True, nogil=True)
def _dominates(v: int, o: int, s: int, m: Pairwise, edge_ptr: I64, edges: I64, nodes: Nodes) -> bool:
    """Whether state o of v is never worse than state s."""
    left = m.unary[m.ptr[v] + s] - m.unary[m.ptr[v] + o]
    if left < 0 and edge_ptr[v] == edge_ptr[v + 1]:
        return False
    for i in range(nodes.ptr[v], nodes.ptr[v + 1]):
        n = nodes.member[i]
        uses = nodes.strategies[n]
        if nodes.lives[n] and nodes.usage[uses + m.map[m.map_ptr[n] + o]] > nodes.usage[uses + m.map[m.map_ptr[n] + s]]:
            return False
    for i in range(edge_ptr[v], edge_ptr[v + 1]):
        e = edges[i]
        own_first, t = m.first[e] == v, m.table_ptr[e]
        other = m.second[e] if own_first else m.first[e]
        n, row = m.ptr[other + 1] - m.ptr[other], m.ptr[m.second[e] + 1] - m.ptr[m.second[e]]
        least = np.inf
        for x in range(n):
            a = m.table[t + (s * row + x if own_first else x * row + s)]
            b = m.table[t + (o * row + x if own_first else x * row + o)]
            if a < np.inf:
                least = min(least, a - b)
        left += least
        if not left > -np.inf:
            return False
    return bool(left >= 0)
