"""An order of ops, acted on: the user's module as a program that runs in that order and drops values as it says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from graphopt.core.graph import I64, GraphError
from graphopt.core.live_storage import orders_of
from graphopt.core.plan import Plans
from graphopt.graphs.readers.pytorch.nested_tensors import arguments_of, tensors_in
from graphopt.graphs.readers.pytorch.program_file import InputSpec
from graphopt.hardware.program_run import ProgramSteps, Session


class OrderedModule(nn.Module):
    """Computes what `module` does, with its weights as they are when it is called, op by op in an order.

    Called as the module is. A captured forward returns the tensors that the module returns, a list. One that was
    captured with gradients returns those and then, in the order of parameters and of inputs that require them, the
    gradients; `seeds` are the gradients that arrive at its outputs, ones by default.
    """

    def __init__(self, module: nn.Module, steps: ProgramSteps, order: I64) -> None:
        super().__init__()
        self.module, self.program = module, reordered(steps, order)
        self._inputs = steps.inputs

    def forward(self, *args: Any, seeds: list[Tensor] | None = None, **kwargs: Any) -> list[Tensor | None]:
        weights = [*self.module.parameters(), *self.module.buffers()]
        flat = [*weights, *tensors_in(arguments_of((args, kwargs)))]
        ends = self._inputs[len(flat) :]
        if seeds is None:
            seeds = [torch.ones(spec.shape, dtype=getattr(torch, spec.dtype)) for spec in ends]
        flat += [*map(_laid_out, seeds, ends), *seeds[len(ends) :]]
        layouts = [_layout(t.shape, t.stride(), str(t.dtype).removeprefix("torch.")) for t in flat]
        if layouts != [_layout(spec.shape, spec.stride, spec.dtype) for spec in self._inputs]:
            raise GraphError("the order was found for inputs of other shapes, types or memory layouts; call it with "
                             "those, or find another one")  # fmt: skip
        with torch.no_grad():
            return list(self.program(*flat))


def _layout(shape: Sequence[int], stride: Sequence[int], dtype: str) -> tuple[Any, ...]:
    """The layout that a captured program assumes: views and `as_strided` read other elements in another layout. In a
    dimension of size 1 the stride means nothing."""
    return tuple(shape), tuple(step for size, step in zip(shape, stride) if size > 1), dtype


def _laid_out(seed: Tensor, spec: InputSpec) -> Tensor:
    if tuple(seed.shape) != spec.shape or seed.stride() == spec.stride:
        return seed
    return torch.empty_strided(spec.shape, spec.stride, dtype=seed.dtype).copy_(seed)


@dataclass(frozen=True)
class Applied:
    """The result of an order. before, after: peak bytes of the program in its own order and in this one, from runs."""

    module: OrderedModule
    before: int
    after: int


def apply_order(module: nn.Module, plan: Plans, *, device: Literal["cpu", "cuda"] = "cpu", threads: int = 1) -> Applied:
    """Makes a plan (a batch of one, of a graph with its program) the order in which a module runs.

    Both orders are run on random inputs and compared, bit by bit. Raises GraphError where the graph is not of this
    module, RuntimeError where outputs differ.
    """
    session = Session(plan.graph, device, threads)
    steps, held = session.steps, [*module.parameters(), *module.buffers()]
    weights = [spec.shape for i, spec in enumerate(steps.inputs) if i not in steps.given]
    if [tuple(t.shape) for t in held] != weights:
        raise GraphError(f"{plan.graph.name} was not captured from this module; capture it again")
    order = orders_of(session.table, plan.priority)[0]
    return Applied(OrderedModule(module, steps, order), session.own_peak, session.run(order))


def reordered(steps: ProgramSteps, order: I64) -> GraphModule:
    """The program with its nodes in the sequence that an order means; its code drops every value after its last use."""
    graph, copies = FxGraph(), dict[Node, Node]()

    def copied(node: Node) -> Node:
        for given in node.all_input_nodes:
            if given not in copies and given.op == "get_attr":
                copies[given] = graph.node_copy(given)
        copies[node] = graph.node_copy(node, copies.__getitem__)
        return copies[node]

    for node in steps.placeholders:
        copied(node)
    for node in steps.in_order([int(op) for op in order]):
        copied(node)
        for part in steps.parts.get(node, []):
            copied(part)
    copied(steps.module.graph.output_node())
    graph.lint()
    return GraphModule(steps.module, graph)
