"""Exact prices of what one node's change does, around one choice.

Shape legend: N nodes, F changes.
"""

from dataclasses import dataclass

import numpy as np

from graphopt.core.auto_sharding.strategies import StrategyTables, memory, price
from graphopt.core.graph import F64, I64
from graphopt.sharding.room_tree import add, least_of, room_tree
from graphopt.utils.compiled import njit


@dataclass(frozen=True, eq=False)
class Incidence:
    """Edges of every node, and which of an edge's nodes it is."""

    ptr: I64  # [N+1]
    edge: I64
    step: I64  # entries of the table between two strategies of the node


def incidence_of(tables: StrategyTables) -> Incidence:
    edge = np.repeat(np.arange(tables.num_edges), np.diff(tables.edge_ptr))
    step = np.ones(len(edge), np.int64)
    for back in range(1, int(np.diff(tables.edge_ptr).max(initial=1))):  # strides of row-major tables
        later = np.arange(len(edge)) + back
        inside = later < tables.edge_ptr[edge + 1]
        step[inside] *= tables.counts[tables.edge_node[later[inside]]]
    order = np.argsort(tables.edge_node, kind="stable")
    ptr = np.searchsorted(tables.edge_node[order], np.arange(tables.num_nodes + 1))
    return Incidence(ptr, edge[order], step[order])


class StrategyDeltas:
    """The current choice [N], what it costs, and the price of every single change: what `StrategyCost` says of the
    changed choice, to the last digit where costs are possible (sums below 2^53)."""

    def __init__(self, tables: StrategyTables, choice: I64) -> None:
        self._tables, self._near = tables, incidence_of(tables)
        self.choice = choice.astype(np.int64).copy()
        self.cost, _ = price(tables, self.choice)
        self._entry = _entry_of(tables.edge_ptr, tables.edge_node, tables.table_ptr, tables.counts, self.choice)
        self._least, self._pending = room_tree(float(tables.limit) - memory(tables, self.choice).astype(np.float64))

    def price(self, nodes: I64, strategies: I64) -> F64:
        """[F] cost after each change alone; inf where memory is over the limit then."""
        t, near, clock = self._tables, self._near, self._tables.clock
        changes: F64 = _changes(nodes, strategies, self.choice, t.ptr, t.cost, t.usage, t.table, near.ptr, near.edge,
                                near.step, self._entry, clock.first, clock.last, self._least,
                                self._pending)  # fmt: skip
        return self.cost + changes

    def apply(self, node: int, strategy: int) -> None:
        """Makes a change."""
        t, near, clock = self._tables, self._near, self._tables.clock
        old = int(self.choice[node])
        used = float(t.usage[t.ptr[node] + strategy] - t.usage[t.ptr[node] + old])
        if used and clock.first[node] < clock.last[node]:
            add(self._least, self._pending, int(clock.first[node]), int(clock.last[node]), -used)
        mine = slice(int(near.ptr[node]), int(near.ptr[node + 1]))
        self._entry[near.edge[mine]] += (strategy - old) * near.step[mine]
        self.choice[node] = strategy
        self.cost, _ = price(t, self.choice)


@njit(cache=True, nogil=True)
def _entry_of(edge_ptr: I64, edge_node: I64, table_ptr: I64, counts: I64, choice: I64) -> I64:
    out = np.zeros(len(edge_ptr) - 1, np.int64)
    for e in range(len(out)):
        for a in range(edge_ptr[e], edge_ptr[e + 1]):
            out[e] = out[e] * counts[edge_node[a]] + choice[edge_node[a]]
        out[e] += table_ptr[e]
    return out


@njit(cache=True, nogil=True)
def _changes(nodes: I64, strategies: I64, choice: I64, ptr: I64, cost: I64, usage: I64, table: I64, near_ptr: I64,
             near_edge: I64, near_step: I64, entry: I64, first: I64, last: I64, least: F64,
             pending: F64) -> F64:  # fmt: skip
    out = np.zeros(len(nodes))
    for i in range(len(nodes)):
        n, old, new = nodes[i], choice[nodes[i]], strategies[i]
        change = float(cost[ptr[n] + new] - cost[ptr[n] + old])
        for k in range(near_ptr[n], near_ptr[n + 1]):
            here = entry[near_edge[k]]
            change += float(table[here + (new - old) * near_step[k]] - table[here])
        more = float(usage[ptr[n] + new] - usage[ptr[n] + old])
        if first[n] < last[n] and more > 0.0:
            if more > least_of(least, pending, first[n], last[n]) or least[1] < 0.0:
                change = np.inf
        elif least[1] < 0.0 and not _healed(first[n], last[n], more, least, pending):
            change = np.inf
        out[i] = change
    return out


@njit(cache=True, nogil=True)
def _healed(low: int, high: int, more: float, least: F64, pending: F64) -> bool:
    """Whether what is over the limit fits once this much is added from low to high - 1."""
    if low >= high:
        return False
    add(least, pending, low, high, -more)
    fits = least[1] >= 0.0
    add(least, pending, low, high, more)
    return bool(fits)
