"""Instances of the contest on intra-operator parallelism (google/iopddl): JSON, `.json` or `.json.gz`.

{"problem": {"name": ..., "nodes": {"intervals", "costs", "usages"}, "edges": {"nodes", "costs"}, "usage_limit": ...}}
"""

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from graphopt.core.auto_sharding.strategies import NO_LIMIT, StrategyTables
from graphopt.core.errors import Unreadable
from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.limits import MIB, read_json

FILE_BYTES = 512 * MIB  # unpacked
MOST_NODES, MOST_EDGES, MOST_ENTRIES = 2_000_000, 8_000_000, 100_000_000
MOST_STRATEGIES = 2**15 - 1  # of a node: decisions are 16 bits
MOST = 2**62
Lists = Sequence[Sequence[int]] | Sequence[I64]


def read_iopddl(path: Path) -> Graph:
    """The instance as a graph whose program is its `StrategyTables`. Raises GraphError, one sentence."""
    return graph_of(read_tables(path))


def read_tables(path: Path) -> StrategyTables:
    """The tables of an instance's file. Raises GraphError, one sentence."""
    try:
        content = read_json(path, FILE_BYTES)
    except Unreadable as error:
        raise GraphError(str(error)) from None
    try:
        return _tables(content["problem"], path.name.removesuffix(".gz").removesuffix(".json"))
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        said = f"it has no {error}" if isinstance(error, KeyError) else str(error)
        raise GraphError(f"{path} is no instance of the sharding contest: {said}") from None


def _tables(problem: dict[str, Any], name: str) -> StrategyTables:
    nodes, edges = problem["nodes"], problem["edges"]
    _check_counts(nodes, edges)
    limit = problem.get("usage_limit")
    return made_tables(name, np.array(nodes["intervals"], np.int64).reshape(-1, 2), nodes["costs"], nodes["usages"],
                       edges["nodes"], edges["costs"], None if limit is None else _whole(limit))  # fmt: skip


def made_tables(name: str, lives: I64, costs: Lists, usages: Lists, ends: Lists, tables: Lists,
                limit: int | None) -> StrategyTables:  # fmt: skip
    """Of lists per node and per edge. Raises ValueError where they do not fit each other."""
    counts, cost = _flat(costs, "a node's costs")
    uses, usage = _flat(usages, "a node's usages")
    if len(lives) != len(counts) or not np.array_equal(counts, uses):
        raise ValueError("nodes need an interval each, and as many usages as costs")
    if counts.min() < 1 or counts.max() > MOST_STRATEGIES:
        raise ValueError(f"nodes have {counts.min()} to {counts.max():,} strategies; 1 to {MOST_STRATEGIES:,} are read")
    arity, nodes = _flat(ends, "an edge's nodes")
    entries, table = _flat(tables, "an edge's costs")
    arity, nodes, entries, table = _checked_edges(arity, nodes, entries, table, counts)
    if usage.min(initial=0) < 0 or float(usage.astype(np.float64).sum()) > 2.0**61:
        raise ValueError("usages must not be negative, nor sum to more than 2^61")
    return StrategyTables(name=name, start=lives[:, 0].copy(), end=lives[:, 1].copy(), ptr=_pointer(counts), cost=cost,
                          usage=usage, edge_ptr=_pointer(arity), edge_node=nodes, table_ptr=_pointer(entries),
                          table=table, limit=NO_LIMIT if limit is None else limit)  # fmt: skip


def _check_counts(nodes: dict[str, Any], edges: dict[str, Any]) -> None:
    """Before anything is allocated."""
    if not nodes["costs"]:
        raise ValueError("it has no nodes")
    found = (len(nodes["costs"]), len(edges["nodes"]), sum(map(len, edges["costs"])))
    for what, number, most in zip(("nodes", "edges", "entries of tables"), found,
                                  (MOST_NODES, MOST_EDGES, MOST_ENTRIES), strict=True):  # fmt: skip
        if number > most:
            raise ValueError(f"it has {number:,} {what}, more than the {most:,} that are read")
    if len(edges["nodes"]) != len(edges["costs"]):
        raise ValueError(f"it has {len(edges['nodes']):,} edges and {len(edges['costs']):,} tables")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"usage_limit must be a whole number from 0 to 2^62, not {str(value)[:40]}")
    return value


def _flat(lists: Lists, what: str) -> tuple[I64, I64]:
    """(length of each list, all their numbers after each other)."""
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    every = chain.from_iterable(lists)
    try:
        found = np.fromiter(every, np.int64, int(lengths.sum()))
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{what} are no whole numbers of 64 bits ({error})") from None
    if len(found) and (found.min() < -MOST or found.max() > MOST):
        raise ValueError(f"{what} must lie within 2^62")
    return lengths, found


def _checked_edges(arity: I64, ends: I64, entries: I64, table: I64, counts: I64) -> tuple[I64, I64, I64, I64]:
    if len(arity) and arity.min() < 1:
        raise ValueError("an edge has no nodes")
    if len(ends) and (ends.min() < 0 or ends.max() >= len(counts)):
        raise ValueError(
            f"an edge names node {ends.max() if ends.max() >= len(counts) else ends.min()} of {len(counts):,}"
        )
    size = np.ones(len(arity))
    edge = np.repeat(np.arange(len(arity)), arity)
    np.multiply.at(size, edge, counts[ends].astype(np.float64))
    wrong = np.flatnonzero(size != entries)
    if len(wrong):
        e = int(wrong[0])
        raise ValueError(f"edge {e} has {entries[e]:,} entries, where its nodes' strategies make {size[e]:.0f}")
    pairs = edge * len(counts) + ends
    if len(np.unique(pairs)) == len(pairs):
        return arity, ends, entries, table
    return _without_repeats(arity, ends, entries, table, counts)


def _without_repeats(arity: I64, ends: I64, entries: I64, table: I64, counts: I64) -> tuple[I64, I64, I64, I64]:
    """Of an edge that names a node twice only the entries count at which both are the same."""
    nodes, tables = [], []
    for mine, costs in zip(
        np.split(ends, np.cumsum(arity)[:-1]), np.split(table, np.cumsum(entries)[:-1]), strict=True
    ):
        own = list(dict.fromkeys(mine.tolist()))
        if len(own) < len(mine):
            costs = np.einsum(costs.reshape(counts[mine]), [own.index(n) for n in mine.tolist()], range(len(own)))
        nodes.append(np.array(own, np.int64))
        tables.append(costs.ravel())
    lengths = [np.fromiter(map(len, parts), np.int64, len(parts)) for parts in (nodes, tables)]
    return lengths[0], np.concatenate(nodes), lengths[1], np.concatenate(tables)


def _pointer(lengths: I64) -> I64:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])


def graph_of(tables: StrategyTables) -> Graph:
    """A graph of opaque ops, one per node, which read each other along the edges; its program is the tables.

    The shape of an op's result is its number of strategies. One input's shape is the digest of the tables, so that
    graphs with other tables are others."""
    b = GraphBuilder(tables.name, family=tables.name)
    b.tensor(shape_of(tables), num_bytes=0)
    results = [b.tensor((int(count),), num_bytes=0) for count in tables.counts]
    reads: list[list[int]] = [[] for _ in results]
    for e in range(tables.num_edges):
        first, *others = sorted(tables.edge_node[tables.edge_ptr[e] : tables.edge_ptr[e + 1]].tolist())
        for other in others:
            reads[other].append(results[first])
    for n, inputs in enumerate(reads):
        b.op("opaque", list(dict.fromkeys(inputs)), [results[n]], name=f"n{n}")
    return b.build(program=tables)


def shape_of(tables: StrategyTables) -> tuple[int, int]:
    """Of the input that stands for the tables."""
    number = int(tables.digest[:12], 16)
    return number >> 24, number & 0xFFFFFF
