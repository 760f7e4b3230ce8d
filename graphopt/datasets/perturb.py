"""Real graphs with other sizes: more training data than there are architectures (REGAL, as far as known)."""

import dataclasses
from dataclasses import dataclass

import numpy as np

from graphopt.core.graph import Graph


@dataclass(frozen=True, kw_only=True)
class Perturb:
    """Copies of every training graph, whose sizes are multiplied by log-normal factors; numbers are sigmas of their
    logarithms. How far the paper perturbs is unknown; the factors of kinds, which change what fills memory, are ours.

    Shapes stay, so that a copy's bytes are no longer those of its shapes.
    """

    copies: int
    weights: float  # all weights of a graph
    flops: float  # all operations of a graph
    each: float  # every tensor, and every op's FLOP

    def copies_of(self, graph: Graph) -> list[Graph]:
        """The same ones whenever asked."""
        return [self._copy(graph, number) for number in range(self.copies)]

    def _copy(self, graph: Graph, number: int) -> Graph:
        rng = np.random.default_rng([int(graph.hash, 16), number])
        kind = np.where(graph.is_weight, np.exp(rng.normal(0.0, self.weights)), 1.0)
        size = graph.tensor_bytes * kind * np.exp(rng.normal(0.0, self.each, graph.num_tensors))
        flops = np.exp(rng.normal(0.0, self.flops)) * np.exp(rng.normal(0.0, self.each, graph.num_ops))
        return dataclasses.replace(
            graph, name=f"{graph.name}_perturbed{number}", tensor_bytes=np.rint(size).astype(np.int64),
            flops=graph.flops * flops, program=None,
        )  # fmt: skip
