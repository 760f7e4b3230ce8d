"""What exact solvers read: the kernels of a problem, where each may run, and what they hand to each other.

Shape legend: N ops, K kernels, D devices.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import gcd
from typing import NamedTuple, TypeVar

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.core.head import Role
from graphopt.core.machine import Machine
from graphopt.costs.event_arrays import GRID
from graphopt.costs.one_kernel.kernel_time import kernel_graph
from graphopt.problems.assign_problem import AssignProblem

Check = Callable[[], None]
"""Called throughout long work; may raise to end it."""
T = TypeVar("T")
EVERY = 256  # items between two looks at the clock


def watched(items: Iterable[T], check: Check) -> Iterator[T]:
    """The items, with a check before every few hundred of them."""
    for i, item in enumerate(items):
        if not i % EVERY:
            check()
        yield item


class Tensor(NamedTuple):
    """A tensor that kernels make or read; views are looked through."""

    id: int  # in the graph
    size: int  # bytes
    maker: int  # kernel, or -1: a graph input or weight
    readers: tuple[int, ...]  # kernels, ascending
    weight: bool
    keep: bool  # a graph output: stays where it was made


@dataclass(frozen=True, eq=False)
class Workload:
    """The K kernels of the initial decision, in topological order. Times are whole numbers of `GRID` seconds."""

    machine: Machine
    op: I64  # [K] the op that each kernel computes
    ops: int  # N
    time: tuple[tuple[int, ...], ...]  # [K][D]
    options: tuple[tuple[int, ...], ...]  # [K] devices that the task lets each kernel run on
    tensors: tuple[Tensor, ...]
    latency: F64  # [D, D] seconds
    bandwidth: F64  # [D, D] bytes per second

    @property
    def devices(self) -> int:
        return self.machine.num_devices

    def transfer(self, tensor: Tensor, source: int, target: int) -> int:
        """How long a result travels; 0 to where it is."""
        if source == target:
            return 0
        seconds = self.latency[source, target] + tensor.size / self.bandwidth[source, target]
        return int(np.floor(seconds / GRID + 0.5))

    def handed_on(self) -> list[Tensor]:
        """Results that other kernels read."""
        return [tensor for tensor in self.tensors if tensor.maker >= 0 and tensor.readers]


def workload(problem: AssignProblem, check: Check) -> Workload:
    """The kernels of the initial decision's fusion state, on fixed devices where the task does not decide them."""
    check()
    graph, machine = problem.graph, problem.task.machine
    plan = problem.task.realise(graph, problem.initial[None])
    kernels = kernel_graph(graph, plan.inline[0], machine.devices)
    op = np.flatnonzero(kernels.is_kernel)
    number = np.full(graph.num_ops + 1, -1)
    number[op] = np.arange(len(op))
    check()
    reader = np.repeat(number[:-1], np.diff(kernels.in_ptr))  # ascending for every tensor, as ops are
    order = np.argsort(kernels.in_tensor, kind="stable")
    ends = np.searchsorted(kernels.in_tensor[order], np.arange(graph.num_tensors), side="right").tolist()
    read_by = reader[order].tolist()
    columns = (graph.tensor_bytes, number[graph.producer], graph.is_weight, kernels.keep)
    rows = zip(*(column.tolist() for column in columns), [0, *ends], ends)
    tensors = tuple(
        Tensor(t, int(size), maker, tuple(read_by[begin:end]), bool(weight), bool(keep))
        for t, (size, maker, weight, keep, begin, end) in enumerate(watched(rows, check))
        if maker >= 0 or begin < end
    )
    every = tuple(range(machine.num_devices))
    free = problem.task.decides(Role.DEVICE)
    options = tuple(every if free else (d,) for d in plan.device[0, op].tolist())
    time = tuple(tuple(round(seconds / GRID) for seconds in row) for row in watched(kernels.time[op].tolist(), check))
    links = machine.link_latency_DD, machine.link_bandwidth_DD
    return Workload(machine, op, graph.num_ops, time, options, tensors, *links)


def grain(values: Sequence[int], most: int) -> int:
    """What whole numbers are divided by to sum to at most `most`: their greatest common divisor where that does, so
    that nothing is lost; else what it takes."""
    common = max(1, gcd(*values)) if values else 1
    total = sum(values)
    return common if total // common <= most else -(-total // most)
