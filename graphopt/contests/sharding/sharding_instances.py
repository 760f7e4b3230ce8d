"""Instances of the contest on intra-operator parallelism: its files, or random ones."""

from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, ClassVar, Literal, get_args

import numpy as np

from graphopt.core.auto_sharding.strategies import IMPOSSIBLE, StrategyTables, memory
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import Between, Graphs, NotNegative, Ops, OwnFolder, Seed, Share
from graphopt.graphs.dataset import Split
from graphopt.graphs.files import FileDataset, bare_name, find_files, third_party
from graphopt.graphs.readers.formats.iopddl import graph_of, made_tables, read_iopddl

NAMES = ("*.json", "*.json.gz")
NOT_INSTANCES = ("known.json",)  # tables of figures beside them
REACH = 12  # how far back a node reads
KINDS = 6  # of nodes, which share tables
SPARE = 0.3  # of the way from the least to the most memory: the limit


@dataclass(frozen=True, kw_only=True)
class RandomSharding:
    """nodes: of each instance; count: per split; strategies: of a node, at most; hyper: share of edges of three nodes;
    impossible: share of entries."""

    graph_seed: Seed
    nodes: Ops
    count: dict[Split, Graphs]
    strategies: Annotated[int, Between(1, 100)]
    hyper: Share
    impossible: Share


class ShardingInstances(FileDataset):
    """source: `files`, or `random` instances. path: a file, a folder or a pattern, `.json` or `.json.gz`; null: the
    folder `sharding` of third parties' data. only: patterns of names that are wanted; none: all. train, val: patterns
    of names of those splits. families: pattern of a name -> the model that it is of. seconds: pattern -> the contest's
    time for an instance."""

    gives: ClassVar[frozenset[str]] = frozenset({"strategies"})
    kept = False

    def __init__(self, *, name: str, source: Literal["files", "random"], path: OwnFolder, only: list[str],
                 train: list[str], val: list[str], families: dict[str, str], seconds: dict[str, NotNegative],
                 random: RandomSharding) -> None:  # fmt: skip
        super().__init__(name, train, val)
        self._path = path if path is not None else str(third_party("sharding"))
        self._only, self._families, self._seconds = list(only), dict(families), dict(seconds)
        self._random = random if source == "random" else None
        self._drawn: dict[Split, list[Graph]] = {}

    def graphs(self, split: Split) -> list[Graph]:
        of = self._random
        if of is None:
            return super().graphs(split)
        if split not in self._drawn:
            draws = [np.random.default_rng([of.graph_seed, get_args(Split).index(split), i])
                     for i in range(of.count.get(split, 0))]  # fmt: skip
            self._drawn[split] = [
                graph_of(random_tables(rng, of.nodes, of.strategies, of.hyper, of.impossible, f"{split}{i}"))
                for i, rng in enumerate(draws)
            ]
        return self._drawn[split]

    def files(self) -> list[Path]:
        if self._random is not None:
            return []
        found = [file for file in find_files(self._path, NAMES) if file.name not in NOT_INSTANCES]
        wanted = [
            file for file in found if not self._only or any(fnmatch(bare_name(file), only) for only in self._only)
        ]
        if not wanted:
            raise GraphError(f"no instance at {self._path!r} is called like {' or '.join(self._only)}")
        return wanted

    def read(self, file: Path) -> Graph:
        graph = read_iopddl(file)
        tables: StrategyTables = graph.program
        seconds = next((s for pattern, s in self._seconds.items() if fnmatch(graph.name, pattern)), None)
        family = next((f for pattern, f in self._families.items() if fnmatch(graph.name, pattern)), graph.name)
        return replace(graph, family=family, program=replace(tables, seconds=seconds))

    def extent(self) -> int | None:
        of = self._random
        return None if of is None else of.nodes * sum(of.count.values())


def random_tables(rng: np.random.Generator, nodes: int, strategies: int, hyper: float, impossible: float,
          name: str = "random") -> StrategyTables:  # fmt: skip
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
