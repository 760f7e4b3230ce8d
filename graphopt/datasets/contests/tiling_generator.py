"""What datasets of drawn tiling problems share: how many of which size each split has, and a generator for each."""

from abc import abstractmethod
from typing import ClassVar

import numpy as np

from graphopt.core.graph import Graph
from graphopt.datasets.dataset import Dataset, Split, check_draws
from graphopt.tiling.tile_workload import TileWorkload
from graphopt.tiling.workload_graph import CARRIES, graph_of_workload
from graphopt.utils.ranges import Ops, Seed


class TilingGenerator(Dataset):
    """A graph of about so many ops for every number in `train`, `val` and `test`. sizes: of sides of matrices.
    graph_seed: of all of them."""

    gives = frozenset({CARRIES})
    fewest: ClassVar[int] = 0  # ops that a graph may come out with where fewer were asked for

    def __init__(self, *, name: str, train: list[Ops], val: list[Ops], test: list[Ops], sizes: list[Ops],
                 graph_seed: Seed) -> None:  # fmt: skip
        asked = [max(self.fewest, ops) for ops in (8, *train, *val, *test)]
        check_draws(graph_seed, [len(train), len(val), len(test)], asked)
        self.name, self.sizes, self._seed = name, sizes, graph_seed
        self._counts: dict[Split, list[int]] = {"train": train, "val": val, "test": test}
        self._graphs: dict[Split, list[Graph]] = {}

    @abstractmethod
    def workload(self, rng: np.random.Generator, ops: int, name: str) -> TileWorkload:
        """A problem of about so many ops."""

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            self._graphs[split] = [self._draw(split, place) for place in range(len(self._counts[split]))]
        return self._graphs[split]

    def extent(self) -> int:
        return sum(map(sum, self._counts.values()))

    def _draw(self, split: Split, place: int) -> Graph:
        rng = np.random.default_rng([self._seed, ("train", "val", "test").index(split), place])
        ops = self._counts[split][place]
        return graph_of_workload(self.workload(rng, ops, f"{split}_{place}_{ops}"))
