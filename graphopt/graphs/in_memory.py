"""Graphs that a program holds already, as a data set."""

from collections.abc import Sequence
from typing import ClassVar

from graphopt.core.graph import Graph
from graphopt.graphs.dataset import Dataset, Split


class InMemory(Dataset):
    """No option of the command line: programs make it."""

    gives: ClassVar[frozenset[str]] = frozenset(
        {"compiled_program", "fx_program", "onnx_program", "step", "terms"}
    )  # as far as the graphs do

    def __init__(
        self, *, name: str, held: Sequence[Graph], train: Sequence[Graph] = (), val: Sequence[Graph] = ()
    ) -> None:
        self.name = name
        self._held: dict[Split, list[Graph]] = {"train": list(train), "val": list(val), "test": list(held)}

    def graphs(self, split: Split) -> list[Graph]:
        return self._held[split]
