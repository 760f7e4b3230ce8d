"""What exact solvers read: the kernels of a problem, where each may run, and what they hand to each other.

Shape legend: N ops, K kernels, D devices.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.core.machine import Machine
from graphopt.costs.event import GRID
from graphopt.costs.kernel_time import kernel_graph
from graphopt.problems.problem import Problem


@dataclass(frozen=True, slots=True)
class Tensor:
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


def workload(problem: Problem) -> Workload:
    """The kernels of the initial decision's fusion state, on fixed devices where the task does not decide them."""
    graph, machine = problem.graph, problem.task.machine
    plan = problem.task.realise(graph, problem.initial[None])
    kernels = kernel_graph(graph, plan.inline[0], machine.devices)
    op = np.flatnonzero(kernels.is_kernel)
    number = np.full(graph.num_ops + 1, -1)
    number[op] = np.arange(len(op))
    readers: list[list[int]] = [[] for _ in range(graph.num_tensors)]
    for k, n in enumerate(op):
        for tensor in kernels.in_tensor[kernels.in_ptr[n] : kernels.in_ptr[n + 1]]:
            readers[tensor].append(k)
    makers = number[graph.producer].tolist()
    tensors = tuple(
        Tensor(t, int(graph.tensor_bytes[t]), makers[t], tuple(readers[t]), bool(graph.is_weight[t]), bool(keep))
        for t, keep in enumerate(kernels.keep)
        if makers[t] >= 0 or readers[t]
    )  # fmt: skip
    every = tuple(range(machine.num_devices))
    free = "device" in problem.task.heads
    options = tuple(every if free else (int(d),) for d in plan.device[0, op])
    time = tuple(tuple(round(seconds / GRID) for seconds in row) for row in kernels.time[op].tolist())
    links = machine.link_latency_DD, machine.link_bandwidth_DD
    return Workload(machine, op, graph.num_ops, time, options, tensors, *links)


def grain(values: Sequence[int], most: int) -> int:
    """What whole numbers are divided by to sum to at most `most`: their greatest common divisor where that does, so
    that nothing is lost; else what it takes."""
    common = max(1, gcd(*values)) if values else 1
    total = sum(values)
    return common if total // common <= most else -(-total // most)
