"""Torch modules of the user's: one as a graph, or training steps of several, as a compiler splits them into forward and
backward programs.
"""

from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, ClassVar

from graphopt.core.errors import ConfigError
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import IMPORTS, UserPath
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.readers.pytorch.graphnet.archive import files_at, sample_at
from graphopt.graphs.readers.pytorch.sources import source_files


class TorchModule(Dataset):
    """The graph of the module that a factory makes.

    module: `package.module:factory`; `factory()` returns (nn.Module or function, example inputs), which `arguments_of`
    reads.
    graphnet: instead, a sample of GraphNet: its folder, or ARCHIVE/NAME; it is read as data.
    Nothing is computed: only shapes and dtypes count. backward: whether the graph also has the gradients of all
    parameters.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"fx_program", "terms"})

    def __init__(
        self, *, name: str, module: Annotated[str | None, IMPORTS], graphnet: UserPath, backward: bool
    ) -> None:
        if module is not None and graphnet is not None:
            raise ConfigError("dataset.module and dataset.graphnet are two programs; give one of them")
        self.name, self._module, self._graphnet, self._backward = name, module, graphnet, backward
        self._graph: Graph | None = None

    def files(self) -> list[Path]:
        """The sources of the factory's module and of their imports that are not installed."""
        if self._graphnet is not None:
            place = Path(self._graphnet).expanduser()
            return files_at(next((p for p in (place, *place.parents) if p.exists()), place))
        return source_files((self._module or "").partition(":")[0])

    def graphs(self, split: Split) -> list[Graph]:
        if split != "test":
            return []
        if self._graph is None:
            self._graph = self._capture()
        return [self._graph]

    def _capture(self) -> Graph:
        from graphopt.graphs.readers.pytorch.capture import capture

        label = self._module or self._graphnet or ""
        module, inputs = made_by(label) if self._graphnet is None else sampled(self._graphnet)
        name = label.replace(":", ".") if self._graphnet is None else Path(label).name
        return capture(module, inputs, name=name, family=name, backward=self._backward, keep_program=True)


def sampled(place: str) -> tuple[Any, Any]:
    """(module, inputs without memory) of a sample of GraphNet."""
    from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample

    return read_sample(sample_at(place), place).module(fake=True)


def made_by(label: str) -> tuple[Any, Any]:
    """(module, example inputs) from the factory that `package.module:factory` names."""
    made = _called(_factory(label), label)
    module = as_module(made[0]) if isinstance(made, tuple) and len(made) == 2 else None
    if module is None:
        raise GraphError(f"dataset.module={label}: the factory must return (nn.Module or function, example inputs), "
                         f"not {type(made).__name__}")  # fmt: skip
    return module, made[1]


def as_module(model: Any) -> Any:
    """An nn.Module: the model, or of a function of tensors one that calls it; None for anything else. A method's module
    is a part of the module that calls it, so its parameters are known. Of a result of torch.compile: the module
    before."""
    from torch import nn

    model = getattr(model, "_orig_mod", getattr(model, "_torchdynamo_orig_callable", model))
    if isinstance(model, nn.Module):
        return model
    if not callable(model) or isinstance(model, type):
        return None

    def forward(*args: Any, **kwargs: Any) -> Any:
        return model(*args, **kwargs)

    name = getattr(model, "__name__", type(model).__name__).strip("<>")
    made = type(name, (nn.Module,), {"forward": staticmethod(forward)})()
    owner = getattr(model, "__self__", None)
    if isinstance(owner, nn.Module):
        made.owner = owner
    return made


def _factory(label: str) -> Any:
    place, _, name = label.partition(":")
    if not place or not name:
        raise GraphError(f"dataset.module must be 'package.module:factory', not {label!r}")
    try:
        found = import_module(place)
    except ImportError as error:
        raise GraphError(f"dataset.module={label}: {error}; put its folder on PYTHONPATH") from error
    except (Exception, SystemExit) as error:
        raise GraphError(f"dataset.module={label}: importing {place} failed with {_brief(error)}") from error
    if not hasattr(found, name):
        near = get_close_matches(name, vars(found), 1)
        raise GraphError(f"dataset.module={label}: {place} has no {name!r}{f'; did you mean {near[0]}?' * bool(near)}")
    return getattr(found, name)


def _called(factory: Any, label: str) -> Any:
    if not callable(factory):
        raise GraphError(f"dataset.module={label}: it names no function but {type(factory).__name__}")
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise GraphError(f"dataset.module={label}: the factory failed with {_brief(error)}") from error


def _brief(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())


# --- Training steps.


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
        """The sources of the factories' modules and of their imports that are not installed."""
        return [file for label in self._modules for file in source_files(label.partition(":")[0])]

    def graphs(self, split: Split) -> list[Graph]:
        if split != "test":
            return []
        if self._graphs is None:
            self._graphs = []
            for label in self._modules:
                with self.leaving_out(split, label, alone=len(self._modules) == 1):
                    self._graphs.append(_captured(label))
        return self._graphs


def _captured(label: str) -> Graph:
    from graphopt.graphs.readers.pytorch.step_capture import capture_step

    module, inputs = made_by(label)
    name = label.replace(":", ".")
    return capture_step(module, inputs, name=name, family=name)
