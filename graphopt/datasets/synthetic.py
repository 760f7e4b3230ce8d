"""Synthetic graphs: REGAL's four random families and layered, DNN-like ones."""

from typing import get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Dataset, Split, check_draws
from graphopt.datasets.layered import layered_graph
from graphopt.datasets.random_graphs import FAMILIES, PAPER_OPS, random_graph
from graphopt.utils.ranges import Graphs, Ops, Seed

SPLITS: tuple[Split, ...] = get_args(Split)


class Synthetic(Dataset):
    """Graphs drawn from families, in equal shares, as many per split as asked.

    ops: mean size (or a list of them, in equal shares); sizes are N(ops, ops / 5) as in REGAL, plus two for source and
    sink. A size belongs to one split (by its remainder modulo 3), so no topology can stand in two splits; within a
    split every topology stands once. `graph_seed` fixes the graphs; it is not the run's seed, so all runs of a study
    see the same ones.
    """

    def __init__(
        self,
        *,
        name: str,
        families: list[str],
        ops: Ops | list[Ops],
        train: Graphs,
        val: Graphs,
        test: Graphs,
        graph_seed: Seed,
    ) -> None:
        self.name, self._families, self._seed = name, list(families), graph_seed
        self._ops = [int(ops)] if isinstance(ops, int) else [int(o) for o in ops]
        self._counts: dict[Split, int] = {"train": train, "val": val, "test": test}
        self._graphs: dict[Split, list[Graph]] = {}
        unknown = sorted(set(self._families) - {*FAMILIES, "layered"})
        if unknown or not self._families:
            raise GraphError(
                f"no synthetic family {', '.join(unknown) or '[]'}; there are {', '.join(FAMILIES)}, layered"
            )
        check_draws(graph_seed, (train, val, test), self._ops)

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            self._graphs[split] = self._draw(split)
        return self._graphs[split]

    def extent(self) -> int:
        return sum(self._counts.values()) * max(self._ops)

    def _draw(self, split: Split) -> list[Graph]:
        seen: set[str] = set()
        graphs = []
        for i in range(self._counts[split]):
            family = self._families[i % len(self._families)]
            ops = self._ops[i // len(self._families) % len(self._ops)]
            graphs.append(self._fresh(family, ops, split, i, seen))
        return graphs

    def _fresh(self, family: str, ops: int, split: Split, i: int, seen: set[str]) -> Graph:
        """The first draw whose topology is new to the split."""
        for attempt in range(100):
            rng = np.random.default_rng([self._seed, SPLITS.index(split), i, attempt])
            graph = synthetic_graph(family, split_size(ops, split, rng), ops, rng, f"{family}_{ops}_{split}_{i}")
            digest = topology_digest(graph)
            if digest not in seen:
                seen.add(digest)
                return graph
        raise GraphError(f"no new {family} topology of about {ops} ops in 100 draws; ask for fewer or larger graphs")


def synthetic_graph(family: str, n: int, nominal: int, rng: Generator, name: str) -> Graph:
    """One graph of n + 2 ops (source and sink); edge probabilities are those of graphs of `nominal` ops."""
    if family == "layered":
        return layered_graph(n + 2, rng, name)
    return random_graph(family, n, PAPER_OPS / nominal, rng, name)


def split_size(ops: int, split: Split, rng: Generator) -> int:
    """N(ops, ops / 5), moved to the nearest size of the split (one more, one less, or as it is)."""
    size = max(round(rng.normal(ops, ops / 5)), 8)
    return size + (SPLITS.index(split) - size + 1) % 3 - 1


def topology_digest(graph: Graph) -> str:
    """16 hex digits, equal for isomorphic graphs whatever their kinds and sizes (4 rounds of Weisfeiler-Lehman)."""
    source, target, _ = graph.edges
    labels = np.ones(graph.num_ops, np.uint64)
    for _ in range(4):
        before, after = np.zeros_like(labels), np.zeros_like(labels)
        np.add.at(before, target, _mix(labels[source], 0x9E3779B97F4A7C15))
        np.add.at(after, source, _mix(labels[target], 0xC2B2AE3D27D4EB4F))
        labels = _mix(labels + _mix(before, 0x165667B19E3779F9) + _mix(after, 0xD6E8FEB86659FD93), 0xFF51AFD7ED558CCD)
    return f"{int(_mix(labels, 0x2545F4914F6CDD1D).sum(dtype=np.uint64)):016x}"


def _mix(labels: NDArray[np.uint64], factor: int) -> NDArray[np.uint64]:
    mixed: NDArray[np.uint64] = (labels ^ (labels >> np.uint64(31))) * np.uint64(factor)
    return mixed ^ (mixed >> np.uint64(29))
