"""The table of what a program's nodes allocate (`LiveStorage`), found by running it once."""

from collections.abc import Iterable, Sequence

import numpy as np
from torch import Tensor
from torch.fx import Node

from graphopt.core.graph import I64, Graph
from graphopt.core.live_storage import LiveStorage
from graphopt.execution.program_steps import ProgramSteps, makers
from graphopt.execution.running import Execution, Values, run_all, storages


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
