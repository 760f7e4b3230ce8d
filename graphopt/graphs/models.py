"""`models`: graphs of more than a thousand models of well-known libraries, forward and backward, without weights.

They come with the package (docs/models.md says how they were captured; index.json names libraries, versions, licences
and sources). Splits are of clusters of related families: test graphs are of no family that training has seen, nor of
one that is built alike. A graph's family is its cluster, named by the family that has the most graphs in it.

`dataset.purged=true` holds out more: neighbourhoods of two hops around ops of a test (operators, and how they are
joined) also occur in graphs of other clusters. No learner is taught by ops with such neighbourhoods (`Graph.held_out`);
those that cannot leave ops out are refused.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import zip_longest
from pathlib import Path

import numpy as np

from graphopt.core.colours import U64
from graphopt.core.errors import Unreadable
from graphopt.core.graph import Bool, Graph, GraphError
from graphopt.core.utils.limits import MIB, read_json, read_member
from graphopt.core.utils.marks import Graphs, UserPath, Whole
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.library.packing import GRAPHS, INDEX, MOST, Line, member, neighbourhoods, unpack

# Of a line of the index.
KEYS = {"name": str, "library": str, "family": str, "hash": str, "split": str, "ops": int, "cluster": int}
SHIPPED = Path(__file__).parent / "model_graphs"


class Models(Dataset):
    """min_ops, max_ops: sizes of graphs. training, testing: at most so many training and test graphs, spread over the
    clusters; null: all. purged: whether ops of training and validation that look like some of a test, and ops of
    training that look like some of validation, are held out from teaching. path: folder of another collection that
    `graphopt.graphs.library.packing.pack` made; null: the one in the package."""

    def __init__(self, *, name: str, min_ops: Whole, max_ops: Whole, training: Graphs | None, testing: Graphs | None,
                 purged: bool, path: UserPath) -> None:  # fmt: skip
        self.name, self.min_ops, self.max_ops = name, min_ops, max_ops
        self.most: dict[Split, int | None] = {"train": training, "val": None, "test": testing}
        self.purged = purged
        self.path = SHIPPED if path is None else Path(path)
        self._graphs: dict[Split, list[Graph]] = {}

    def files(self) -> list[Path]:
        return [] if self.path == SHIPPED else [self.path / GRAPHS, self.path / INDEX]

    @cached_property
    def index(self) -> dict[int, list[Line]]:
        """Cluster -> facts about its graphs, in their order. Raises GraphError where there is no collection."""
        found: dict[int, list[Line]] = {}
        for line in index_of(self.path):
            found.setdefault(line["cluster"], []).append(line)
        return found

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            mine = {n: lines for n, lines in self.index.items() if lines[0]["split"] == split}
            chosen = {line["hash"] for line in self._chosen(mine, self.most[split])}
            graphs = self._read(mine, chosen)
            tested = self._tested(split) if self.purged else np.zeros(0, np.uint64)
            self._graphs[split] = [without(graph, tested) for graph in graphs] if len(tested) else graphs
        return self._graphs[split]

    def _read(self, clusters: Mapping[int, list[Line]], chosen: set[str]) -> list[Graph]:
        with Bar("read models", len(clusters)) as bar:
            found = []
            for number, lines in clusters.items():
                found += [graph for graph in self._cluster(number, lines) if graph.hash in chosen]
                bar.step(f"cluster {number}")
        return found

    def _tested(self, split: Split) -> U64:
        """Neighbourhoods of ops in the graphs, of all sizes, on which a model taught by a split is tested later."""
        later = {"train": ("val", "test"), "val": ("test",), "test": ()}[split]
        clusters = {n: lines for n, lines in self.index.items() if lines[0]["split"] in later}
        graphs = self._read(clusters, {line["hash"] for lines in clusters.values() for line in lines})
        return np.unique(np.concatenate([np.zeros(0, np.uint64), *(neighbourhoods(graph) for graph in graphs)]))

    def _chosen(self, clusters: Mapping[int, list[Line]], most: int | None) -> list[Line]:
        """Those of fitting size; `most` of them, a cluster after the other one more of each."""
        fitting = [
            [line for line in lines if self.min_ops <= line["ops"] <= self.max_ops] for lines in clusters.values()
        ]
        if most is None:
            return [line for lines in fitting for line in lines]
        shuffled = [[lines[i] for i in np.random.default_rng(0).permutation(len(lines))] for lines in fitting]
        turns = [line for turn in zip_longest(*shuffled) for line in turn if line is not None]
        return turns[:most]

    def _cluster(self, number: int, lines: Sequence[Line]) -> list[Graph]:
        source = f"{member(number)} of {self.path / GRAPHS}"
        try:
            content = read_member(self.path / GRAPHS, member(number), MOST)
            graphs = unpack(content, source, [(line["name"], cluster_name(lines)) for line in lines])
        except (Unreadable, KeyError, ValueError, TypeError, IndexError, OverflowError) as error:
            raise GraphError(f"{source} cannot be read ({error}); make the collection anew") from None
        wrong = next((line["name"] for graph, line in zip(graphs, lines) if graph.hash != line["hash"]), None)
        if wrong:
            raise GraphError(f"{source} is damaged: {wrong} is not the graph that the index names")
        return graphs


def index_of(folder: Path) -> list[Line]:
    """Facts about the graphs of a collection. Raises GraphError where there is none."""
    try:
        said: list[Line] = read_json(folder / INDEX, 64 * MIB)["graphs"]
        if any(type(line[key]) is not kind for line in said for key, kind in KEYS.items()):
            raise ValueError("a line of its index is none")
    except (Unreadable, OSError, KeyError, TypeError, ValueError) as error:
        raise GraphError(f"{folder} holds no collection of models ({error})") from None
    return said


def cluster_name(lines: Sequence[Line]) -> str:
    """LIBRARY/FAMILY of the family with the most graphs, the first of several."""
    counts = Counter(f"{line['library']}/{line['family']}" for line in lines)
    return min(counts, key=lambda family: (-counts[family], family))


def without(graph: Graph, tested: U64) -> Graph:
    """The graph with the ops held out whose neighbourhood is one of `tested`."""
    held_out: Bool = np.isin(neighbourhoods(graph), tested)
    return replace(graph, held_out=held_out)
