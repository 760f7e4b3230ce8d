"""An instance as a pairwise model, made smaller without losing an optimum.

Hyperedges become variables whose states are the tuples that are possible. Then, until nothing changes: states that
some neighbour cannot go with are removed (arc consistency); dominated ones as well; a variable that another one
determines becomes part of it; parallel tables are added; a table that is a sum of a row and a column goes into the
unaries.

Shape legend: V variables, S states of all variables, E edges, C entries of all tables, N nodes of the instance.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables
from graphopt.core.graph import F64, I64
from graphopt.utils.compiled import njit

GROWTH = 200_000  # entries that a contraction may add
MOST_PAIRS = 4_000_000  # entries compared in the search for dominated states of one variable


@dataclass(frozen=True, eq=False)
class Pairwise:
    """sum of unary[state of v] over variables and of table[state of u, state of v] over edges; inf: impossible."""

    ptr: I64  # [V+1] states of variable v are ptr[v] .. ptr[v+1]-1
    unary: F64  # [S]
    first: I64  # [E] variables of an edge, first < second
    second: I64  # [E]
    table_ptr: I64  # [E+1]
    table: F64  # [C] row-major
    owner: I64  # [N] the variable that says what node n takes
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
        """What states [V] cost."""
        entries = labels[self.first] * self.counts[self.second] + labels[self.second]
        return float(self.unary[self.ptr[:-1] + labels].sum() + self.table[self.table_ptr[:-1] + entries].sum())

    def labels(self, choice: I64) -> I64:
        """[V] states that stand for strategies [N]; where there is none, the first of those with most agreement."""
        agree = np.zeros(len(self.unary), np.int64)
        _agreement(self.owner, self.ptr, self.map_ptr, self.map, choice, agree)
        return np.array(
            [int(np.argmax(agree[a:b])) for a, b in zip(self.ptr[:-1], self.ptr[1:], strict=True)], np.int64
        )


class Empty(Exception):
    """No assignment is possible."""


def pairwise(tables: StrategyTables, impossible: float | None) -> Pairwise:
    """The instance as it is. impossible: what impossible entries cost; None: what they say."""
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
    raw = Pairwise(_pointer(counts), cost, first, second, _pointer([len(part) for part in parts]),
                   np.concatenate([np.zeros(0), *parts]), np.arange(tables.num_nodes), tables.ptr,
                   identity)  # fmt: skip
    return rebuilt(raw, np.arange(len(counts)), raw.ptr, np.arange(len(cost)) - np.repeat(raw.ptr[:-1], counts))


def _pointer(lengths: NDArray[np.int64] | list[int]) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.asarray(lengths, np.int64), dtype=np.int64)])


def consistent(model: Pairwise) -> NDArray[np.bool_]:
    """[S] states that are possible and go with some state of every neighbour. Raises Empty where none is left."""
    keep = np.isfinite(model.unary)
    while _prune(model.ptr, model.first, model.second, model.table_ptr, model.table, keep):
        pass
    if (np.add.reduceat(keep, model.ptr[:-1]) == 0).any():
        raise Empty
    return keep


def contracted(model: Pairwise, keep: NDArray[np.bool_]) -> Pairwise:
    """With the states of `keep` [S] alone, and every variable that another determines made a part of it."""
    parent, link_ptr, link = _determined(
        model.ptr, model.first, model.second, model.table_ptr, model.table, keep, GROWTH
    )
    root, map_ptr, maps = _composed(model.ptr, keep, parent, link_ptr, link)
    return rebuilt(model, root, map_ptr, maps)


def rebuilt(model: Pairwise, root: I64, map_ptr: I64, maps: I64) -> Pairwise:
    """root: [V] the variable that each becomes a part of; maps: its state for each new state of that."""
    size = np.diff(map_ptr)
    roots = np.flatnonzero(root == np.arange(len(root)))
    new_id = np.full(len(root), -1, np.int64)
    new_id[roots] = np.arange(len(roots))
    ptr, of = _pointer(size[roots]), new_id[root]
    unary = np.zeros(int(ptr[-1]))
    u, v = of[model.first], of[model.second]
    low, high = np.minimum(u, v), np.maximum(u, v)
    inside = u == v
    keys, place = np.unique(np.where(inside, -1, low * len(roots) + high), return_inverse=True)
    if len(keys) and keys[0] == -1:
        keys, place = keys[1:], place - 1
    first, second = keys // max(len(roots), 1), keys % max(len(roots), 1)
    counts = np.diff(ptr)
    table_ptr = _pointer(counts[first] * counts[second])
    table = np.zeros(int(table_ptr[-1]))
    _add_up(model.ptr, model.unary, model.first, model.second, model.table_ptr, model.table, of, map_ptr, maps, place,
            ptr, unary, table_ptr, table)  # fmt: skip
    plain = _separated(ptr, unary, first, second, table_ptr, table)
    first, second, table_ptr, table = _without(plain, first, second, table_ptr, table)
    node_ptr, node_map = _node_maps(model.owner, model.map_ptr, model.map, map_ptr, maps)
    return Pairwise(ptr, unary, first, second, table_ptr, table, of[model.owner], node_ptr, node_map)


def _without(gone: NDArray[np.bool_], first: I64, second: I64, table_ptr: I64, table: F64) -> tuple[I64, I64, I64, F64]:
    length = np.diff(table_ptr)
    return first[~gone], second[~gone], _pointer(length[~gone]), table[np.repeat(~gone, length)]


def without_dominated(model: Pairwise, tables: StrategyTables) -> Pairwise:
    """Without states in whose place another of their variable is never worse, whatever the others are, and uses no
    more of the memory at any time (Goldstein's criterion for dead ends)."""
    members = np.argsort(model.owner, kind="stable")
    member_ptr = np.searchsorted(model.owner[members], np.arange(len(model.ptr)))
    edge_ptr, edges = incidence(model)
    keep = _undominated(model.ptr, model.unary, model.first, model.second, model.table_ptr, model.table, edge_ptr,
                        edges,
                        member_ptr, members, model.map_ptr, model.map, tables.ptr, tables.usage, tables.clock.first,
                        tables.clock.last, MOST_PAIRS)  # fmt: skip
    if keep.all():
        return model
    counts = np.add.reduceat(keep, model.ptr[:-1]).astype(np.int64)
    states = np.flatnonzero(keep) - np.repeat(model.ptr[:-1], counts)
    return rebuilt(model, np.arange(len(counts)), _pointer(counts), states)


def incidence(model: Pairwise) -> tuple[I64, I64]:
    """CSR (ptr [V+1], edge) of the edges of every variable."""
    ends = np.concatenate([model.first, model.second])
    order = np.argsort(ends, kind="stable")
    return np.searchsorted(ends[order], np.arange(len(model.ptr))), order % max(len(model.first), 1)


def restricted(model: Pairwise, keep: NDArray[np.bool_]) -> Pairwise:
    """With the states of `keep` [S] alone, and what follows from that. Raises Empty where nothing is possible."""
    closed = replace(model, unary=np.where(keep, model.unary, np.inf))
    return contracted(closed, consistent(closed))


@njit(cache=True, nogil=True)
def _agreement(owner: I64, ptr: I64, map_ptr: I64, maps: I64, choice: I64, agree: I64) -> None:
    for n in range(len(owner)):
        for s in range(map_ptr[n + 1] - map_ptr[n]):
            agree[ptr[owner[n]] + s] += maps[map_ptr[n] + s] == choice[n]


@njit(cache=True, nogil=True)
def _prune(ptr: I64, first: I64, second: I64, table_ptr: I64, table: F64, keep: NDArray[np.bool_]) -> bool:
    """Removes states without a partner; whether there were any."""
    changed = False
    for e in range(len(first)):
        u, v = first[e], second[e]
        nu, nv = ptr[u + 1] - ptr[u], ptr[v + 1] - ptr[v]
        for a in range(nu):
            if keep[ptr[u] + a]:
                found = False
                for b in range(nv):
                    if keep[ptr[v] + b] and table[table_ptr[e] + a * nv + b] < np.inf:
                        found = True
                        break
                if not found:
                    keep[ptr[u] + a] = False
                    changed = True
        for b in range(nv):
            if keep[ptr[v] + b]:
                found = False
                for a in range(nu):
                    if keep[ptr[u] + a] and table[table_ptr[e] + a * nv + b] < np.inf:
                        found = True
                        break
                if not found:
                    keep[ptr[v] + b] = False
                    changed = True
    return changed


@njit(cache=True, nogil=True)
def _determined(ptr: I64, first: I64, second: I64, table_ptr: I64, table: F64, keep: NDArray[np.bool_],
                growth: int) -> tuple[I64, I64, I64]:  # fmt: skip
    """parent [V]: the variable that determines each, or -1; link: its state for every state of that, or -1."""
    variables = len(ptr) - 1
    count, around = np.zeros(variables, np.int64), np.zeros(variables, np.int64)
    for v in range(variables):
        for s in range(ptr[v], ptr[v + 1]):
            count[v] += keep[s]
    for e in range(len(first)):
        around[first[e]] += count[second[e]]
        around[second[e]] += count[first[e]]
    parent, by, one_to_one = np.full(variables, -1), np.full(variables, -1), False
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
                one_to_one = True
                for a in range(ptr[u + 1] - ptr[u]):
                    if keep[ptr[u] + a]:
                        partners = 0
                        for b in range(ptr[v + 1] - ptr[v]):
                            if keep[ptr[v] + b] and table[table_ptr[e] + a * step_u + b * step_v] < np.inf:
                                partners += 1
                        if partners > 1:
                            one_to_one = False
                            break
                if one_to_one:
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
def _add_up(ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64, of: I64, map_ptr: I64, maps: I64,
            place: I64, new_ptr: I64, new_unary: F64, new_table_ptr: I64, new_table: F64) -> None:  # fmt: skip
    for v in range(len(ptr) - 1):
        for s in range(map_ptr[v + 1] - map_ptr[v]):
            new_unary[new_ptr[of[v]] + s] += unary[ptr[v] + maps[map_ptr[v] + s]]
    for e in range(len(first)):
        u, v = first[e], second[e]
        row = ptr[v + 1] - ptr[v]
        ru, rv = of[u], of[v]
        nu, nv = new_ptr[ru + 1] - new_ptr[ru], new_ptr[rv + 1] - new_ptr[rv]
        if ru == rv:
            for s in range(nu):
                new_unary[new_ptr[ru] + s] += table[table_ptr[e] + maps[map_ptr[u] + s] * row + maps[map_ptr[v] + s]]
            continue
        to = new_table_ptr[place[e]]
        step_u, step_v = (nv, 1) if ru < rv else (1, nu)
        for a in range(nu):
            at = table_ptr[e] + maps[map_ptr[u] + a] * row
            for b in range(nv):
                new_table[to + a * step_u + b * step_v] += table[at + maps[map_ptr[v] + b]]


@njit(cache=True, nogil=True)
def _separated(ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64) -> NDArray[np.bool_]:
    """[E] tables that are sums of a row and a column; these are added to the unaries."""
    gone = np.zeros(len(first), np.bool_)
    for e in range(len(first)):
        u, v = first[e], second[e]
        nu, nv, t = ptr[u + 1] - ptr[u], ptr[v + 1] - ptr[v], table_ptr[e]
        if nu == 1 or nv == 1:
            for a in range(nu):
                if nv == 1:
                    unary[ptr[u] + a] += table[t + a]
            for b in range(nv):
                if nu == 1 and nv > 1:
                    unary[ptr[v] + b] += table[t + b]
            gone[e] = True
            continue
        plain = True
        for a in range(nu):
            for b in range(nv):
                here = table[t + a * nv + b]
                if not here < np.inf or here != table[t + a * nv] + table[t + b] - table[t]:
                    plain = False
                    break
            if not plain:
                break
        if plain:
            for a in range(nu):
                unary[ptr[u] + a] += table[t + a * nv]
            for b in range(nv):
                unary[ptr[v] + b] += table[t + b] - table[t]
        gone[e] = plain
    return gone


@njit(cache=True, nogil=True)
def _node_maps(owner: I64, map_ptr: I64, maps: I64, var_ptr: I64, var_maps: I64) -> tuple[I64, I64]:
    """Strategies of nodes for the states of their variable's new root."""
    ptr = np.zeros(len(owner) + 1, np.int64)
    for n in range(len(owner)):
        ptr[n + 1] = ptr[n] + var_ptr[owner[n] + 1] - var_ptr[owner[n]]
    out = np.zeros(ptr[-1], np.int64)
    for n in range(len(owner)):
        for s in range(ptr[n + 1] - ptr[n]):
            out[ptr[n] + s] = maps[map_ptr[n] + var_maps[var_ptr[owner[n]] + s]]
    return ptr, out


@njit(cache=True, nogil=True)
def _undominated(ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64, edge_ptr: I64, edges: I64,
                 member_ptr: I64, members: I64, map_ptr: I64, maps: I64, node_ptr: I64, usage: I64, starts: I64,
                 ends: I64, most: int) -> NDArray[np.bool_]:  # fmt: skip
    """[S] states that stay. Variables are looked at one after the other, so no two states remove each other."""
    keep = np.ones(len(unary), np.bool_)
    for v in range(len(ptr) - 1):
        n = ptr[v + 1] - ptr[v]
        width = member_ptr[v + 1] - member_ptr[v]
        for i in range(edge_ptr[v], edge_ptr[v + 1]):
            e = edges[i]
            width += (table_ptr[e + 1] - table_ptr[e]) // n
        if n == 1 or n * n * width > most:
            continue
        for s in range(n):
            for o in range(n):
                if o == s or not keep[ptr[v] + o]:
                    continue
                if _dominates(v, o, s, ptr, unary, first, second, table_ptr, table, edge_ptr, edges, member_ptr,
                              members, map_ptr, maps, node_ptr, usage, starts, ends):  # fmt: skip
                    keep[ptr[v] + s] = False
                    break
    return keep


@njit(cache=True, nogil=True)
def _dominates(v: int, o: int, s: int, ptr: I64, unary: F64, first: I64, second: I64, table_ptr: I64, table: F64,
               edge_ptr: I64, edges: I64, member_ptr: I64, members: I64, map_ptr: I64, maps: I64, node_ptr: I64,
               usage: I64, starts: I64, ends: I64) -> bool:  # fmt: skip
    """Whether state o of v is never worse than state s."""
    left = unary[ptr[v] + s] - unary[ptr[v] + o]
    if left < 0 and edge_ptr[v] == edge_ptr[v + 1]:
        return False
    for i in range(member_ptr[v], member_ptr[v + 1]):
        m = members[i]
        more = usage[node_ptr[m] + maps[map_ptr[m] + o]] > usage[node_ptr[m] + maps[map_ptr[m] + s]]
        if more and starts[m] < ends[m]:
            return False
    for i in range(edge_ptr[v], edge_ptr[v + 1]):
        e = edges[i]
        own_first = first[e] == v
        other = second[e] if own_first else first[e]
        n, row = ptr[other + 1] - ptr[other], ptr[second[e] + 1] - ptr[second[e]]
        least = np.inf
        for x in range(n):
            a = table[table_ptr[e] + (s * row + x if own_first else x * row + s)]
            b = table[table_ptr[e] + (o * row + x if own_first else x * row + o)]
            if a < np.inf:
                least = min(least, a - b)
        left += least
        if not left > -np.inf:
            return False
    return bool(left >= 0)
