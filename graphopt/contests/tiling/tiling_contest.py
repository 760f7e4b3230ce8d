"""Tiling problems: the contest's JSON files, or random ones.

The files are third parties' and stay in place: a study keeps none.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from graphopt.contests.tiling.tile_workload import TileWorkload
from graphopt.contests.tiling.workload_files import CARRIES, graph_of_workload, read_workload
from graphopt.core.graph import Graph
from graphopt.core.utils.marks import Ops, OwnFolder, Seed, Share
from graphopt.graphs.dataset import Split, check_draws
from graphopt.graphs.files import FileDataset, find_files, third_party

BESIDE = ("known", "example_solution")  # files of such a folder that are no problems


@dataclass(frozen=True, kw_only=True)
class RandomTiling:
    """train, val, test: ops of each graph. sizes: of sides of matrices. products: share of ops that are products of
    matrices. graph_seed: of all of them."""

    train: list[Ops]
    val: list[Ops]
    test: list[Ops]
    sizes: list[Ops]
    products: Share
    graph_seed: Seed


class TilingProblems(FileDataset):
    """source: `files`, or `random` problems. path: a file, a folder or a pattern; null: the folder `tiling` of third
    parties' data. train, val: patterns of names of files; all others are test graphs."""

    gives = frozenset({CARRIES})

    def __init__(self, *, name: str, source: Literal["files", "random"], path: OwnFolder, train: list[str],
                 val: list[str], random: RandomTiling) -> None:  # fmt: skip
        super().__init__(name, train, val)
        check_draws(random.graph_seed, [], [8, *random.train, *random.val, *random.test])
        self._path = path if path is not None else str(third_party("tiling"))
        self._random = random if source == "random" else None
        self._drawn: dict[Split, list[Graph]] = {}
        self.kept = source == "random"

    def graphs(self, split: Split) -> list[Graph]:
        if self._random is None:
            return super().graphs(split)
        if split not in self._drawn:
            counts = {"train": self._random.train, "val": self._random.val, "test": self._random.test}[split]
            of, number, made = self._random, get_args(Split).index(split), list[Graph]()
            for place, ops in enumerate(counts):
                rng = np.random.default_rng([of.graph_seed, number, place])
                workload = random_workload(rng, ops, of.sizes, of.products, f"{split}_{place}_{ops}")
                made.append(graph_of_workload(workload))
            self._drawn[split] = made
        return self._drawn[split]

    def files(self) -> list[Path]:
        if self._random is not None:
            return []
        found = find_files(self._path, ("*.json",))
        return found if len(found) == 1 else [file for file in found if file.stem not in BESIDE]

    def read(self, file: Path) -> Graph:
        return graph_of_workload(read_workload(file))

    def extent(self) -> int | None:
        random = self._random
        return None if random is None else sum(random.train) + sum(random.val) + sum(random.test)


def random_workload(
    rng: np.random.Generator, ops: int, sizes: Sequence[int], products: float, name: str
) -> TileWorkload:
    """Each op reads recent results, or new inputs of the graph where no result fits."""
    widths, heights, results = list[int](), list[int](), list[int]()
    inputs, output, costs, matmul = list[tuple[int, ...]](), list[int](), list[float](), list[bool]()

    def tensor(width: int, height: int) -> int:
        widths.append(width)
        heights.append(height)
        return len(widths) - 1

    def recent(fits: Sequence[int]) -> int | None:
        return int(fits[-1 - min(int(rng.geometric(0.5)) - 1, len(fits) - 1)]) if len(fits) else None

    for _ in range(ops):
        side, other = (int(rng.choice(sizes)) for _ in range(2))
        first = recent(results) if results and rng.random() < 0.9 else None
        first = tensor(side, other) if first is None else first
        matmul.append(bool(rng.random() < products))
        if matmul[-1]:
            right = recent([t for t in results if heights[t] == widths[first]]) if rng.random() < 0.2 else None
            right = tensor(side, widths[first]) if right is None else right
            inputs.append((first, right))
            output.append(tensor(widths[right], heights[first]))
        else:
            alike = [t for t in results if (widths[t], heights[t]) == (widths[first], heights[first]) and t != first]
            more = recent(alike) if rng.random() < 0.5 else None
            inputs.append((first,) if more is None else (first, more))
            output.append(tensor(widths[first], heights[first]))
        costs.append(float(rng.choice([100, 500, 1000, 2000, 5000])))
        results.append(output[-1])
    capacity = float(rng.choice([2.0, 3.0, 6.0, 20.0])) * 128 * 128
    return TileWorkload(
        name=name, widths=tuple(widths), heights=tuple(heights), inputs=tuple(inputs), output=tuple(output),
        base_costs=tuple(costs), is_matmul=tuple(matmul), capacity=capacity,
        bandwidth=float(rng.choice([10, 20, 50, 100])), native=(128, 128),
    )  # fmt: skip
