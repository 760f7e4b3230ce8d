"""`programs`: models with the programs that compute them, for cost models that run these.

An entry of a split says where a model comes from, and its sizes:

- `{zoo: bert, layers: 2, width: 64}`: a model of `graphopt.graphs.zoo`;
- `{timm: NAME, batch: 8, size: 64, settings: {...}}`, `{transformers: TYPE, ...}`: a library's, which has to be
  installed; `settings` are arguments of the architecture, or fields of the configuration;
- `{module: package.module:factory}`: your own; `factory()` returns (nn.Module, example inputs);
- `{graphnet: FOLDER}`: a sample of GraphNet, by its folder, which may lie in an archive; read as data, and run on
  tensors of the stored means, deviations and ranges.

With `backward: true` the gradients belong to the program. `name` is the graph's name, `family` its family: no family
stands in two splits.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from graphopt.core.graph import Graph, GraphError
from graphopt.core.utils.marks import RUNS, OwnFolder
from graphopt.graphs.cache import GraphCache
from graphopt.graphs.dataset import EntryDataset
from graphopt.graphs.zoo_dataset import capture_model

Spec = Mapping[str, Any]
Entry = Annotated[Spec, RUNS]  # settings of libraries, or modules
SOURCES = ("zoo", "timm", "transformers", "module", "graphnet")


class Programs(EntryDataset):
    """cache_dir: folder of captured programs; null: $GRAPHOPT_CACHE, else ~/.cache/graphopt."""

    gives: ClassVar[frozenset[str]] = frozenset({"fx_program"})

    def __init__(
        self, *, name: str, train: list[Entry], val: list[Entry], test: list[Entry], cache_dir: OwnFolder
    ) -> None:
        super().__init__(name, {"train": train, "val": val, "test": test})
        self._cache = GraphCache(cache_dir)

    def graph_of(self, entry: Spec) -> Graph:
        source = _source(entry)
        if source in ("module", "graphnet"):  # the named module or folder may change
            return _captured(source, entry)
        stem = str(entry.get("name", entry[source])).replace("/", "_")
        return self._cache.get(f"program-{stem}", dict(entry), lambda: _captured(source, entry))


def _source(spec: Spec) -> str:
    sources = [key for key in SOURCES if key in spec] if isinstance(spec, Mapping) else []
    if len(sources) != 1:
        raise GraphError(f"a program's entry names one of {', '.join(SOURCES)}, not {spec!r}")
    return sources[0]


def _captured(source: str, spec: Spec) -> Graph:
    """The graph of an entry, its program as the content of a program file."""
    from graphopt.graphs.readers.pytorch.program_file import packed_program
    from graphopt.hardware.program_run import as_program

    if source == "graphnet":
        graph = _graphnet(spec)
        program = graph.program
    else:
        graph = _zoo(spec) if source == "zoo" else _module(spec) if source == "module" else _library(source, spec)
        program = as_program(graph.program)
    name, family = str(spec.get("name", graph.name)), str(spec.get("family", graph.family))
    return replace(graph, name=name, family=family, program=packed_program(program))


def _zoo(spec: Spec) -> Graph:
    sizes = {key: value for key, value in spec.items() if key not in ("zoo", "name", "family")}
    return capture_model({"model": spec["zoo"], **sizes}, keep_program=True)


def _library(source: Any, spec: Spec) -> Graph:
    from graphopt.graphs.library.packages import sized
    from graphopt.graphs.readers.pytorch.capture import capture

    unknown = set(spec) - {source, "batch", "size", "settings", "backward", "name", "family"}
    if unknown:
        raise GraphError(f"entry {spec[source]} has no {', '.join(sorted(unknown))}; it has batch, size and settings")
    name = f"{source}/{spec[source]}"
    backward = bool(spec.get("backward"))
    return capture(*sized(source, spec, weights=False), name=name + "_backward" * backward, family=str(spec[source]),
                   backward=backward, keep_program=True)  # fmt: skip


def _module(spec: Spec) -> Graph:
    from graphopt.graphs.readers.pytorch.capture import capture
    from graphopt.graphs.torch_module import made_by

    module, inputs = made_by(str(spec["module"]))
    name = str(spec["module"]).replace(":", ".")
    return capture(module, inputs, name=name, family=name, backward=bool(spec.get("backward")), keep_program=True)


def _graphnet(spec: Spec) -> Graph:
    """Its program is one whose inputs are drawn as the sample describes them."""
    from graphopt.graphs.readers.pytorch.capture import capture
    from graphopt.graphs.readers.pytorch.graphnet.archive import sample_at
    from graphopt.graphs.readers.pytorch.graphnet.sample import read_sample
    from graphopt.hardware.program_run import as_program

    unknown = set(spec) - {"graphnet", "backward", "name", "family"}
    if unknown:
        raise GraphError(
            f"an entry of GraphNet has no {', '.join(sorted(unknown))}; its sizes are those that are stored"
        )
    name, backward = Path(str(spec["graphnet"])).name, bool(spec.get("backward"))
    sample = read_sample(sample_at(str(spec["graphnet"])), name)
    module, inputs = sample.module(fake=True)
    graph = capture(module, inputs, name=name + "_backward" * backward, family=name, backward=backward,
                    keep_program=True)  # fmt: skip
    program = as_program(graph.program)
    given = tuple(sample.described(module))
    return replace(graph, program=replace(program, inputs=given + program.inputs[len(given) :]))
