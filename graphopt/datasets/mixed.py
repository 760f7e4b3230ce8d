"""Random and real graphs together."""

from typing import Literal

from graphopt.datasets.base import Dataset, Split
from graphopt.graph import Graph


class Mixed(Dataset):
    """Trains and validates on the graphs of two data sets; `test` names those whose test graphs are reported on."""

    def __init__(
        self, *, name: str, synthetic: Dataset, real: Dataset, test: list[Literal["synthetic", "real"]]
    ) -> None:
        self.name, self._parts, self._test = name, {"synthetic": synthetic, "real": real}, list(test)
        self._origin: dict[str, str] = {}  # graph hash -> part

    def origin(self, graph: Graph) -> str:
        return self._origin[graph.hash]

    def graphs(self, split: Split) -> list[Graph]:
        chosen = self._test if split == "test" else self._parts
        found = [(self._parts[part].name, graph) for part in chosen for graph in self._parts[part].graphs(split)]
        self._origin |= {graph.hash: name for name, graph in found}
        return [graph for _, graph in found]
