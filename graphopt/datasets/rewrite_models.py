"""Models on which rewriting is compared, as a data set of graphs that carry programs."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.dataset import Dataset, Split, check_splits, models_extent

Spec = Mapping[str, Any]


class RewriteModels(Dataset):
    """Graphs by entries: `{model: bert, blocks: 2}`, a model of `graphopt.rewrite.models` and its sizes; what is left
    out has the published value. apart: what no two splits share, models or sizes of them.

    Raises GraphError on unknown models and sizes, and when a model, or a size of one, stands in two splits.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"terms"})

    def __init__(self, *, name: str, apart: Literal["models", "sizes"], train: list[Spec], val: list[Spec],
                 test: list[Spec]) -> None:  # fmt: skip
        self.name, self.apart = name, apart
        self._specs: dict[Split, list[Spec]] = {"train": train, "val": val, "test": test}
        self._graphs: dict[Split, list[Graph]] = {}

    def extent(self) -> int:
        return models_extent([spec for specs in self._specs.values() for spec in specs])

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            self._graphs[split] = _made(self._specs[split])
            check_splits(self._graphs, families=self.apart == "models")
        return self._graphs[split]


def _made(specs: Sequence[Spec]) -> list[Graph]:
    from graphopt.rewrite.io.as_graph import graph_of
    from graphopt.rewrite.models import build_model

    graphs = []
    for spec in specs:
        if not isinstance(spec, Mapping) or "model" not in spec:
            raise GraphError(f"an entry of rewrite_models is {{model: NAME, sizes...}}, not {spec!r}")
        sizes = {key: value for key, value in spec.items() if key != "model"}
        label = "_".join([spec["model"], *(f"{key}{value}" for key, value in sizes.items())])
        graphs.append(graph_of(build_model(spec["model"], sizes), name=label, family=spec["model"]))
    return graphs
