"""`lowered`: programs as TorchInductor lowers them, for cost models that compile.

A source is a Python file of the user's, with a mapping `PROGRAMS` (or `P`): name -> function of no arguments that gives
(function or nn.Module, its example inputs). Gradients are computed of parameters and of inputs that require them.
"""

import importlib.util
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from graphopt.core.compiler import Device
from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import IMPORTS, RUNS, OwnFolder, UserPath
from graphopt.core.utils.terminal import Bar
from graphopt.graphs.cache import GraphCache
from graphopt.graphs.dataset import Dataset, Split
from graphopt.graphs.files import find_files
from graphopt.graphs.readers.pytorch.graphnet.archive import sample_at
from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample
from graphopt.graphs.torch_module import made_by

OWN = Path(__file__).parents[2] / "graphs" / "library" / "own_programs.py"
ENDING = ".program.json.gz"
MODELS = ("timm", "transformers", "module", "graphnet")
Made = Callable[[], tuple[Any, Any]]


class LoweredPrograms(Dataset):
    """source: the file; null: the one that comes with graphopt. only: names; empty: all. training: names of the same
    file, whose graphs are to be learned from and are no others'. models: more of them, entries as those of
    `dataset=programs` from timm, transformers, GraphNet or a module of yours. path: program files, which were saved
    before (`*.program.json.gz`), a folder of them or a pattern; without a source these alone count. graphs: `step`, the
    whole program and its gradient as one graph; `compiled`, those that torch.compile makes of it: forward and backward.
    device: where programs and their inputs are made and captured; saved ones have their own.
    cache_dir: folder of captured graphs; null: $GRAPHOPT_CACHE, else ~/.cache/graphopt.
    """

    gives: ClassVar[frozenset[str]] = frozenset({"compiled_program"})

    def __init__(self, *, name: str, source: Annotated[str | None, RUNS], only: list[str], training: list[str],
                 models: Annotated[list[Mapping[str, Any]], IMPORTS], path: UserPath,
                 graphs: Literal["step", "compiled"], device: Device, cache_dir: OwnFolder) -> None:  # fmt: skip
        self.name, self.only, self.training, self.models = name, only, training, models
        self.path, self.mode, self.device = path, graphs, device
        self.source = OWN if source is None else Path(source)
        self._alone = source is None and path is not None  # program files, and nothing else
        self._cache = GraphCache(cache_dir)
        self._graphs: dict[Split, list[Graph]] = {"val": []}

    def files(self) -> list[Path]:
        return [*([] if self._alone else [self.source]), *self._saved()]

    def _saved(self) -> list[Path]:
        return find_files(self.path, (f"*{ENDING}",)) if self.path else []

    def graphs(self, split: Split) -> list[Graph]:
        if split not in self._graphs:
            programs, saved = self._programs(split), self._saved() if split == "test" else []
            found: list[Graph] = []
            with Bar("capture", len(programs) + len(saved)) as bar:
                alone = len(programs) + len(saved) == 1
                for name, (said, make) in programs.items():
                    with self.leaving_out(split, name, alone=alone):
                        found += self._captured(name, said, make)
                    bar.step(name)
                for file in saved:
                    with self.leaving_out(split, str(file), alone=alone):
                        found.append(_loaded(file))
                    bar.step(file.name)
            self._graphs[split] = found
        return self._graphs[split]

    def _programs(self, split: Split) -> Mapping[str, tuple[str, Made]]:
        """Name -> everything that a captured graph depends on, and the function that makes the program."""
        if split == "train":
            return self._named(self.training) if self.training else {}
        models = {
            model_name(spec): (repr(sorted(spec.items(), key=str)), partial(model_of, spec)) for spec in self.models
        }
        if self._alone or (models and self.source == OWN and not self.only):
            return models
        return self._named(self.only) | models

    def _named(self, names: list[str]) -> dict[str, tuple[str, Made]]:
        """Programs of the file; without names all that are not learned from."""
        found, text = programs_in(self.source), self.source.read_text()
        unknown = [name for name in (*names, *self.training) if name not in found]
        if unknown:
            raise GraphError(f"{self.source} has no program {unknown[0]!r}; it has {', '.join(found)}")
        both = [name for name in self.only if name in self.training]
        if both:
            raise GraphError(f"{both[0]!r} is in dataset.only and in dataset.training: leave it in one of them")
        return {name: (text, found[name]) for name in names or found if names or name not in self.training}

    def _captured(self, name: str, said: str, make: Made) -> list[Graph]:
        """Its graphs, each in the cache by the source's present text."""
        request = {"source": said, "name": name, "graphs": self.mode, "device": self.device}
        make = partial(_on, self.device, make)
        if self.mode == "step":
            return [self._cache.get(f"step-{name}", request, lambda: _steps(name, make)[0])]
        parts = [part for part in PARTS if self._cache.has(f"compiled-{name}.{part}", request)]
        if not parts:
            made = {graph.name.removeprefix(f"{name}."): graph for graph in _compiled(name, make)}
            return [self._cache.get(f"compiled-{name}.{part}", request, lambda g=graph: g)  # type: ignore[misc]
                    for part, graph in made.items()]  # fmt: skip
        return [self._cache.get(f"compiled-{name}.{part}", request, _gone) for part in parts]


PARTS = tuple(f"{phase}{number}" for phase in ("inference", "forward", "backward")
              for number in ("", *(f".{i}" for i in range(1, 64))))  # fmt: skip


def _on(device: Device, make: Made) -> Any:
    """The program of `make` and its inputs, on the device. Raises GraphError where torch has no GPU."""
    import torch
    from torch.utils._pytree import tree_map_only

    if device == "cpu":
        return make()
    if not torch.cuda.is_available():
        raise GraphError(
            "dataset.device=cuda needs a GPU that torch can use, and there is none; set dataset.device=cpu"
        )
    with torch.device(device):
        made: Any = make()
    if not isinstance(made, tuple) or len(made) != 2:
        return made
    function, inputs = made
    moved = tree_map_only(torch.Tensor, lambda t: t.detach().to(device).requires_grad_(t.requires_grad), inputs)
    return function.to(device) if isinstance(function, torch.nn.Module) else function, moved


def _gone() -> Graph:
    raise GraphError("a captured graph is damaged; set dataset.cache_dir to another folder to capture it again")


def lowered_module(module: Any, inputs: Any, *, name: str, backward: bool) -> Graph:
    """TorchInductor's input for an nn.Module: its outputs, or with `backward` a whole step with gradients. The module
    is run once, on copies. Raises GraphError."""
    import torch

    from graphopt.hardware.inductor.captured import capture_compiled, capture_step, copied, whole_step

    own, given = deepcopy(module), copied(inputs)
    if backward:
        return _graph(capture_step(*whole_step(own, given)), name, name)
    with torch.no_grad():
        parts = [*capture_compiled(own, given).values()]
    if len(parts) != 1:
        raise GraphError(f"torch.compile makes {len(parts)} graphs of {name}; take cost=inductor, which takes them all")
    return _graph(parts[0], name, name)


def _steps(name: str, make: Made) -> list[Graph]:
    from graphopt.hardware.inductor.captured import capture_step, whole_step

    function, inputs = _made(name, make)
    with _about(name):
        return [_graph(capture_step(*whole_step(function, inputs)), name, name)]


def _compiled(name: str, make: Made) -> list[Graph]:
    from graphopt.hardware.inductor.captured import capture_compiled

    function, inputs = _made(name, make)
    with _about(name):
        parts = capture_compiled(function, inputs)
        return [_graph(program, f"{name}.{part}", name) for part, program in parts.items()]


def _loaded(file: Path) -> Graph:
    from graphopt.graphs.readers.pytorch.program_file import load_program

    name = file.name.removesuffix(ENDING)
    return _graph(load_program(file), name, name)


@contextmanager
def _about(name: str) -> Iterator[None]:
    """Errors say which program they are of."""
    try:
        yield
    except GraphError as error:
        raise GraphError(f"program {name}: {error}") from error


def _graph(program: Any, name: str, family: str) -> Graph:
    from graphopt.graphs.readers.pytorch.program_file import packed_program
    from graphopt.hardware.inductor.captured import as_graph
    from graphopt.hardware.inductor.lowering import own_choices

    if program.device == "cuda" and program.choices is None:
        program = replace(program, choices=own_choices(program))
    return replace(as_graph(program, name=name, family=family), program=packed_program(program))


def _made(name: str, make: Made) -> tuple[Any, Any]:
    import torch

    torch.manual_seed(0)
    made = make()
    if not (isinstance(made, tuple) and len(made) == 2 and callable(made[0])):
        raise GraphError(f"program {name}: its function must return (function or module, example inputs)")
    return made


def programs_in(file: Path) -> Mapping[str, Made]:
    """The programs of a source file; it is the user's own code, and run. Raises GraphError."""
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


def model_name(spec: Mapping[str, Any]) -> str:
    place = str(next((spec[key] for key in MODELS if key in spec), "?"))
    place = Path(place).name if "graphnet" in spec else place
    return str(spec.get("name", place)).replace("/", "_").replace(":", ".")


def model_of(spec: Mapping[str, Any]) -> tuple[Any, Any]:
    """The module of an entry, with random weights, and its inputs. Raises GraphError."""
    source = next((key for key in MODELS if key in spec), None)
    if source is None or set(spec) - {source, "batch", "size", "settings", "name"}:
        raise GraphError(f"a model's entry has one of {', '.join(MODELS)}, and batch, size, settings, name; not "
                         f"{dict(spec)!r}")  # fmt: skip
    if source == "module":
        return made_by(str(spec["module"]))
    if source == "graphnet":
        return read_sample(sample_at(str(spec["graphnet"])), model_name(spec)).module(fake=False)
    from graphopt.graphs.library.packages import sized

    return sized("timm" if source == "timm" else "transformers", spec, weights=True)
