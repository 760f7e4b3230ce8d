"""Tiling problems from the contest's JSON files. They are third parties' and stay in place: a study keeps none."""

from pathlib import Path

from graphopt.core.graph import Graph
from graphopt.datasets.contests.tiling_drawn import TilingDrawn
from graphopt.datasets.dataset import Split
from graphopt.datasets.files import FileDataset, find_files, third_party
from graphopt.tiling.workload_files import read_workload
from graphopt.tiling.workload_graph import CARRIES, graph_of_workload
from graphopt.utils.outside import OwnFolder

BESIDE = ("known", "example_solution")  # files of such a folder that are no problems


class TilingContest(FileDataset):
    """path: a file, a folder or a pattern; null: the folder `tiling` of third parties' data. drawn: problems to train
    and to validate on instead of those that `train` and `val` name."""

    gives = frozenset({CARRIES})
    kept = False

    def __init__(self, *, name: str, path: OwnFolder, train: list[str], val: list[str],
                 drawn: TilingDrawn | None) -> None:  # fmt: skip
        super().__init__(name, train, val)
        self._drawn = drawn
        self._path = path if path is not None else str(third_party("tiling"))

    def graphs(self, split: Split) -> list[Graph]:
        return super().graphs(split) if self._drawn is None or split == "test" else self._drawn.graphs(split)

    def files(self) -> list[Path]:
        found = find_files(self._path, ("*.json",))
        return found if len(found) == 1 else [file for file in found if file.stem not in BESIDE]

    def read(self, file: Path) -> Graph:
        return graph_of_workload(read_workload(file))
