"""`lowered`: programs as a compiler sees them, for cost models that compile: what TorchInductor lowers.

A source is a Python file of the user's, with a mapping `PROGRAMS` (or `P`): name -> function of no arguments that gives
(function or nn.Module, its example inputs).
"""

import importlib.util
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar, Literal

from graphopt.core.graph import Graph, GraphError
from graphopt.datasets.cache import GraphCache
from graphopt.datasets.dataset import Dataset, Split
from graphopt.utils.progress import Bar

OWN = Path(__file__).parents[1] / "library" / "own_programs.py"
Made = Callable[[], tuple[Any, Any]]


class LoweredPrograms(Dataset):
    """source: the file; null: the one that comes with graphopt. only: names; empty: all. graphs: `step`, the whole
    program as one graph, gradients included that it takes itself; `compiled`, those that torch.compile makes of it:
    forward and backward. cache_dir: folder of captured graphs; null: $GRAPHOPT_CACHE, else ~/.cache/graphopt.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"compiled_program"})

    def __init__(self, *, name: str, source: str | None, only: list[str], graphs: Literal["step", "compiled"],
                 cache_dir: str | None) -> None:  # fmt: skip
        self.name, self.only, self.mode = name, only, graphs
        self.source = OWN if source is None else Path(source)
        self._cache = GraphCache(cache_dir)
        self._graphs: list[Graph] | None = None

    def files(self) -> list[Path]:
        return [self.source]

    def graphs(self, split: Split) -> list[Graph]:
        if split != "test":
            return []
        if self._graphs is None:
            programs = self._programs()
            self._graphs = []
            with Bar("capture", len(programs)) as bar:
                for name, make in programs.items():
                    self._graphs += self._captured(name, make)
                    bar.step(name)
        return self._graphs

    def _programs(self) -> Mapping[str, Made]:
        found = programs_in(self.source)
        unknown = [name for name in self.only if name not in found]
        if unknown:
            raise GraphError(f"{self.source} has no program {unknown[0]!r}; it has {', '.join(found)}")
        return {name: found[name] for name in self.only or found}

    def _captured(self, name: str, make: Made) -> list[Graph]:
        """Its graphs, each in the cache by what the source says now."""
        request = {"source": self.source.read_text(), "name": name, "graphs": self.mode}
        if self.mode == "step":
            return [self._cache.get(f"step-{name}", request, lambda: _steps(name, make)[0])]
        parts = [part for part in PARTS if self._cache.has(f"compiled-{name}.{part}", request)]
        if not parts:
            made = {graph.name.partition(".")[2]: graph for graph in _compiled(name, make)}
            return [self._cache.get(f"compiled-{name}.{part}", request, lambda g=graph: g)  # type: ignore[misc]
                    for part, graph in made.items()]  # fmt: skip
        return [self._cache.get(f"compiled-{name}.{part}", request, _gone) for part in parts]


PARTS = tuple(f"{phase}{number}" for phase in ("inference", "forward", "backward")
              for number in ("", *(f".{i}" for i in range(1, 64))))  # fmt: skip


def _gone() -> Graph:
    raise GraphError("a captured graph is damaged; set dataset.cache_dir to another folder to capture it again")


def _steps(name: str, make: Made) -> list[Graph]:
    from graphopt.inductor.captured import capture_step

    function, inputs = _made(name, make)
    return [_graph(capture_step(function, inputs), name, name)]


def _compiled(name: str, make: Made) -> list[Graph]:
    from graphopt.inductor.captured import capture_compiled

    function, inputs = _made(name, make)
    parts = capture_compiled(function, inputs)
    return [_graph(program, f"{name}.{part}", name) for part, program in parts.items()]


def _graph(program: Any, name: str, family: str) -> Graph:
    from dataclasses import replace

    from graphopt.inductor.captured import as_graph
    from graphopt.readers.pytorch.program_file import packed_program

    return replace(as_graph(program, name=name, family=family), program=packed_program(program))


def _made(name: str, make: Made) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise GraphError(f"program {name}: its function must return (function or module, example inputs)")
    return made


def programs_in(file: Path) -> Mapping[str, Made]:
    """What a source file holds; it is the user's own code, and run. Raises GraphError."""
    if not file.is_file():
        raise GraphError(f"no file {file}; dataset.source is a Python file with PROGRAMS: name -> function")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        raise GraphError(f"{file} cannot be run: {type(error).__name__}: {error}") from error
    found = getattr(module, "PROGRAMS", getattr(module, "P", None))
    if not isinstance(found, dict) or not found:
        raise GraphError(f"{file} has no PROGRAMS: name -> function that gives (function or module, example inputs)")
    return found
