"""REGAL's four random families (ICLR 2020, appendix A.1.4) and their orientation into computation graphs.

The generators give undirected edges [E, 2] over n nodes. The parameters are those of the paper's 50-op graphs; at other
sizes edge probabilities are scaled so that the mean degree stays. What the paper leaves open is our choice: costs are
drawn like sizes, source and sink cost nothing, and what the source sends is empty.
"""

from collections.abc import Callable

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.graph import I64, Graph
from graphopt.core.graph_builder import GraphBuilder

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
