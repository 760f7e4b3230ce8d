"""A graph's program, ready to be run in any order: its inputs, what its outputs have to be, and the table of what its
nodes allocate (`LiveStorage`), found by running it once."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.fx import Node

from graphopt.core.errors import UserError
from graphopt.core.graph import I64, Graph, GraphError
from graphopt.core.live_storage import LiveStorage
from graphopt.core.utils.limits import machine_memory
from graphopt.core.utils.process import rehearse
from graphopt.graphs.readers.pytorch.program_file import captured_here, make_inputs
from graphopt.graphs.readers.pytorch.program_inputs import raw
from graphopt.hardware.execution.program_run import (
    Execution,
    ProgramSteps,
    Values,
    execute,
    makers,
    run_all,
    steps_of,
    storages,
)


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
    """Of nodes that must have run: (ordered ops among them, and nodes without a place, each with what it waits for)."""
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
                execute(self.steps, sorted(self.steps.node_of), self.inputs)  # some operators allocate what stays
                self.table, run = storage_table(graph, self.steps, self.inputs)
        except (UserError, GraphError, MemoryError):
            raise
        except Exception as error:  # a program of a file may ask for a row that is not there
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            raise UserError(f"the program of {graph.name} cannot be run: {reason}; capture it anew") from None
        self.expected, self.own_peak = digest(run.outputs), run.peak

    def run(self, order: I64 | Sequence[int]) -> int:
        """Peak bytes of an order, from running it. Raises RuntimeError where its outputs are others."""
        with _threads(self.threads):
            done = execute(self.steps, [int(op) for op in order], self.inputs)
        if digest(done.outputs) != self.expected:
            raise RuntimeError(f"{self.name}: in another order the program computes other bits; report this")
        return done.peak


def digest(outputs: Sequence[Tensor | None]) -> str:
    """Of all bits of the outputs."""
    found = sha256()
    for value in outputs:
        found.update(b"none" if value is None else raw(value.detach().cpu()))
    return found.hexdigest()


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
