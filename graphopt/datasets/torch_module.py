"""A user's own torch module as a data set of one test graph."""

from importlib import import_module
from typing import Any, ClassVar

from graphopt.datasets.base import Dataset, Split
from graphopt.graph import Graph, GraphError


class TorchModule(Dataset):
    """The graph of the module that a factory makes.

    module: `package.module:factory`; `factory()` returns (nn.Module, tuple of example inputs). Nothing is computed:
    only shapes and dtypes count. backward: whether the graph also has the gradients of all parameters.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"fx_program", "terms"})

    def __init__(self, *, name: str, module: str | None, backward: bool) -> None:
        self.name, self._module, self._backward = name, module, backward
        self._graph: Graph | None = None

    def graphs(self, split: Split) -> list[Graph]:
        if split != "test":
            return []
        if self._graph is None:
            self._graph = self._capture()
        return [self._graph]

    def _capture(self) -> Graph:
        from graphopt.datasets.capture import capture

        label = self._module or ""
        module, inputs = _made(label)
        name = label.replace(":", ".")
        return capture(module, inputs, name=name, family=name, backward=self._backward, keep_program=True)


def _made(label: str) -> tuple[Any, tuple[Any, ...]]:
    """(module, example inputs) from the factory that `package.module:factory` names."""
    from torch import nn

    place, _, factory_name = label.partition(":")
    if not place or not factory_name:
        raise GraphError(f"dataset.module must be 'package.module:factory', not {label!r}")
    try:
        factory = getattr(import_module(place), factory_name)
    except ImportError as error:
        raise GraphError(f"dataset.module={label}: {error}; put its folder on PYTHONPATH") from error
    except AttributeError as error:
        raise GraphError(f"dataset.module={label}: {place} has no {factory_name!r}") from error
    try:
        made = factory()
    except Exception as error:
        raise GraphError(f"dataset.module={label}: the factory failed with {type(error).__name__}: {error}") from error
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[0], nn.Module)):
        raise GraphError(f"dataset.module={label}: the factory must return (nn.Module, tuple of example inputs)")
    module, inputs = made
    return module, inputs if isinstance(inputs, tuple) else (inputs,)
