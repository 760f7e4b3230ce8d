"""Sharding instances drawn at random, of layers that repeat: for trials and tests without the contest's files."""

import itertools

import numpy as np

from graphopt.core.graph import Graph, GraphError
from graphopt.core.strategies import IMPOSSIBLE, StrategyTables, memory
from graphopt.datasets.dataset import MOST_OPS, Dataset, Split
from graphopt.readers.formats.iopddl import graph_of, made_tables

REACH = 12  # how far back a node reads
KINDS = 6  # of nodes, which share tables
SPARE = 0.3  # of the way from the least to the most memory: the limit


class DrawnInstances(Dataset):
    """nodes: of each instance; count: per split; strategies: of a node, at most; hyper: share of edges of three nodes;
    impossible: share of entries."""

    gives = frozenset({"strategies"})

    def __init__(self, *, name: str, graph_seed: int, nodes: int, count: dict[Split, int], strategies: int,
                 hyper: float, impossible: float) -> None:  # fmt: skip
        if not (1 <= nodes <= MOST_OPS and 1 <= strategies <= 100 and graph_seed >= 0):
            raise GraphError("sharding instances are drawn with 1 to 10 million nodes, 1 to 100 strategies, and a seed "
                             "that is not negative")  # fmt: skip
        self.name, self._seed, self._nodes, self._count = name, graph_seed, nodes, count
        self._strategies, self._hyper, self._impossible = strategies, hyper, impossible
        self._graphs: dict[Split, list[Graph]] = {}

    def extent(self) -> int:
        return self._nodes * sum(self._count.values())

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            place = ("train", "val", "test").index(split)
            draws = (np.random.default_rng([self._seed, place, i]) for i in range(self._count.get(split, 0)))
            self._graphs[split] = [
                graph_of(drawn(rng, self._nodes, self._strategies, self._hyper, self._impossible, f"{split}{i}"))
                for i, rng in enumerate(draws)
            ]
        return self._graphs[split]


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


def every_choice(tables: StrategyTables) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    """[product of counts, N] for brute force on small instances."""
    return np.array(list(itertools.product(*(range(int(c)) for c in tables.counts))), np.int64)
