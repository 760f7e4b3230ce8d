"""Training steps of a user's own torch modules, as a compiler splits them into forward and backward programs."""

from pathlib import Path
from typing import Annotated, ClassVar

from graphopt.core.graph import Graph
from graphopt.datasets.dataset import Dataset, Split
from graphopt.datasets.torch_module import made_by
from graphopt.readers.pytorch.sources import source_files
from graphopt.utils.outside import IMPORTS


class TrainingSteps(Dataset):
    """The joint graphs of forward and gradients of the modules that factories make, all of the test split.

    modules: `package.module:factory` each; `factory()` returns (module whose result is its loss, its inputs).
    Nothing is computed.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"step"})

    def __init__(self, *, name: str, modules: Annotated[list[str], IMPORTS]) -> None:
        self.name, self._modules = name, modules
        self._graphs: list[Graph] | None = None

    def files(self) -> list[Path]:
        """The sources of the factories' modules and of what they import that is not installed."""
        return [file for label in self._modules for file in source_files(label.partition(":")[0])]

    def graphs(self, split: Split) -> list[Graph]:
        if split != "test":
            return []
        if self._graphs is None:
            self._graphs = [_captured(label) for label in self._modules]
        return self._graphs


def _captured(label: str) -> Graph:
    from graphopt.readers.pytorch.step_capture import capture_step

    module, inputs = made_by(label)
    name = label.replace(":", ".")
    return capture_step(module, inputs, name=name, family=name)
