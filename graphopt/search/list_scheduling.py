"""List scheduling as optimisers: one decision, one evaluation."""

import numpy as np

from graphopt.costs.kernel_time import kernel_graph
from graphopt.graph import F64
from graphopt.list_schedule import Schedule, bottom_levels, dependencies, heft, links, list_by_bottom_level
from graphopt.optimizer import Optimizer
from graphopt.problem import Problem
from graphopt.tasks.base import Decision


class Heft(Optimizer):
    """HEFT (Topcuoglu, Hariri, Wu 2002): devices by earliest finish time, priorities, if any, by upward rank."""

    needs_heads = frozenset({"device"})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: Problem) -> None:
        _answer(problem, _decide(problem, _schedule(problem, by_heft=True)))


class ListBottomLevel(Optimizer):
    """List scheduling by bottom level, the longest path to the end; devices as they become idle where they are free."""

    needs_heads = frozenset({"priority"})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: Problem) -> None:
        _answer(problem, _decide(problem, _schedule(problem, by_heft=False)))


def _answer(problem: Problem, decision: Decision) -> None:
    """One evaluation, or a commitment where there is no budget."""
    if problem.open:
        problem.cost(decision[None])
    else:
        problem.commit(decision)


def _schedule(problem: Problem, by_heft: bool) -> Schedule:
    """The list schedule of the kernels that the initial decision makes."""
    graph, machine = problem.graph, problem.task.machine
    plan = problem.task.realise(graph, problem.initial[None])
    kernels = kernel_graph(graph, plan.inline[0], machine.devices)
    needs, wires = dependencies(graph, kernels.in_ptr, kernels.in_tensor), links(machine)
    if by_heft:
        return heft(kernels.time, kernels.is_kernel, needs, wires)
    if "device" in problem.task.heads:
        return list_by_bottom_level(kernels.time, kernels.is_kernel, needs, wires)
    device = plan.device[0]
    reader = np.repeat(np.arange(graph.num_ops), np.diff(needs.ptr))
    pair = device[needs.source], device[reader]
    levels = bottom_levels(
        kernels.time[np.arange(graph.num_ops), device], needs, wires.latency[pair] + needs.size * wires.per_byte[pair]
    )
    return Schedule(device, np.zeros(0), np.zeros(0), levels)


def _decide(problem: Problem, schedule: Schedule) -> Decision:
    """The schedule in the task's heads, the rest as in the initial decision."""
    out, heads = problem.initial.copy(), problem.task.heads
    for column, head in enumerate(heads):
        free = problem.task.mask(problem.graph)[:, column]
        if head == "device":
            out[free, column] = schedule.device[free]
        elif head == "priority":
            out[free, column] = _to_levels(schedule.urgency[free], heads[head])
    return out


def _to_levels(urgency: F64, levels: int) -> F64:
    """Equal shares of the tasks per level; the most urgent get the highest."""
    position = np.empty(len(urgency))
    position[np.argsort(urgency, kind="stable")] = np.arange(len(urgency))
    return np.floor(position / max(1, len(urgency)) * levels)
