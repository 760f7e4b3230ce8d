"""Sharding instances drawn at random, of kinds of node that repeat."""

import itertools

import numpy as np

from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables, memory
from graphopt.core.graph import I64
from graphopt.readers.formats.iopddl import made_tables

REACH = 12  # how far back a node reads
KINDS = 6  # of nodes, which share tables
SPARE = 0.3  # of the way from the least to the most memory: the limit


def drawn(rng: np.random.Generator, nodes: int, strategies: int, hyper: float, impossible: float,
          name: str = "drawn") -> StrategyTables:  # fmt: skip
    """An instance in which a choice is hidden that is possible and fits."""
    kinds = rng.integers(KINDS, size=nodes)
    counts = rng.integers(1, strategies + 1, KINDS)[kinds]
    own = [rng.integers(0, 50, strategies) for _ in range(KINDS)]
    uses = [rng.integers(0, 30, strategies) for _ in range(KINDS)]
    hidden = rng.integers(0, counts)
    start = np.arange(nodes)
    end = start + rng.integers(0, 2 * REACH, nodes)
    ends, tables = [], []
    for n in range(1, nodes):
        for _ in range(int(rng.integers(1, 3))):
            others = rng.integers(max(0, n - REACH), n, 2 if rng.random() < hyper else 1)
            edge = sorted({*others.tolist(), n})
            costs = rng.integers(0, 100, tuple(counts[edge]))
            costs[rng.random(costs.shape) < impossible] = 100 * IMPOSSIBLE
            costs[tuple(hidden[edge])] = rng.integers(0, 100)
            ends.append(edge)
            tables.append(costs.ravel())
    found = made_tables(name, np.stack([start, end], 1), [own[k][:c] for k, c in zip(kinds, counts, strict=True)],
                        [uses[k][:c] for k, c in zip(kinds, counts, strict=True)], ends, tables, None)  # fmt: skip
    need = int(memory(found, hidden).max(initial=0))
    most = int(memory(found, counts - 1).max(initial=0))
    return made_tables(name, np.stack([start, end], 1), [own[k][:c] for k, c in zip(kinds, counts, strict=True)],
                       [uses[k][:c] for k, c in zip(kinds, counts, strict=True)], ends, tables,
                       need + int(SPARE * max(0, most - need)))  # fmt: skip


def every_choice(tables: StrategyTables) -> I64:
    """[product of counts, N] for brute force on small instances."""
    return np.array(list(itertools.product(*(range(int(c)) for c in tables.counts))), np.int64)
