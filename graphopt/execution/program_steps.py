"""`ProgramSteps`: the nodes of a captured program that its outputs need, and which of them an order of ops places.

Ops of the graph that are no views are ordered. All other nodes (views, constants, copies of both) run right before the
first ordered one that needs them; a part of a tuple is taken as soon as the tuple is there.
"""

from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import getitem
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph, GraphError
from graphopt.execution.runnable import as_program
from graphopt.readers.pytorch.aten_table import METADATA_ONLY
from graphopt.readers.pytorch.program_file import FxProgram, InputSpec, unpacked_program


@dataclass(frozen=True, eq=False)
class ProgramSteps:
    """A prepared program. nodes: those that must run, in captured order, without parts of tuples."""

    module: GraphModule
    inputs: tuple[InputSpec, ...]
    given: frozenset[int]  # inputs that are given away: freed after their last use
    nodes: list[Node]
    parts: dict[Node, list[Node]]  # node that makes a tuple -> its parts that are needed
    node_of: dict[int, Node]  # ordered op of the graph -> its node
    ops: dict[Node, int]  # the same, the other way around

    @property
    def placeholders(self) -> list[Node]:
        return [node for node in self.module.graph.nodes if node.op == "placeholder"]

    @property
    def outputs(self) -> list[Node | None]:
        given: Any = self.module.graph.output_node().args[0]
        return list(given) if isinstance(given, (list, tuple)) else [given]

    def in_order(self, order: Sequence[int]) -> list[Node]:
        """All nodes in the sequence that an order of ops means. Raises GraphError where it is not legal."""
        done, sequence = set[Node](), list[Node]()
        for op in order:
            self._demand(self.node_of[op], done, sequence)
        if [self.ops[node] for node in sequence if node in self.ops] != list(order):
            raise GraphError("an order of ops runs one before what it reads; give priorities, which cannot")
        for node in self.nodes:
            self._demand(node, done, sequence)
        return sequence

    def _demand(self, node: Node, done: set[Node], sequence: list[Node]) -> None:
        """Appends a node after all that it needs; without recursion: chains of views are long."""
        stack = [(node, iter(makers(node)))]
        while stack:
            top, waiting = stack[-1]
            found = next((maker for maker in waiting if maker not in done), None)
            if found is not None:
                stack.append((found, iter(makers(found))))
                continue
            stack.pop()
            if top not in done:
                done.add(top)
                sequence.append(top)


def steps_of(graph: Graph) -> ProgramSteps:
    """The steps of a graph's program. Raises GraphError where it has none, or another one."""
    program = graph.program
    if isinstance(program, bytes):
        program = unpacked_program(program, f"the program of {graph.name}")
    elif isinstance(program, GraphModule):
        program = as_program(program)
    if not isinstance(program, FxProgram):
        raise GraphError(f"graph {graph.name!r} has no torch program to run; take dataset=programs or dataset=torch")
    module = _prepared(program.gm)
    needed = _needed(module)
    by_name = {node.name: node for node in needed}
    ordered = np.flatnonzero(~view_inline(graph)).tolist()
    lost = next((graph.op_names[op] for op in ordered if graph.op_names[op] not in by_name), None)
    if lost is not None:
        raise GraphError(f"graph {graph.name!r}: its program has no node {lost!r}; capture graph and program together")
    node_of = {op: by_name[graph.op_names[op]] for op in ordered}
    parts = {node: [user for user in node.users if user.target is getitem and user in needed] for node in needed}
    nodes = [node for node in needed if node.target is not getitem]
    ops, parts = {node: op for op, node in node_of.items()}, {node: own for node, own in parts.items() if own}
    return ProgramSteps(module, program.inputs, frozenset(program.donated), nodes, parts, node_of, ops)


def makers(node: Node) -> Iterator[Node]:
    """The calls whose results a node reads, behind parts of tuples."""
    for given in node.all_input_nodes:
        while given.target is getitem:
            given = given.all_input_nodes[0]
        if given.op == "call_function":
            yield given


def _needed(module: GraphModule) -> dict[Node, None]:
    """The calls that outputs need, in captured order."""
    wanted, nodes = set(module.graph.output_node().all_input_nodes), list(module.graph.nodes)
    for node in reversed(nodes):
        if node in wanted:
            wanted.update(node.all_input_nodes)
    return {node: None for node in nodes if node in wanted and node.op == "call_function"}


def _prepared(captured: GraphModule) -> GraphModule:
    """A copy whose results do not depend on the order: what draws random numbers has a seed of its own, what reads but
    the shape of a tensor is given one without memory."""
    module = GraphModule(captured, deepcopy(captured.graph))
    random = [node for node in module.graph.nodes if _draws(node)]
    if random:
        with module.graph.inserting_before(next(iter(_needed(module)))):
            seed = module.graph.call_function(first_seed)
        for i, node in enumerate(random):
            node.args, node.target = (seed, i, node.target, *node.args), drawn
    for node in module.graph.nodes:
        if _reads_shape_only(node):
            _detach(module, node)
    module.recompile()
    return module


def _draws(node: Node) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def _reads_shape_only(node: Node) -> bool:
    target: Any = node.args[2] if node.target is drawn else node.target
    return node.op == "call_function" and getattr(target, "_opname", "") in METADATA_ONLY


def _detach(module: GraphModule, node: Node) -> None:
    """Gives a node, in the place of its first tensor, one of that shape without memory."""
    at = next((i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.target is not first_seed), None)
    if at is None:
        return
    like: Any = node.args[at].meta["val"]  # type: ignore[union-attr]
    name = f"shape_of_{node.name}"
    module.register_buffer(name, torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta"))
    with module.graph.inserting_before(node):
        shape = module.graph.get_attr(name)
    node.args = (*node.args[:at], shape, *node.args[at + 1 :])
    node.kwargs = {"device": like.device, **{k: v for k, v in node.kwargs.items() if k != "device" or v is not None}}


def first_seed() -> int:
    """From the generator that the caller has seeded."""
    return int(torch.randint(2**31, ()))


def drawn(seed: int, place: int, target: Callable[..., Tensor], *args: Any, **settings: Any) -> Tensor:
    """What `target` draws by a seed of its own: the same whenever it runs. The caller's generators stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + place)
        return target(*args, **settings)
