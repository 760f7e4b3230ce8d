"""Synthetic graphs: REGAL's four random families, and layered, DNN-like ones (`layered.py`).

The random families and their orientation into computation graphs are those of REGAL (ICLR 2020, appendix A.1.4). The
generators give undirected edges [E, 2] over n nodes. The parameters are those of the paper's 50-op graphs; at other
sizes edge probabilities are scaled so that the mean degree stays. The paper leaves these open, so they are our choices:
costs are drawn like sizes, source and sink cost nothing, and the source's result is empty.
"""

from collections.abc import Callable
from typing import get_args

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.graph_builder import GraphBuilder
from graphopt.core.utils.marks import Graphs, Ops, Seed
from graphopt.graphs.dataset import Dataset, Split, check_draws
from graphopt.graphs.layered import layered_graph

PAPER_OPS = 50  # mean number of ops in the paper


def erdos_renyi(n: int, scale: float, rng: Generator) -> I64:
    """Every pair with probability 0.05 * scale."""
    return _decode_triangle(_sample(n * (n - 1) // 2, 0.05 * scale, rng))


def barabasi_albert(n: int, scale: float, rng: Generator) -> I64:
    """Preferential attachment: each new node joins 2 different nodes, drawn in proportion to their degree."""
    ends = [0, 2, 1, 2]  # every node as often as its degree; node 2 has joined the first two
    for node in range(3, n):
        first = second = ends[int(rng.random() * len(ends))]
        while second == first:
            second = ends[int(rng.random() * len(ends))]
        ends += [first, node, second, node]
    return np.array(ends, np.int64).reshape(-1, 2)


def watts_strogatz(n: int, scale: float, rng: Generator) -> I64:
    """A ring in which each node is joined to its 4 nearest; with probability 0.3 an edge gets a random other end.

    It keeps its end where the new one would be a loop or is joined already.
    """
    edges = [(i, (i + step) % n) for step in (1, 2) for i in range(n)]
    present = {(min(a, b), max(a, b)) for a, b in edges}
    for a, b in edges:
        if rng.random() < 0.3:
            end = int(rng.integers(n))
            pair = (min(a, end), max(a, end))
            if end != a and pair not in present:
                present.remove((min(a, b), max(a, b)))
                present.add(pair)
    return np.array(sorted(present), np.int64)


def stochastic_block(n: int, scale: float, rng: Generator) -> I64:
    """4 equal blocks: pairs within a block with probability 0.3 * scale, between blocks 0.01 * scale."""
    bounds = np.linspace(0, n, 5).astype(np.int64)
    parts = []
    for a in range(4):
        size = int(bounds[a + 1] - bounds[a])
        parts.append(_decode_triangle(_sample(size * (size - 1) // 2, 0.3 * scale, rng)) + bounds[a])
        for b in range(a + 1, 4):
            width = int(bounds[b + 1] - bounds[b])
            codes = _sample(size * width, 0.01 * scale, rng)
            parts.append(np.stack([bounds[a] + codes // width, bounds[b] + codes % width], 1))
    return np.concatenate(parts)


FAMILIES: dict[str, Callable[[int, float, Generator], I64]] = {
    "erdos_renyi": erdos_renyi,
    "barabasi_albert": barabasi_albert,
    "watts_strogatz": watts_strogatz,
    "stochastic_block": stochastic_block,
}


def random_graph(family: str, n: int, scale: float, rng: Generator, name: str) -> Graph:
    """n ops of a family plus source and sink; edges point to the larger number of a random permutation.

    Every edge carries a tensor of its own; sizes in bytes and costs in FLOP are N(50, 10), rounded, at least 1.
    """
    edges = rng.permutation(n)[FAMILIES[family](n, scale, rng)]
    edges = np.sort(edges, axis=1)
    edges = edges[np.lexsort((edges[:, 1], edges[:, 0]))]
    costs, sizes = _normal(n, rng), _normal(len(edges) + n, rng)
    builder = GraphBuilder(name, family)
    inputs: list[list[int]] = [[] for _ in range(n)]
    results: list[list[int]] = [[] for _ in range(n)]
    for (a, b), size in zip(edges.tolist(), sizes.tolist(), strict=False):
        tensor = builder.tensor((size,), "uint8")
        results[a].append(tensor)
        inputs[b].append(tensor)
    heads = [op for op in range(n) if not inputs[op]]
    tails = [op for op in range(n) if not results[op]]
    for op in heads:
        inputs[op].append(builder.tensor((0,), "uint8"))
    for op in tails:
        results[op].append(builder.tensor((int(sizes[len(edges) + op]),), "uint8"))
    builder.op("opaque", [], [inputs[op][0] for op in heads], flops=0.0, name="source")
    for op in range(n):
        builder.op("opaque", inputs[op], results[op], flops=float(costs[op]), name=f"op_{op}")
    builder.op("opaque", [results[op][0] for op in tails], [], flops=0.0, name="sink")
    return builder.build()


def _normal(count: int, rng: Generator) -> NDArray[np.int64]:
    return np.maximum(np.rint(rng.normal(50, 10, count)), 1).astype(np.int64)


def _sample(total: int, probability: float, rng: Generator) -> I64:
    """Numbers below `total`, each with the probability, independently."""
    count = int(rng.binomial(total, min(probability, 1.0)))
    return rng.choice(total, count, replace=False, shuffle=False).astype(np.int64)


def _decode_triangle(codes: I64) -> I64:
    """Pair (i, j), j < i, number i * (i - 1) / 2 + j."""
    i = ((1 + np.sqrt(1 + 8 * codes.astype(np.float64))) / 2).astype(np.int64)
    i += (i * (i + 1) // 2 <= codes).astype(np.int64) - (i * (i - 1) // 2 > codes)
    return np.stack([i, codes - i * (i - 1) // 2], 1)


# --- The data set.


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
    """16 hex digits, equal for isomorphic graphs of any kinds and sizes (4 rounds of Weisfeiler-Lehman)."""
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
