"""One sample of GraphNet as a module with inputs: its text read as data, its tensors as they are described."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from graphopt.core.graph import GraphError
from graphopt.graphs.readers.graphnet.metadata import number_of, read_metadata, spec_of
from graphopt.graphs.readers.graphnet.running import Run
from graphopt.graphs.readers.graphnet.text import read_text
from graphopt.graphs.readers.pytorch.capture import fake_mode
from graphopt.graphs.readers.pytorch.program_inputs import InputSpec, make_inputs, torch_dtype

TEXT, WEIGHTS, INPUTS, FACTS = "model.py", "weight_meta.py", "input_meta.py", "graph_net.json"
STATE = "L_self_"  # how names of parameters, buffers and constants of the module begin
MOST_KNOWN = 2**18  # elements of a tensor whose values are followed


@dataclass(frozen=True, eq=False)
class Sample:
    """A program and what it is run on. gm: of torch's functions, a placeholder for each of `specs`, by their names.
    learned: names of parameters."""

    gm: GraphModule
    specs: Mapping[str, InputSpec]
    learned: frozenset[str]

    def module(self, *, fake: bool, seed: int = 0) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """(the module with its parameters and buffers, its inputs); fake: without memory, else drawn from the seed."""
        names = list(self.specs)
        if fake:
            with fake_mode():
                made = [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in self.specs.values()]
        else:
            made = make_inputs(list(self.specs.values()), seed)
        tensors = dict(zip(names, made))
        module = SampleModule(self.gm)
        for name in names:
            if name in self.learned:
                tensor = tensors[name]
                floats = tensor.is_floating_point() or tensor.is_complex()
                module.register_parameter(name, nn.Parameter(tensor, requires_grad=floats))
            elif name.startswith(STATE):
                module.register_buffer(name, tensors[name])
        module.known = {n: s for n, s in self.specs.items() if s.fill == "exact" and s.extent <= MOST_KNOWN}
        return module, tuple(tensors[n] for n in names if n not in self.learned and not n.startswith(STATE))


def read_sample(files: Mapping[str, bytes], place: str) -> Sample:
    """files: the contents of `model.py`, `weight_meta.py` and, if it is there, `input_meta.py`. Raises GraphError, in
    one sentence that names file, line and operator."""
    for name in (TEXT, WEIGHTS):
        if name not in files:
            raise GraphError(f"{place} has no {name}; a sample of GraphNet has {TEXT} and {WEIGHTS}")
    described = {}
    for name in (WEIGHTS, INPUTS):
        described |= read_metadata(files.get(name, b""), f"{place}/{name}")
    numbers = {name: value for name, of in described.items() if (value := number_of(of)) is not None}
    graph, learned = read_text(files[TEXT], f"{place}/{TEXT}", numbers)
    given = graph.find_nodes(op="placeholder")
    for node in given:
        if not node.users:
            graph.erase_node(node)
        elif node.target not in described:
            raise GraphError(f"{place}/{WEIGHTS} does not describe argument {str(node.target)[:80]}")
    used = [str(node.target) for node in graph.find_nodes(op="placeholder")]
    specs = {name: spec_of(described[name], f"{place}/{WEIGHTS}") for name in used}
    gm = GraphModule(nn.Module(), graph)
    gm.meta["place"] = f"{place}/{TEXT}"
    return Sample(gm, specs, frozenset(learned) & specs.keys())


def source_of(files: Mapping[str, bytes]) -> str:
    """The package that a sample says it comes from; empty where it does not."""
    try:
        found = json.loads(files.get(FACTS, b"{}"))
    except (ValueError, RecursionError):
        return ""
    return str(found.get("source", "")) if isinstance(found, dict) else ""


class SampleModule(nn.Module):
    """Runs a sample's graph: parameters and buffers are its own, inputs are given in the text's order."""

    known: Mapping[str, InputSpec]

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self._program = (gm,)  # no part of it: it has no parameters
        self._names = [str(node.target) for node in gm.graph.find_nodes(op="placeholder")]

    def forward(self, *inputs: Tensor) -> Any:
        given = iter(inputs)
        own = {**self._parameters, **self._buffers}
        values = [own[name] if name in own else next(given) for name in self._names]
        (gm,) = self._program
        return gm(*values) if torch.compiler.is_compiling() else Run(gm, self.known).run(*values)
