"""Random and real graphs together, and real ones with other sizes: more training data than there are architectures."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.utils.marks import Graphs, NotNegative
from graphopt.graphs.dataset import Dataset, Split


@dataclass(frozen=True, kw_only=True)
class Perturb:
    """Copies of every training graph, whose sizes are multiplied by log-normal factors; numbers are sigmas of their
    logarithms. How far REGAL perturbs is unknown; the factors of kinds, which change the largest tensors, are ours.

    Shapes stay, so that a copy's bytes are no longer those of its shapes.
    """

    copies: Graphs
    weights: NotNegative  # all weights of a graph
    flops: NotNegative  # all operations of a graph
    each: NotNegative  # every tensor, and every op's FLOP

    def copies_of(self, graph: Graph) -> list[Graph]:
        """The same ones whenever asked."""
        return [self._copy(graph, number) for number in range(self.copies)]

    def _copy(self, graph: Graph, number: int) -> Graph:
        rng = np.random.default_rng([int(graph.hash, 16), number])
        kind = np.where(graph.is_weight, np.exp(rng.normal(0.0, self.weights)), 1.0)
        size = graph.tensor_bytes * kind * np.exp(rng.normal(0.0, self.each, graph.num_tensors))
        flops = np.exp(rng.normal(0.0, self.flops)) * np.exp(rng.normal(0.0, self.each, graph.num_ops))
        return replace(
            graph, name=f"{graph.name}_perturbed{number}", tensor_bytes=np.rint(size).astype(np.int64),
            flops=graph.flops * flops, program=None,
        )  # fmt: skip


class Mixed(Dataset):
    """Trains and validates on the graphs of two data sets; `test` names those whose test graphs are reported on.

    perturb: more training graphs, made of the real ones.
    """

    def __init__(self, *, name: str, synthetic: Dataset, real: Dataset, perturb: Perturb,
                 test: list[Literal["synthetic", "real"]]) -> None:  # fmt: skip
        self.name, self._parts, self._test = name, {"synthetic": synthetic, "real": real}, list(test)
        self._perturb = perturb
        self._origin: dict[str, str] = {}  # graph hash -> part

    def origin(self, graph: Graph) -> str:
        return self._origin[graph.hash]

    def unread(self, split: Split) -> Mapping[str, str]:
        chosen = self._test if split == "test" else self._parts
        return {name: why for part in chosen for name, why in self._parts[part].unread(split).items()}

    def extent(self) -> int | None:
        parts = [part.extent() for part in self._parts.values()]
        known = [extent for extent in parts if extent is not None]
        return sum(known) * (1 + self._perturb.copies) if len(known) == len(parts) else None

    def files(self) -> list[Path]:
        return [file for part in self._parts.values() for file in part.files()]

    def graphs(self, split: Split) -> list[Graph]:
        chosen = self._test if split == "test" else self._parts
        found = [(self._parts[part].name, graph) for part in chosen for graph in self._parts[part].graphs(split)]
        if split == "train":
            real = self._parts["real"]
            found += [(real.name, copy) for graph in real.graphs(split) for copy in self._perturb.copies_of(graph)]
        self._origin |= {graph.hash: name for name, graph in found}
        return [graph for _, graph in found]
