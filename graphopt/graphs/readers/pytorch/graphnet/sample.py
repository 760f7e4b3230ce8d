"""One sample of GraphNet as a module with inputs: its text read as data, its tensors as they are described."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from graphopt.core.errors import Unreadable
from graphopt.core.graph import GraphError
from graphopt.core.utils.limits import MIB, parse_json
from graphopt.graphs.readers.pytorch.capture import fake_mode
from graphopt.graphs.readers.pytorch.graphnet.archive import FACTS, INPUTS, TEXT, WEIGHTS
from graphopt.graphs.readers.pytorch.graphnet.metadata import STATE, Described, number_of, read_metadata, spec_of
from graphopt.graphs.readers.pytorch.graphnet.running import Run, with_numbers
from graphopt.graphs.readers.pytorch.graphnet.text import read_text
from graphopt.graphs.readers.pytorch.known_values import MOST_KNOWN
from graphopt.graphs.readers.pytorch.program_inputs import InputSpec, make_inputs, torch_dtype


@dataclass(frozen=True, eq=False)
class Sample:
    """A program and its arguments. gm: of torch's functions, a placeholder for each of `specs`, by their names.
    learned: names of parameters."""

    gm: GraphModule
    specs: Mapping[str, InputSpec]
    learned: frozenset[str]

    def module(self, *, fake: bool, seed: int = 0) -> "tuple[SampleModule, tuple[Tensor, ...]]":
        """(the module with its parameters and buffers, its inputs); fake: without memory, else drawn from the seed."""
        names = list(self.specs)
        gm = self.gm
        if not fake:  # numbers that are read from stored values stand in the program: no compiler sees the reading
            stand_in, given = self.module(fake=True)
            run = Run(gm, stand_in.known)
            run.run(*stand_in.arranged(given))
            gm = with_numbers(gm, run.numbers)
        if fake:
            with fake_mode():
                made = [torch.empty(spec.shape, dtype=torch_dtype(spec.dtype)) for spec in self.specs.values()]
        else:
            made = make_inputs(list(self.specs.values()), seed)
        tensors = dict(zip(names, made))
        module = SampleModule(gm)
        for name in names:
            if name in self.learned:
                tensor = tensors[name]
                floats = tensor.is_floating_point() or tensor.is_complex()
                module.register_parameter(name, nn.Parameter(tensor, requires_grad=floats))
            elif name.startswith(STATE):
                module.register_buffer(name, tensors[name])
        if fake:
            module.known = {n: s for n, s in self.specs.items() if s.fill == "exact" and s.extent <= MOST_KNOWN}
        return module, tuple(tensors[n] for n in names if n not in self.learned and not n.startswith(STATE))

    def described(self, module: nn.Module) -> list[InputSpec]:
        """Of the module's parameters and buffers, then of its inputs, as a captured program has them."""
        own = [name for name, _ in (*module.named_parameters(), *module.named_buffers())]
        return [self.specs[name] for name in (*own, *(name for name in self.specs if name not in own))]


def read_sample(files: Mapping[str, bytes], place: str) -> Sample:
    """files: the contents of `model.py`, `weight_meta.py` and, if it is there, `input_meta.py`. Raises GraphError, in
    one sentence that names file, line and operator."""
    if (framework := _facts(files).get("framework", "torch")) != "torch":
        raise GraphError(f"{place} is a program of {str(framework)[:40]}; programs of torch are read")
    for name in (TEXT, WEIGHTS):
        if name not in files:
            raise GraphError(f"{place} has no {name}; a sample of GraphNet has {TEXT} and {WEIGHTS}")
    described: dict[str, Described] = {}
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
    return Sample(GraphModule(nn.Module(), graph), specs, frozenset(learned) & specs.keys())


def _facts(files: Mapping[str, bytes]) -> Mapping[str, Any]:
    """A sample's own facts; none where the file is no JSON."""
    try:
        found = parse_json(files.get(FACTS, b"{}"), FACTS, MIB)
    except Unreadable:
        return {}
    return found if isinstance(found, dict) else {}


class SampleModule(nn.Module):
    """Runs a sample's graph: parameters and buffers are its own, inputs are given in the text's order."""

    def __init__(self, gm: GraphModule) -> None:
        super().__init__()
        self.known: Mapping[str, InputSpec] = {}  # whose values are followed
        self._program = (gm,)  # no part of it: it has no parameters
        self._names = [str(node.target) for node in gm.graph.find_nodes(op="placeholder")]

    def arranged(self, inputs: Sequence[Tensor]) -> list[Any]:
        """The module's own tensors and its inputs, in the order of the program's arguments."""
        given, own = iter(inputs), {**self._parameters, **self._buffers}
        return [own[name] if name in own else next(given) for name in self._names]

    @property
    def program(self) -> GraphModule:
        """Its parameters and buffers are arguments."""
        return self._program[0]

    def forward(self, *inputs: Tensor) -> Any:
        gm = self.program
        values = self.arranged(inputs)
        return gm(*values) if torch.compiler.is_compiling() else Run(gm, self.known).run(*values)
