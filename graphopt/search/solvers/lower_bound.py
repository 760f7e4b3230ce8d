"""`lower_bound`: the default, and a proof that no decision costs less than so much: what room there is at all.

Run time by the event simulation. Kernels take at least what they take on the device that is fastest for them; where
fusion is decided, what every fusion pays (`least_kernels`); where devices are decided, any device, else their own
(`earliest_starts`). Nothing is searched, so the bound may lie far below the best decision: a share of the room that it
leaves is a share at least.
"""

import numpy as np

from graphopt.core.fusible import fusible
from graphopt.core.graph import F64, I64
from graphopt.core.head import Role
from graphopt.core.list_schedule import Dependencies, Links, links
from graphopt.errors import Unsolved
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.solvers.earliest_starts import Tasks, fixed_bound, free_bound
from graphopt.search.solvers.least_kernels import least_seconds

LESS = 1.0 - 1e-9  # durations in the simulation are rounded to 2^-40 s


class LowerBound(Optimizer):
    """Without parameters; no evaluation."""

    knows_roles = frozenset({Role.DEVICE, Role.PRIORITY, Role.FUSION})
    objectives = frozenset[Objective]({"runtime"})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        """Raises Unsolved where nothing is known to be a bound."""
        problem.prove(runtime_bound(problem) * LESS)


def runtime_bound(problem: AssignProblem) -> float:
    """Seconds that no plan takes less than."""
    task, machine = problem.task, problem.task.machine
    if problem.objective != "runtime" or not problem.by_events or machine.transfer.clock != "grid":
        raise Unsolved("algo=lower_bound bounds run time by the simulator on a clock without ticks; take "
                       "cost=simulator cost.objective=runtime machine.transfer.clock=grid")  # fmt: skip
    seconds_ND, needs, device = _parts(problem)
    if not task.decides(Role.DEVICE):
        return _fixed(problem, seconds_ND, needs, device)
    least = links(machine)
    tasks = Tasks(seconds_ND.min(1), needs.ptr, needs.source, _least_travel(least, needs.size))
    return free_bound(tasks, machine.num_devices)


def _parts(problem: AssignProblem) -> tuple[F64, Dependencies, I64]:
    """[N, D] least seconds of every op's kernel, who reads whom, and the default's devices [N]."""
    graph, task, instance = problem.graph, problem.task, SchedulingInstance(problem.graph, problem.task)
    device = np.asarray(instance.initial.device[0], np.int64)
    if not task.decides(Role.FUSION):
        return instance.kernels.time, instance.needs, device
    if graph.measured or any(each.fusion_model != "roofline" for each in task.machine.devices):
        raise Unsolved("algo=lower_bound bounds fusion on devices with fusion_model=roofline and for graphs without "
                       "measured seconds; take such a machine, e.g. gpu2, or a task that does not fuse")  # fmt: skip
    f = fusible(graph)
    made = f.edge["op"] >= 0
    ptr = np.append(f.op["in_start"], len(made))
    ptr = np.append(0, np.cumsum(made))[np.maximum.accumulate(ptr)].astype(np.int64)
    size = f.tensor["num_bytes"][f.edge["tensor"][made]]
    seconds = np.stack([least_seconds(f, each) for each in task.machine.devices], 1)
    return seconds, Dependencies(ptr, f.edge["op"][made].astype(np.int32), size), device


def _least_travel(least: Links, size: F64) -> F64:
    """[E] seconds between any two devices."""
    between = ~np.eye(len(least.latency), dtype=np.bool_)
    if not between.any():
        return np.zeros(len(size))
    return np.asarray((least.latency[between][:, None] + least.per_byte[between][:, None] * size).min(0))


def _fixed(problem: AssignProblem, seconds_ND: F64, needs: Dependencies, device: I64) -> float:
    machine, known = problem.task.machine, links(problem.task.machine)
    reader = np.repeat(device, np.diff(needs.ptr))
    maker = device[needs.source]
    travel = known.latency[maker, reader] + needs.size * known.per_byte[maker, reader]
    tasks = Tasks(seconds_ND[np.arange(len(device)), device], needs.ptr, needs.source, travel)
    lane = np.where(maker != reader, maker * machine.num_devices + reader, -1)
    if machine.transfer.lane != "link" or machine.transfer.multicast:
        lane = np.full(len(lane), -1)
    return fixed_bound(tasks, device, _once(lane, needs.source))


def _once(lane: I64, source: I64) -> I64:
    """[E] without further readers of a task's results on one device: what is sent there is sent once."""
    key = np.where(lane >= 0, lane * (int(source.max(initial=0)) + 1) + source, -1)
    first = np.zeros(len(lane), np.bool_)
    first[np.unique(key, return_index=True)[1]] = True
    return np.where(first, lane, -1)
