"""Models on which rewriting is compared, as a data set of graphs that carry programs."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.dataset import EntryDataset, models_extent

Spec = Mapping[str, Any]


class RewriteModels(EntryDataset):
    """Graphs by entries: `{model: bert, blocks: 2}`, a model of `graphopt.rewrite.models` and its sizes; missing sizes
    have the published value. apart: no two splits share these, models or sizes of them.

    Raises GraphError on unknown models and sizes, and when a model, or a size of one, stands in two splits.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"terms"})

    def __init__(self, *, name: str, apart: Literal["models", "sizes"], train: list[Spec], val: list[Spec],
                 test: list[Spec]) -> None:  # fmt: skip
        super().__init__(name, {"train": train, "val": val, "test": test})
        self.apart = apart == "models"

    def extent(self) -> int:
        return models_extent(self._entries)

    def is_quick(self, entry: Spec) -> bool:
        return True

    def graph_of(self, entry: Spec) -> Graph:
        from graphopt.rewrite.io.as_graph import graph_of
        from graphopt.rewrite.models import build_model

        if not isinstance(entry, Mapping) or "model" not in entry:
            raise GraphError(f"an entry of rewrite_models is {{model: NAME, sizes...}}, not {entry!r}")
        sizes = {key: value for key, value in entry.items() if key != "model"}
        label = "_".join([entry["model"], *(f"{key}{value}" for key, value in sizes.items())])
        return graph_of(build_model(entry["model"], sizes), name=label, family=entry["model"])
