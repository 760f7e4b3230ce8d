"""`ProgramSteps`: the nodes of a captured program that its outputs need, and which of them an order of ops places; and
a run of it op by op, with the bytes that its allocator reports.

Ops of the graph that are no views are ordered. All other nodes (views, constants, copies of both) run right before the
first ordered one that needs them; a part of a tuple is taken as soon as the tuple is there. Inputs are given away, and
values are dropped after their last use.

On a CPU the allocator's own reports are read from PyTorch's profiler: results, and what operators allocate inside. What
MKL or oneDNN take from the system for themselves is not among them. On a GPU they are the caching allocator's
statistics, in its blocks of 512 bytes.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from operator import getitem
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.autograd.profiler import profile, record_function
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphopt.core.fusible import view_inline
from graphopt.core.graph import Graph, GraphError
from graphopt.graphs.readers.pytorch.aten_table import METADATA_ONLY
from graphopt.graphs.readers.pytorch.program_file import FxProgram, InputSpec, unpacked_program
from graphopt.hardware.execution.runnable import as_program


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
    random = [n for n in module.graph.nodes if torch.Tag.nondeterministic_seeded in getattr(n.target, "tags", ())]
    if random:
        with module.graph.inserting_before(next(iter(_needed(module)))):
            seed = module.graph.call_function(first_seed)
        for i, node in enumerate(random):
            node.args, node.target = (seed, i, node.target, *node.args), drawn
    for node in module.graph.nodes:
        target: Any = node.args[2] if node.target is drawn else node.target
        if node.op != "call_function" or getattr(target, "_opname", "") not in METADATA_ONLY:
            continue
        tensors = [i for i, arg in enumerate(node.args) if isinstance(arg, Node) and arg.target is not first_seed]
        if tensors:
            at = tensors[0]
            like: Any = node.args[at].meta["val"]
            name = f"shape_of_{node.name}"
            empty = torch.empty_strided(like.shape, like.stride(), dtype=like.dtype, device="meta")
            module.register_buffer(name, empty)
            with module.graph.inserting_before(node):
                shape = module.graph.get_attr(name)
            node.args = (*node.args[:at], shape, *node.args[at + 1 :])
            kept = {key: value for key, value in node.kwargs.items() if key != "device" or value is not None}
            node.kwargs = {"device": like.device, **kept}
    module.recompile()
    return module


def first_seed() -> int:
    """From the generator that the caller has seeded."""
    return int(torch.randint(2**31, ()))


def drawn(seed: int, place: int, target: Callable[..., Tensor], *args: Any, **settings: Any) -> Tensor:
    """What `target` draws by a seed of its own: the same whenever it runs. The caller's generators stay as they are."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + place)
        return target(*args, **settings)


MARK = "graphopt node "
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler tells the terminal nothing of its own


@dataclass(frozen=True, eq=False)
class Execution:
    """What one run did."""

    outputs: list[Tensor | None]
    resident: int  # bytes there before it: inputs, weights, constants
    peak: int  # bytes at the worst moment, with what was resident
    workspace: list[int]  # [nodes] bytes above what lived before, at each node's worst moment


class Values:
    """What lives during a run: values of nodes, dropped after their last use in the sequence."""

    def __init__(self, steps: ProgramSteps, sequence: Sequence[Node], inputs: list[Tensor]) -> None:
        self.steps, self.sequence = steps, sequence
        self.device = next((value.device for value in inputs), torch.device("cpu"))
        self.of: dict[Node, Any] = {}
        self.left = Counter(given for node in sequence for given in dict.fromkeys(node.all_input_nodes))
        self.left.update(node for node in steps.outputs if node is not None)
        for node in steps.module.graph.nodes:
            if node.op == "get_attr" and self.left[node]:
                value = getattr(steps.module, str(node.target))
                self.of[node] = value if value.is_meta else value.to(self.device)
                self.left[node] += 1
        for i, node in enumerate(steps.placeholders):
            value, stays = inputs[i], i not in steps.given
            if self.left[node] or stays:
                self.of[node] = value
                self.left[node] += stays

    def begin(self) -> None:
        """Takes copies of the inputs that are given away, which an allocator that is watched then knows."""
        for i, node in enumerate(self.steps.placeholders):
            if i in self.steps.given and node in self.of:
                old = self.of[node]
                self.of[node] = torch.empty_strided(old.shape, old.stride(), dtype=old.dtype, device=old.device)
                self.of[node].copy_(old)

    def run(self, node: Node) -> None:
        """Computes a node and drops what nobody reads any more."""
        args, kwargs = map_arg((node.args, node.kwargs), self.of.__getitem__)
        value = node.target(*args, **kwargs)  # type: ignore[operator]
        del args, kwargs
        if node in self.steps.parts:
            for part in self.steps.parts[node]:
                self.of[part] = value[part.args[1]]
        else:
            self.of[node] = value
        del value
        self.drop(node)

    def drop(self, node: Node) -> None:
        """Forgets what nobody reads after this node."""
        for given in dict.fromkeys(node.all_input_nodes):
            self.left[given] -= 1
            if not self.left[given]:
                del self.of[given]
        for made in self.steps.parts.get(node, [node]):
            if not self.left[made]:
                del self.of[made]


def execute(steps: ProgramSteps, order: Sequence[int], inputs: list[Tensor]) -> Execution:
    """Runs the program in an order of its ops."""
    return run_all(Values(steps, steps.in_order(order), inputs))


def run_all(values: Values) -> Execution:
    """Runs a sequence to its end."""
    resident = sum(storages(values.of.values()).values())
    torch.manual_seed(0)
    with torch.no_grad():
        recorded = _on_gpu(values) if values.device.type == "cuda" else _on_cpu(values)
    outputs = [None if node is None else values.of[node] for node in values.steps.outputs]
    return Execution(outputs, resident, resident + recorded.peak, recorded.workspace)


def storages(values: Any) -> dict[int, int]:
    """Storage -> its bytes, of all tensors in a nesting of values."""
    found: dict[int, int] = {}
    stack = list(values)
    while stack:
        value = stack.pop()
        if isinstance(value, (list, tuple)):
            stack += value
        elif isinstance(value, Tensor) and not value.is_meta:
            found[value.untyped_storage()._cdata] = size_of(value)
    return found


def size_of(value: Tensor) -> int:
    """Bytes of its storage, as its device's allocator gives them out."""
    size = value.untyped_storage().nbytes()
    return -(-size // 512) * 512 if value.is_cuda else size


class _Recorded(NamedTuple):
    peak: int  # bytes over what was there at the start
    workspace: list[int]


def _on_cpu(values: Values) -> _Recorded:
    with profile(use_cpu=True, profile_memory=True) as profiler:
        values.begin()
        for i, running in enumerate(values.sequence):
            with record_function(f"{MARK}{i}"):
                values.run(running)
    tree: Any = profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    live = peak = 0
    began, workspace = dict[int, int](), [0] * len(values.sequence)
    for _, node, change in sorted(_changes(tree)):
        if node >= 0:
            before = began.setdefault(node, live)
            live += change
            peak, workspace[node] = max(peak, live), max(workspace[node], live - before)
    return _Recorded(peak, workspace)


def _changes(tree: Any) -> Iterator[tuple[int, int, int]]:
    """(time, place in the sequence of the node that was running, or -1, bytes) of all that the allocator reports."""
    stack = [(event, -1) for event in tree]
    while stack:
        event, node = stack.pop()
        if event.name.startswith(MARK):
            node = int(event.name.removeprefix(MARK))
        elif event.name == "[memory]":
            yield event.start_time_ns, node, event.extra_fields.alloc_size
        stack += [(child, node) for child in event.children]


def _on_gpu(values: Values) -> _Recorded:
    """By the caching allocator: what is given out, not what it holds back."""
    values.begin()
    first, peak, workspace = torch.cuda.memory_allocated(), 0, []
    for node in values.sequence:
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        values.run(node)
        workspace.append(torch.cuda.max_memory_allocated() - before)
        peak = max(peak, before + workspace[-1] - first)
    torch.cuda.synchronize()
    return _Recorded(peak, workspace)
