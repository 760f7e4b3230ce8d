"""Lower bounds on the makespan of tasks with precedence on some devices, where transfers take time.

Three relaxations, each of which every run obeys:

- **Earliest starts** of tasks whose device is free, after Papadimitriou and Yannakakis, "Towards an
  Architecture-Independent Analysis of Parallel Algorithms" (SIAM J. Comput. 1990): an ancestor that does not run on a
  task's own device is ready for it only after a transfer; those that would be too late run there, one after the other.
  It holds even if tasks may be computed twice.
- **Tails**, the same from the end: how long after a task ends everything takes at least.
- **Shares**: of any set of tasks, the earliest start, the work over the devices that may do it, and the shortest tail
  add up.

Links carry any number of transfers at a time here, except where devices are fixed: then each lane is a device too.
Shape legend: N tasks in topological order, E dependencies, D devices.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.errors import Unsolved
from graphopt.core.fusible import Fusible, fusible
from graphopt.core.graph import F64, I64, Bool
from graphopt.core.list_schedule import Dependencies, links
from graphopt.core.machine import Device
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.rules import SchedulingInstance

WINDOW = 96  # ancestors that are looked at for each task, the nearest
THRESHOLDS = 512  # earliest starts from which sets of tasks are looked at


class Tasks(NamedTuple):
    """seconds: at least. travel: seconds from a task to its reader where these are on different devices, at least."""

    seconds: F64  # [N]
    ptr: I64  # [N+1] dependencies of a task
    source: Any  # int32 [E] the producing task
    travel: F64  # [E]


def backwards(tasks: Tasks) -> Tasks:
    """The same with time reversed: task N-1 becomes task 0, readers become makers."""
    count = len(tasks.seconds)
    reader = np.repeat(np.arange(count), np.diff(tasks.ptr))
    order = np.argsort(count - 1 - tasks.source.astype(np.int64), kind="stable")
    sizes = np.bincount(count - 1 - tasks.source.astype(np.int64), minlength=count)
    ptr = np.append(0, np.cumsum(sizes)).astype(np.int64)
    source = (count - 1 - reader[order]).astype(np.int32)
    return Tasks(tasks.seconds[::-1].copy(), ptr, source, tasks.travel[order])


def free_starts(tasks: Tasks) -> F64:
    """[N] earliest starts of tasks that choose their device."""
    found: F64 = _free_starts(*tasks, WINDOW)
    return found


def fixed_bound(tasks: Tasks, device: I64, lane: I64) -> float:
    """Seconds that no run takes less than where the device of every task [N] is fixed. lane: [E] the lane that a
    transfer takes, -1 where nothing travels or where lanes carry any number of transfers at a time."""
    travels = device[tasks.source] != np.repeat(device, np.diff(tasks.ptr))
    pays = tasks._replace(travel=np.where(travels, tasks.travel, 0.0))
    start, tail = _path_starts(*pays), _path_starts(*backwards(pays))[::-1]
    bound = float((start + tasks.seconds + tail).max(initial=0.0))
    for here in np.unique(device):
        mine = device == here
        bound = max(bound, shares_bound(start[mine], tasks.seconds[mine], tail[mine], 1))
    reader = np.repeat(np.arange(len(device)), np.diff(tasks.ptr))
    for one in np.unique(lane[lane >= 0]):
        mine = lane == one
        maker, after = tasks.source[mine], reader[mine]
        ready, rest = start[maker] + tasks.seconds[maker], tail[after] + tasks.seconds[after]
        bound = max(bound, shares_bound(ready, tasks.travel[mine], rest, 1))
    return bound


def shares_bound(start: F64, seconds: F64, tail: F64, devices: int) -> float:
    """The most that earliest start, work over devices and shortest tail of any set of tasks add up to. Sets are those
    of all tasks with a start and a tail of at least some values."""
    works = seconds > 0
    order = np.argsort(-tail[works], kind="stable")
    start, seconds, tail = start[works][order], seconds[works][order], tail[works][order]
    least = np.unique(start)
    picked = least[np.unique(np.linspace(0, len(least) - 1, min(len(least), THRESHOLDS)).astype(int))]
    return float(_shares_bound(start, seconds, tail, picked, devices))


@njit(cache=True, nogil=True)
def _shares_bound(start, seconds, tail, least, devices):  # type: ignore[no-untyped-def]
    most = 0.0
    for a in least:
        work, first = 0.0, np.inf
        for i in range(len(start)):
            if start[i] >= a:
                work += seconds[i]
                first = min(first, start[i])
                most = max(most, first + work / devices + tail[i])
    return most


@njit(cache=True, nogil=True)
def _path_starts(seconds, ptr, source, travel):  # type: ignore[no-untyped-def]
    start = np.zeros(len(seconds))
    for n in range(len(seconds)):
        for e in range(ptr[n], ptr[n + 1]):
            start[n] = max(start[n], start[source[e]] + seconds[source[e]] + travel[e])
    return start


@njit(cache=True, nogil=True)
def _free_starts(seconds, ptr, source, travel, window):  # type: ignore[no-untyped-def]
    count = len(seconds)
    start, near = np.zeros(count), np.empty(window, np.int64)
    rest, least, seen = np.zeros(count), np.zeros(count), np.full(count, -1, np.int64)
    late, end = np.empty(window), np.empty(window)
    for n in range(count):
        # the nearest ancestors, breadth first; of one path from each: its work, and its shortest transfer
        found, step = 0, -1
        while step < found:
            here = n if step < 0 else near[step]
            work = 0.0 if step < 0 else rest[here] + seconds[here]
            for e in range(ptr[here], ptr[here + 1]):
                above = source[e]
                short = travel[e] if step < 0 else min(travel[e], least[here])
                if seen[above] != n and found < window:
                    seen[above] = n
                    near[found] = above
                    rest[above], least[above] = work, short
                    found += 1
                elif seen[above] == n and work + short > rest[above] + least[above]:
                    rest[above], least[above] = work, short
            step += 1
        begin = 0.0
        for i in range(found):
            above = near[i]
            late[i] = -(start[above] + seconds[above] + rest[above] + least[above])
            begin = max(begin, start[above] + seconds[above] + rest[above])
        # those that would be too late from another device run here: the fewer, the later the others come
        order = np.argsort(late[:found])
        best = np.inf
        for here in range(found + 1):
            other = -late[order[here]] if here < found else 0.0
            best = min(best, max(other, _in_a_row(near, order, here, start, seconds, end)))
            if other <= begin:
                break
        start[n] = max(begin, best)
    return start


@njit(cache=True, nogil=True)
def _in_a_row(near, order, count, start, seconds, end):  # type: ignore[no-untyped-def]
    """When one device has done so many tasks at the earliest, each not before its start."""
    for i in range(count):
        end[i] = start[near[order[i]]]
    now = 0.0
    for place in np.argsort(end[:count]):
        now = max(now, end[place]) + seconds[near[order[place]]]
    return now


def least_seconds(f: Fusible, device: Device) -> F64:
    """[N] seconds of the kernel of each such op on a device at least; 0 of all others."""
    heavy, read = f.op["heavy"] > 0, _least_read(f, min(1.0, device.strided_factor))
    held: Bool = _held(f.op["in_start"], f.op["in_end"], f.edge["op"], heavy, f.op["can_inline"])
    shared = held & f.op["elementwise"]  # a reduction or contraction may be computed in its kernel
    roots = ~f.op["is_view"] & ~f.op["can_inline"]
    alone: Bool = heavy & ~f.op["is_view"] | (roots & ~shared)
    moved = read + np.where(roots, f.op["out_bytes"], 0.0)
    peak = np.where(
        f.op["heavy"] == 2, device.contraction_flops / min(1.0, device.prologue_factor), device.vector_flops
    )
    rate = device.bandwidth * np.where(moved > device.cache_bytes, 1.0, max(1.0, device.cache_speedup))
    seconds: F64 = device.launch + np.maximum(f.op["flops"] / peak, moved / rate)
    return np.where(alone, seconds, 0.0)


@njit(cache=True, nogil=True)
def _held(start, end, source, heavy, can_inline):  # type: ignore[no-untyped-def]
    out = np.zeros(len(heavy), np.bool_)
    for n in range(len(heavy)):
        for e in range(start[n], end[n]):
            op = source[e]
            out[n] |= op >= 0 and can_inline[op] and (heavy[op] or out[op])
    return out


def _least_read(f: Fusible, strided: float) -> F64:
    """[N] bytes that the kernel in which an op is computed once reads for it at least."""
    tensor = f.tensor[f.edge["tensor"]]
    direct = tensor["num_bytes"] / tensor["numel"] * np.minimum(f.edge["reads"], tensor["numel"]) * strided
    maker = f.edge["op"]
    optional: Bool = (maker >= 0) & f.op["can_inline"][maker]
    share = np.minimum(1.0, f.edge["reads"] / np.maximum(f.op["numel"][maker], 1.0))
    found: NDArray[np.float64] = _through(
        f.op["in_start"], f.op["in_end"], maker, f.edge["tensor"], direct, optional, share
    )
    return found


@njit(cache=True, nogil=True)
def _through(start, end, maker, tensor, direct, optional, share):  # type: ignore[no-untyped-def]
    out = np.zeros(len(start))
    for n in range(len(start)):
        surely = 0.0
        for e in range(start[n], end[n]):
            if optional[e]:
                out[n] = max(out[n], min(direct[e], share[e] * out[maker[e]]))
                continue
            first = True
            for before in range(start[n], e):
                first &= tensor[before] != tensor[e]
            surely += direct[e] if first else 0.0
        out[n] = max(out[n], surely)
    return out


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
    least, between, devices = links(machine), ~np.eye(machine.num_devices, dtype=np.bool_), machine.num_devices
    travel = np.zeros(len(needs.size))  # [E] between any two devices
    if between.any():
        travel = (least.latency[between][:, None] + least.per_byte[between][:, None] * needs.size).min(0)
    tasks = Tasks(seconds_ND.min(1), needs.ptr, needs.source, travel)
    start, tail = free_starts(tasks), free_starts(backwards(tasks))[::-1]
    path = float((start + tasks.seconds + tail).max(initial=0.0))
    return max(path, shares_bound(start, tasks.seconds, tail, devices))


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
    """[E] without further readers of a task's results on one device: a result is sent there once."""
    key = np.where(lane >= 0, lane * (int(source.max(initial=0)) + 1) + source, -1)
    first = np.zeros(len(lane), np.bool_)
    first[np.unique(key, return_index=True)[1]] = True
    return np.where(first, lane, -1)
