"""An instance as a pairwise model. Hyperedges become variables whose states are the tuples that are possible; parallel
tables are added, and a table that is a sum of a row and a column goes into the unaries.

Shape legend: V variables, S states of all variables, E edges, C entries of all tables, N nodes of the instance.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables
from graphopt.core.graph import F64, I64
from graphopt.core.utils.compiled import njit


class Pairwise(NamedTuple):
    """sum of unary[state of v] over variables and of table[state of u, state of v] over edges; inf: impossible."""

    ptr: I64  # [V+1] states of variable v are ptr[v] .. ptr[v+1]-1
    unary: F64  # [S]
    first: I64  # [E] variables of an edge, first < second
    second: I64  # [E]
    table_ptr: I64  # [E+1]
    table: F64  # [C] row-major
    owner: I64  # [N] the variable that decides the strategy of node n
    map_ptr: I64  # [N+1]
    map: I64  # strategy of node n for every state of its variable

    @property
    def counts(self) -> I64:
        return np.diff(self.ptr)

    def choice(self, labels: I64) -> I64:
        """[N] strategies that states [V] stand for."""
        chosen: I64 = self.map[self.map_ptr[:-1] + labels[self.owner]]
        return chosen

    def energy(self, labels: I64) -> float:
        """The cost of states [V]."""
        entries = labels[self.first] * self.counts[self.second] + labels[self.second]
        return float(self.unary[self.ptr[:-1] + labels].sum() + self.table[self.table_ptr[:-1] + entries].sum())

    def labels(self, choice: I64) -> I64:
        """[V] states that stand for strategies [N]; where there is none, the first of those with most agreement."""
        agree = _agreement(self, choice)
        return np.array(
            [int(np.argmax(agree[a:b])) for a, b in zip(self.ptr[:-1], self.ptr[1:], strict=True)], np.int64
        )


class Empty(Exception):
    """No assignment is possible."""


def pairwise(tables: StrategyTables, impossible: float | None) -> Pairwise:
    """The instance as it is. impossible: the cost of impossible entries; None: their own."""
    cost, table = tables.cost.astype(np.float64), tables.table.astype(np.float64)
    if impossible is not None:
        cost[tables.cost >= IMPOSSIBLE] = impossible
        table[tables.table >= IMPOSSIBLE] = impossible
    arity, counts = np.diff(tables.edge_ptr), tables.counts.copy()
    for e in np.flatnonzero(arity == 1):
        n = int(tables.edge_node[tables.edge_ptr[e]])
        cost[tables.ptr[n] : tables.ptr[n + 1]] += table[tables.table_ptr[e] : tables.table_ptr[e + 1]]
    two = np.flatnonzero(arity == 2)
    first, second = tables.edge_node[tables.edge_ptr[two]], tables.edge_node[tables.edge_ptr[two] + 1]
    parts = [table[tables.table_ptr[e] : tables.table_ptr[e + 1]] for e in two]
    for e in np.flatnonzero(arity > 2):
        nodes = tables.edge_node[tables.edge_ptr[e] : tables.edge_ptr[e + 1]]
        costs = table[tables.table_ptr[e] : tables.table_ptr[e + 1]]
        possible = np.flatnonzero(np.isfinite(costs))
        if not len(possible):
            raise Empty
        states = np.unravel_index(possible, tuple(tables.counts[nodes]))
        for n, state in zip(nodes, states, strict=True):
            link = np.full((tables.counts[n], len(possible)), np.inf)
            link[state, np.arange(len(possible))] = 0.0
            parts.append(link.ravel())
            first, second = np.append(first, n), np.append(second, len(counts))
        counts, cost = np.append(counts, len(possible)), np.append(cost, costs[possible])
    identity = np.arange(tables.ptr[-1]) - np.repeat(tables.ptr[:-1], tables.counts)
    raw = Pairwise(pointer(counts), cost, first, second, pointer([len(part) for part in parts]),
                   np.concatenate([np.zeros(0), *parts]), np.arange(tables.num_nodes), tables.ptr,
                   identity)  # fmt: skip
    return rebuilt(raw, np.arange(len(counts)), raw.ptr, np.arange(len(cost)) - np.repeat(raw.ptr[:-1], counts))


def pointer(lengths: NDArray[np.int64] | list[int]) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64), dtype=np.int64)])


def rebuilt(model: Pairwise, root: I64, map_ptr: I64, maps: I64) -> Pairwise:
    """root: [V] the variable that each becomes a part of; maps: its state for each new state of that."""
    size = np.diff(map_ptr)
    roots = np.flatnonzero(root == np.arange(len(root)))
    new_id = np.full(len(root), -1, np.int64)
    new_id[roots] = np.arange(len(roots))
    ptr, of = pointer(size[roots]), new_id[root]
    u, v = of[model.first], of[model.second]
    low, high = np.minimum(u, v), np.maximum(u, v)
    inside = u == v
    keys, place = np.unique(np.where(inside, -1, low * len(roots) + high), return_inverse=True)
    if len(keys) and keys[0] == -1:
        keys, place = keys[1:], place - 1
    first, second = keys // max(len(roots), 1), keys % max(len(roots), 1)
    counts = np.diff(ptr)
    table_ptr = pointer(counts[first] * counts[second])
    node_ptr, node_map = _node_maps(model, map_ptr, maps)
    new = Pairwise(ptr, np.zeros(int(ptr[-1])), first, second, table_ptr, np.zeros(int(table_ptr[-1])),
                   of[model.owner], node_ptr, node_map)  # fmt: skip
    _add_up(model, of, map_ptr, maps, place, new)
    kept = ~_separated(new)
    lengths = np.diff(table_ptr)
    return new._replace(first=first[kept], second=second[kept], table_ptr=pointer(lengths[kept]),
                        table=new.table[np.repeat(kept, lengths)])  # fmt: skip


def incidence(model: Pairwise) -> tuple[I64, I64]:
    """CSR (ptr [V+1], edge) of the edges of every variable."""
    ends = np.concatenate([model.first, model.second])
    order = np.argsort(ends, kind="stable")
    return np.searchsorted(ends[order], np.arange(len(model.ptr))), order % max(len(model.first), 1)


@njit(cache=True, nogil=True)
def _agreement(m: Pairwise, choice: I64) -> I64:
    """[S] nodes that take the strategy of `choice` [N] in each state."""
    agree = np.zeros(len(m.unary), np.int64)
    for n in range(len(m.owner)):
        for s in range(m.map_ptr[n + 1] - m.map_ptr[n]):
            agree[m.ptr[m.owner[n]] + s] += m.map[m.map_ptr[n] + s] == choice[n]
    return agree


@njit(cache=True, nogil=True)
def _add_up(m: Pairwise, of: I64, map_ptr: I64, maps: I64, place: I64, new: Pairwise) -> None:
    """Writes unaries and tables of a new model. of: [V] the new variable of each, map_ptr, maps: its state for every
    state of that; place: [E] the new table of each edge."""
    for v in range(len(m.ptr) - 1):
        for s in range(map_ptr[v + 1] - map_ptr[v]):
            new.unary[new.ptr[of[v]] + s] += m.unary[m.ptr[v] + maps[map_ptr[v] + s]]
    for e in range(len(m.first)):
        u, v = m.first[e], m.second[e]
        row = m.ptr[v + 1] - m.ptr[v]
        ru, rv = of[u], of[v]
        nu, nv = new.ptr[ru + 1] - new.ptr[ru], new.ptr[rv + 1] - new.ptr[rv]
        if ru == rv:
            for s in range(nu):
                entry = m.table_ptr[e] + maps[map_ptr[u] + s] * row + maps[map_ptr[v] + s]
                new.unary[new.ptr[ru] + s] += m.table[entry]
            continue
        to = new.table_ptr[place[e]]
        step_u, step_v = (nv, 1) if ru < rv else (1, nu)
        for a in range(nu):
            at = m.table_ptr[e] + maps[map_ptr[u] + a] * row
            for b in range(nv):
                new.table[to + a * step_u + b * step_v] += m.table[at + maps[map_ptr[v] + b]]


@njit(cache=True, nogil=True)
def _separated(m: Pairwise) -> NDArray[np.bool_]:
    """[E] tables that are sums of a row and a column; these are added to the unaries."""
    gone = np.zeros(len(m.first), np.bool_)
    for e in range(len(m.first)):
        u, v, t = m.ptr[m.first[e]], m.ptr[m.second[e]], m.table_ptr[e]
        nu, nv = m.ptr[m.first[e] + 1] - u, m.ptr[m.second[e] + 1] - v
        plain = True
        if nu > 1 and nv > 1:
            for a in range(nu):
                for b in range(nv):
                    here = m.table[t + a * nv + b]
                    if not here < np.inf or here != m.table[t + a * nv] + m.table[t + b] - m.table[t]:
                        plain = False
                        break
                if not plain:
                    break
        gone[e] = plain
        if plain and nv == 1:
            for a in range(nu):
                m.unary[u + a] += m.table[t + a]
        elif plain and nu == 1:
            for b in range(nv):
                m.unary[v + b] += m.table[t + b]
        elif plain:
            for a in range(nu):
                m.unary[u + a] += m.table[t + a * nv]
            for b in range(nv):
                m.unary[v + b] += m.table[t + b] - m.table[t]
    return gone


@njit(cache=True, nogil=True)
def _node_maps(m: Pairwise, map_ptr: I64, maps: I64) -> tuple[I64, I64]:
    """(ptr [N+1], strategies) of nodes for the states of their variable's new root."""
    ptr = np.zeros(len(m.owner) + 1, np.int64)
    for n in range(len(m.owner)):
        ptr[n + 1] = ptr[n] + map_ptr[m.owner[n] + 1] - map_ptr[m.owner[n]]
    out = np.zeros(ptr[-1], np.int64)
    for n in range(len(m.owner)):
        for s in range(ptr[n + 1] - ptr[n]):
            out[ptr[n] + s] = m.map[m.map_ptr[n] + maps[map_ptr[m.owner[n]] + s]]
    return ptr, out
