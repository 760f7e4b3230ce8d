"""`StrategyTables`: cost and memory of every strategy of every node, as the contest on intra-operator parallelism poses
XLA's auto-sharding (IOPDDL, ASPLOS 2025).

Each node takes one of its strategies. The total cost is the sum of the chosen strategies' costs and of one entry of
every edge's table, row-major in the order of its nodes. A node uses memory in the half-open interval of its life; at no
time may the usages of the living nodes sum to more than the limit.

Shape legend: N nodes, S strategies of all nodes, E edges, A nodes of all edges, C entries of all tables.
"""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.utils.compiled import njit

IMPOSSIBLE = 10**16  # entries from here stand for impossible; they are priced as they are, in floating point
NO_LIMIT = 2**62


@dataclass(frozen=True, eq=False)
class StrategyTables:
    """Of one instance; whole numbers. Nodes of an edge differ."""

    name: str
    start: I64  # [N]
    end: I64  # [N] first time at which it is no longer there; at most `start`: it never is
    ptr: I64  # [N+1] strategies of node n are ptr[n] .. ptr[n+1]-1
    cost: I64  # [S]
    usage: I64  # [S]
    edge_ptr: I64  # [E+1]
    edge_node: I64  # [A]
    table_ptr: I64  # [E+1]
    table: I64  # [C]
    limit: int  # NO_LIMIT: none
    seconds: float | None = None  # that a contest gives to it

    @property
    def num_nodes(self) -> int:
        return len(self.start)

    @property
    def num_edges(self) -> int:
        return len(self.edge_ptr) - 1

    @cached_property
    def counts(self) -> I64:
        """[N] strategies of every node."""
        return np.diff(self.ptr)

    @cached_property
    def digest(self) -> str:
        """Of all but the name, 16 hex digits."""
        found = hashlib.sha256(str(self.limit).encode())
        for array in (self.start, self.end, self.ptr, self.cost, self.usage, self.edge_ptr, self.edge_node, self.table):
            found.update(np.ascontiguousarray(array, np.int64).tobytes() + b"|")
        return found.hexdigest()[:16]

    @cached_property
    def clock(self) -> "Clock":
        """Its time, compressed."""
        return compressed(self.start, self.end)


def tables_of(graph: Graph) -> StrategyTables:
    """Those that a graph carries. They are other people's data: studies keep neither them nor their graphs, and a
    replay reads both again. Raises GraphError where the graph comes without them."""
    if not isinstance(graph.program, StrategyTables):
        raise GraphError(f"graph {graph.name!r} has no tables of strategies; read it with dataset=sharding")
    return graph.program


@dataclass(frozen=True, eq=False)
class Clock:
    """Time steps at which memory can be largest: those at which a node comes, before the next one goes.

    Node n lives at steps first[n] .. last[n]-1 of `steps`; both 0 for one that never lives.
    """

    steps: int
    first: I64  # [N]
    last: I64  # [N]


def compressed(start: I64, end: I64) -> Clock:
    """Of maximal sets of living nodes one time each: a time counts where something starts and something ends before
    anything else starts."""
    lives = start < end
    time = np.concatenate([start[lives], end[lives]])
    opens = np.concatenate([np.ones(int(lives.sum()), np.bool_), np.zeros(int(lives.sum()), np.bool_)])
    order = np.lexsort((opens, time))  # at one time ends come first: intervals are half-open
    opens = opens[order]
    peak = np.flatnonzero(opens & np.append(~opens[1:], True)) if len(opens) else np.zeros(0, np.int64)
    moments = time[order][peak]
    first, last = np.zeros(len(start), np.int64), np.zeros(len(start), np.int64)
    first[lives] = np.searchsorted(moments, start[lives], "left")
    last[lives] = np.searchsorted(moments, end[lives], "left")
    return Clock(len(moments), first, last)


def memory(tables: StrategyTables, choice: I64) -> I64:
    """[steps of the clock] memory in use under a choice [N]."""
    clock = tables.clock
    change = np.zeros(clock.steps + 1, np.int64)
    used = tables.usage[tables.ptr[:-1] + choice]
    np.add.at(change, clock.first, used)
    np.add.at(change, clock.last, -used)
    found: I64 = np.cumsum(change)[: clock.steps]
    return found


def price(tables: StrategyTables, choice: I64) -> tuple[float, int]:
    """(cost, units of memory over the limit at the worst time) of a choice [N]."""
    nodes = tables.cost[tables.ptr[:-1] + choice]
    edges = edge_costs(tables, choice)
    over = int(memory(tables, choice).max(initial=0)) - tables.limit
    return total(np.concatenate([nodes, edges])), max(0, over)


def edge_costs(tables: StrategyTables, choice: I64) -> I64:
    """[E] the chosen entry of every table."""
    entries = _entries(tables.edge_ptr, tables.edge_node, tables.counts, choice)
    found: I64 = tables.table[tables.table_ptr[:-1] + entries]
    return found


def total(parts: I64) -> float:
    """Their sum: exact in whole numbers, but for impossible ones, which could leave them."""
    huge = np.abs(parts) >= IMPOSSIBLE
    return float(int(parts[~huge].sum())) + float(parts[huge].astype(np.float64).sum())


@njit(cache=True, nogil=True)
def _entries(edge_ptr: I64, edge_node: I64, counts: I64, choice: I64) -> I64:
    """[E] position of the chosen entry in each table."""
    out = np.zeros(len(edge_ptr) - 1, np.int64)
    for e in range(len(out)):
        for a in range(edge_ptr[e], edge_ptr[e + 1]):
            out[e] = out[e] * counts[edge_node[a]] + choice[edge_node[a]]
    return out


def relative(over: float, limit: int) -> float:
    """Memory over the limit as a share of it."""
    return over / max(limit, 1)
