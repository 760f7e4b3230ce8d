"""Captured torch programs run op by op, in a chosen order, with the bytes that live meanwhile.

`as_program`: a captured module with inputs that it can be run on, random numbers, and indices within their bounds.
`ProgramSteps`: the nodes of a program that its outputs need, and which of them an order of ops places. `Session`: a
graph's program, ready to be run in any order. It has its inputs, its expected outputs, and the table of its nodes'
allocations (`LiveStorage`), found by running it once.

Ops of the graph that are no views are ordered. All other nodes (views, constants, copies of both) run right before the
first ordered one that needs them; a part of a tuple is taken as soon as the tuple is there. Inputs are given away, and
values are dropped after their last use.

On a CPU the allocator's own reports are read from PyTorch's profiler: results, and allocations inside operators. Memory
that MKL or oneDNN take from the system for themselves is not among them. On a GPU they are the caching allocator's
statistics, in its blocks of 512 bytes.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from operator import getitem
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.profiler import profile, record_function
from torch.fx import GraphModule, Node
from torch.fx.node import map_arg

from graphopt.core.errors import UserError
from graphopt.core.fusible import view_inline
from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.live_storage import LiveStorage
from graphopt.core.utils.limits import machine_memory
from graphopt.core.utils.process import rehearse
from graphopt.graphs.readers.pytorch.aten_table import METADATA_ONLY
from graphopt.graphs.readers.pytorch.program_file import (
    FxProgram,
    InputSpec,
    captured_here,
    make_inputs,
    unpacked_program,
)
from graphopt.graphs.readers.pytorch.program_inputs import bits_of, for_eager

DEVIATION = 0.1  # of weights and inputs
AROUND_ONE = (0.5, 1.5)  # least and largest value of buffers: variances are positive
ROWS = {"embedding": (0, 1), "gather": (0, 2), "scatter": (0, 2), "scatter_add": (0, 2), "scatter_reduce": (0, 2),
        "index_add": (0, 2), "index_select": (0, 2)}  # fmt: skip # operator -> arguments: the indexed tensor, the index
LISTS = ("index", "index_put", "_unsafe_index", "_unsafe_index_put")  # indices of the first dimensions, in a list
SAME = ("view", "_unsafe_view", "reshape", "expand", "unsqueeze", "squeeze", "slice", "select", "permute", "clone",
        "cat", "_to_copy", "unbind", "alias", "split", "split_with_sizes", "detach", "getitem", "roll")  # fmt: skip
"""Operators that make indices of indices, none of them larger."""


def as_program(captured: GraphModule) -> FxProgram:
    """The program that `capture(..., keep_program=True)` kept; inputs that are no weights are given away."""
    nodes = captured.graph.find_nodes(op="placeholder")
    weights = [isinstance(value, nn.Parameter) for value in captured.meta["weights"].values()]
    positive = [not learned for learned in weights] + [False] * (len(nodes) - len(weights))
    specs = tuple(_spec(node, of) for node, of in zip(nodes, positive, strict=True))
    return FxProgram(captured, specs, donated=tuple(range(len(weights), len(nodes))))


def _spec(node: Node, positive: bool) -> InputSpec:
    value = node.meta["val"]
    if any(type(size) is not int for size in value.shape):
        raise GraphError(f"the shape of {node.name} depends on data; give a module with fixed shapes")
    shape, stride, dtype = tuple(value.shape), tuple(value.stride()), str(value.dtype).removeprefix("torch.")
    if value.dtype.is_floating_point and positive:
        return InputSpec(shape, stride, dtype, "uniform", AROUND_ONE)
    if value.dtype.is_floating_point:
        return InputSpec(shape, stride, dtype, "normal", (0.0, DEVIATION))
    return InputSpec(shape, stride, dtype, "uniform", (0.0, float(min(_bounds(node), default=2) - 1)))


def _bounds(node: Node) -> Iterator[int]:
    """Sizes of all dimensions that a tensor of integers indexes."""
    seen, stack = {node}, [node]
    while stack:
        index = stack.pop()
        for user in index.users:
            name = getattr(user.target, "_opname", getattr(user.target, "__name__", ""))
            given: Any = user.args[0]
            if name in ROWS and user.args[ROWS[name][1]] is index:
                yield given.meta["val"].shape[0 if name == "embedding" else user.args[1]]
            elif name in LISTS:
                places: Any = user.args[1]
                yield from (given.meta["val"].shape[i] for i, place in enumerate(places) if place is index)
            if name in SAME and user not in seen:
                seen.add(user)
                stack.append(user)


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
    module = _prepared(for_eager(program.gm))
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
    """A copy whose results do not depend on the order. An op that draws random numbers has a seed of its own. An op
    that reads but the shape of a tensor is given one without memory."""
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
    """The result of `target` by a seed of its own: the same whenever it runs. The caller's generators stay."""
    with torch.random.fork_rng():
        torch.manual_seed(seed + place)
        return target(*args, **settings)


MARK = "graphopt node "
os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # the profiler tells the terminal nothing of its own


@dataclass(frozen=True, eq=False)
class Execution:
    """The bytes and outputs of one run."""

    outputs: list[Tensor | None]
    resident: int  # bytes there before it: inputs, weights, constants
    peak: int  # bytes at the worst moment, resident ones included
    workspace: list[int]  # [nodes] bytes that each node adds at its worst moment


class Values:
    """Live values of a run: those of nodes, dropped after their last use in the sequence."""

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
        """Computes a node and drops values without a later reader."""
        args, kwargs = map_arg((node.args, node.kwargs), self.of.__getitem__)
        if kwargs.get("device") is not None:  # a program that was captured on another one
            kwargs = {**kwargs, "device": self.device}
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
        """Drops values that nobody reads after this node."""
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
    peak: int  # bytes more than at the start
    workspace: list[int]


def allocated_peak(run: Callable[[], object]) -> int:
    """Most bytes that the allocator of CPUs had given out at any moment of a call, over those from before it."""
    with profile(use_cpu=True, profile_memory=True) as profiler:
        run()
    tree: Any = profiler.kineto_results.experimental_event_tree()  # type: ignore[union-attr]
    return max(0, *accumulate(change for _, _, change in sorted(_changes(tree))))


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
    """By the caching allocator: bytes given out, not those held back."""
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


class Recorder(Values):
    """A run that notes which storages there are, and which of them every node makes and reads."""

    def __init__(self, steps: ProgramSteps, sequence: Sequence[Node], inputs: list[Tensor]) -> None:
        super().__init__(steps, sequence, inputs)
        self.size: list[int] = []
        self._number: dict[int, int] = {}  # address of a storage that lives -> its number
        self.made: list[list[int]] = []  # [nodes]
        self.read: list[list[int]] = []  # [nodes]
        self.keep = set[int]()

    def begin(self) -> None:
        super().begin()
        self._add(storages(self.of.values()))
        given = {node for i, node in enumerate(self.steps.placeholders) if i in self.steps.given}
        self.keep = self._numbers(self.of.keys() - given)

    def drop(self, node: Node) -> None:
        read = self._numbers(node.all_input_nodes)
        there = storages(self.of[part] for part in self.steps.parts.get(node, [node]))
        old = storages(self.of[given] for given in node.all_input_nodes)
        self.made.append(self._add({place: size for place, size in there.items() if place not in old}))
        self.read.append(sorted(read))
        super().drop(node)

    def _numbers(self, nodes: Iterable[Node]) -> set[int]:
        return {self._number[place] for place in storages(self.of[node] for node in nodes)}

    def _add(self, found: dict[int, int]) -> list[int]:
        numbers = range(len(self.size), len(self.size) + len(found))
        self._number.update(zip(found, numbers))
        self.size += found.values()
        return list(numbers)

    def outputs(self) -> set[int]:
        """Storages of the program's outputs, at the end."""
        return self._numbers(node for node in self.steps.outputs if node is not None)


def storage_table(graph: Graph, steps: ProgramSteps, inputs: list[Tensor]) -> tuple[LiveStorage, Execution]:
    """The table of a graph's program, and the run in the order of the graph that it was found by."""
    recorder = Recorder(steps, steps.in_order(sorted(steps.node_of)), inputs)
    execution = run_all(recorder)
    place = {node: i for i, node in enumerate(recorder.sequence)}
    op_node = np.full(graph.num_ops, -1)
    for op, node in steps.node_of.items():
        op_node[op] = place[node]
    keep = np.zeros(len(recorder.size), np.bool_)
    keep[list(recorder.keep | recorder.outputs())] = True
    read = csr(recorder.read)
    waits = {op: _before(steps, list(makers(node)), place) for op, node in steps.node_of.items()}
    waits[graph.num_ops] = _before(steps, steps.nodes, place)
    needs, first = zip(*(waits.get(op, ([], [])) for op in range(graph.num_ops + 1)))
    table = LiveStorage(
        execution.resident, op_node, *csr(first), np.array(execution.workspace, np.int64), *csr(recorder.made), *read,
        np.array(recorder.size, np.int64), np.bincount(read[1], minlength=len(keep)), keep, *csr(needs[:-1]),
    )  # fmt: skip
    return table, execution


def _before(steps: ProgramSteps, stack: list[Node], place: dict[Node, int]) -> tuple[list[int], list[int]]:
    """Of nodes that must have run: (ordered ops, and nodes without a place, each with its own requirements)."""
    needs, first, seen = set[int](), list[int](), set[Node]()
    stack = list(stack)
    while stack:
        maker = stack.pop()
        if maker in steps.ops:
            needs.add(steps.ops[maker])
        elif maker not in seen:
            seen.add(maker)
            first.append(place[maker])
            stack += makers(maker)
    return sorted(needs), sorted(first)


def csr(rows: Sequence[Sequence[int]]) -> tuple[I64, I64]:
    """(ptr [rows + 1], column)."""
    ptr = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
    return ptr, np.array([value for row in rows for value in row], np.int64)


class Session:
    """Inputs are random, the same for the same graph. Raises UserError where there is no such device."""

    def __init__(self, graph: Graph, device: Literal["cpu", "cuda"], threads: int) -> None:
        if device == "cuda" and not torch.cuda.is_available():
            raise UserError("cost.device=cuda needs a GPU, and torch sees none here; set cost.device=cpu")
        self.name, self.threads, self.steps = graph.name, threads, steps_of(graph)
        inputs = make_inputs(self.steps.inputs, 0)
        if device == "cpu" and isinstance(graph.program, bytes) and not captured_here(graph.program):

            def once() -> None:
                torch.set_num_threads(1)  # threads of a pool are not in a copy of their process
                execute(self.steps, sorted(self.steps.node_of), inputs)

            rehearse(once, machine_memory(), f"running the program of {graph.name}")
        self.inputs = [value.to(device) for value in inputs]
        try:
            with _threads(threads):
                execute(self.steps, sorted(self.steps.node_of), self.inputs)  # some operators keep what they allocate
                self.table, run = storage_table(graph, self.steps, self.inputs)
        except (UserError, GraphError, MemoryError):
            raise
        except Exception as error:  # a program of a file may ask for a row that is not there
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"the program of {graph.name} cannot be run: {reason}; capture it anew") from None
        self.expected, self.own_peak = bits_of(run.outputs), run.peak

    def run(self, order: I64 | Sequence[int]) -> int:
        """Peak bytes of an order, from running it. Raises RuntimeError where its outputs are others."""
        with _threads(self.threads):
            done = execute(self.steps, [int(op) for op in order], self.inputs)
        if bits_of(done.outputs) != self.expected:
            raise RuntimeError(f"{self.name}: in another order the program computes other bits; report this")
        return done.peak


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
