"""Instances of the contest on intra-operator parallelism, from files, and drawn at random for trials without them."""

from dataclasses import replace
from fnmatch import fnmatch
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from graphopt.core.auto_sharding.strategies import StrategyTables
from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Dataset, Split
from graphopt.datasets.files import FileDataset, bare_name, find_files, third_party
from graphopt.readers.formats.iopddl import graph_of, read_iopddl
from graphopt.sharding.drawing import drawn
from graphopt.utils.outside import OwnFolder
from graphopt.utils.ranges import Between, Graphs, NotNegative, Ops, Seed, Share

NAMES = ("*.json", "*.json.gz")
NOT_INSTANCES = ("known.json",)  # tables of figures beside them


class ShardingInstances(FileDataset):
    """path: a file, a folder or a pattern, `.json` or `.json.gz`; null: the folder `sharding` of third parties' data.

    only: patterns of names that are wanted; none: all. families: pattern of a name -> the model that it is of. seconds:
    pattern -> what the contest gives to an instance.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"strategies"})
    kept = False

    def __init__(self, *, name: str, path: OwnFolder, only: list[str], train: list[str], val: list[str],
                 families: dict[str, str], seconds: dict[str, NotNegative]) -> None:  # fmt: skip
        super().__init__(name, train, val)
        self._path = path if path is not None else str(third_party("sharding"))
        self._only, self._families, self._seconds = list(only), dict(families), dict(seconds)

    def files(self) -> list[Path]:
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


class DrawnInstances(Dataset):
    """nodes: of each instance; count: per split; strategies: of a node, at most; hyper: share of edges of three nodes;
    impossible: share of entries."""

    gives: ClassVar[frozenset[str]] = frozenset({"strategies"})
    kept = False

    def __init__(self, *, name: str, graph_seed: Seed, nodes: Ops, count: dict[Split, Graphs],
                 strategies: Annotated[int, Between(1, 100)], hyper: Share, impossible: Share) -> None:  # fmt: skip
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
