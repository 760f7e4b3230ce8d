"""`models`: graphs of more than a thousand models of well-known libraries, forward and backward, without weights.

They come with the package (`graphopt.gather` made them; index.json there names libraries, versions, licences and
sources). Splits are of clusters of related families: what is tested is of no family that training has seen, nor of one
that is built alike.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np

from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Dataset, Split
from graphopt.errors import Unreadable
from graphopt.library.packing import GRAPHS, INDEX, MOST, Line, member, unpack
from graphopt.utils.limits import MIB, read_json, read_member
from graphopt.utils.progress import Bar

KEYS = {"name": str, "family": str, "hash": str, "split": str, "ops": int, "cluster": int}  # of a line of the index
SHIPPED = Path(__file__).parent / "model_graphs"


class Models(Dataset):
    """min_ops, max_ops: sizes of graphs. training: at most so many training graphs, spread over the clusters; null:
    all. path: folder of another collection that `graphopt.gather --pack` made; null: the one in the package."""

    def __init__(self, *, name: str, min_ops: int, max_ops: int, training: int | None, path: str | None) -> None:
        self.name, self.min_ops, self.max_ops, self.training = name, min_ops, max_ops, training
        self.path = SHIPPED if path is None else Path(path)
        self._graphs: dict[Split, list[Graph]] = {}

    def files(self) -> list[Path]:
        return [] if self.path == SHIPPED else [self.path / GRAPHS, self.path / INDEX]

    @cached_property
    def index(self) -> dict[int, list[Line]]:
        """Cluster -> what is known of its graphs, in their order. Raises GraphError where there is no collection."""
        try:
            said = read_json(self.path / INDEX, 64 * MIB)["graphs"]
            found: dict[int, list[Line]] = {}
            for line in said:
                if any(type(line[key]) is not kind for key, kind in KEYS.items()):
                    raise ValueError("a line of its index is none")
                found.setdefault(line["cluster"], []).append(line)
        except (Unreadable, OSError, KeyError, TypeError, ValueError) as error:
            raise GraphError(f"{self.path} holds no collection of models ({error}); `python -m graphopt.gather FOLDER "
                             "--pack TARGET` makes one") from None  # fmt: skip
        return found

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            mine = {n: lines for n, lines in self.index.items() if lines[0]["split"] == split}
            chosen = {line["hash"] for line in self._chosen(split, mine)}
            with Bar("read models", len(mine)) as bar:
                found = []
                for number, lines in mine.items():
                    found += [graph for graph in self._cluster(number, lines) if graph.hash in chosen]
                    bar.step(f"cluster {number}")
            self._graphs[split] = found
        return self._graphs[split]

    def _chosen(self, split: Split, clusters: Mapping[int, list[Line]]) -> list[Line]:
        """Those of fitting size; of training graphs `training`, a cluster after the other one more of each."""
        fitting = [
            [line for line in lines if self.min_ops <= line["ops"] <= self.max_ops] for lines in clusters.values()
        ]
        if split != "train" or self.training is None:
            return [line for lines in fitting for line in lines]
        shuffled = [[lines[i] for i in np.random.default_rng(0).permutation(len(lines))] for lines in fitting]
        turns = [line for turn in zip_longest(*shuffled) for line in turn if line is not None]
        return turns[: self.training]

    def _cluster(self, number: int, lines: Sequence[Line]) -> list[Graph]:
        source = f"{member(number)} of {self.path / GRAPHS}"
        try:
            content = read_member(self.path / GRAPHS, member(number), MOST)
            graphs = unpack(content, source, [(line["name"], line["family"]) for line in lines])
        except (Unreadable, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise GraphError(f"{source} cannot be read ({error}); make the collection anew") from None
        wrong = next((line["name"] for graph, line in zip(graphs, lines) if graph.hash != line["hash"]), None)
        if wrong:
            raise GraphError(f"{source} is damaged: {wrong} is not the graph that the index names")
        return graphs
