"""List schedules: HEFT, and list scheduling by bottom level. Plain functions on arrays; exact schedules, no search.

Both take a dependency graph of tasks in topological order, and treat links as HEFT does: as many transfers at a time as
there are. The event simulator, whose links are narrower, prices their decisions.

Shape legend: N tasks (ids without work included), D devices, E dependencies.
"""

import heapq
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I32, I64, Graph
from graphopt.core.machine import Device, Machine
from graphopt.core.operators import Category
from graphopt.core.utils.compiled import njit

_U = np.uintp  # Numba does not look whether indices of this type are negative


class Dependencies(NamedTuple):
    """Who reads whose results, as CSR by reader. Arrays for Numba."""

    ptr: Any  # int64 [N+1]
    source: Any  # int32 [E] the producing task
    size: Any  # float64 [E] bytes


class Links(NamedTuple):
    """Seconds for b bytes from i to j: latency[i, j] + b * per_byte[i, j], and their means over pairs of devices."""

    latency: Any  # float64 [D, D], 0 on the diagonal
    per_byte: Any  # float64 [D, D], 0 on the diagonal
    mean_latency: float
    mean_per_byte: float


@dataclass(frozen=True, eq=False)
class Schedule:
    """When and where every task runs; tasks without work keep device 0 and times 0."""

    device: NDArray[np.int16]  # [N]
    start: F64  # [N] seconds
    end: F64  # [N]
    urgency: F64  # [N] the key by which the list was ordered, largest first

    @property
    def makespan(self) -> float:
        return float(self.end.max())


def dependencies(graph: Graph, in_ptr: I64, in_tensor: I32) -> Dependencies:
    """Dependencies between kernels with inputs as CSR (ptr [N+1], tensor [E]); inputs of the graph are left out."""
    source = graph.producer[in_tensor]
    made = source >= 0
    ptr = np.append(0, np.cumsum(made))[in_ptr].astype(np.int64)
    return Dependencies(ptr, source[made], graph.tensor_bytes[in_tensor[made]].astype(np.float64))


def links(machine: Machine) -> Links:
    """The machine's links as HEFT sees them."""
    between = ~np.eye(machine.num_devices, dtype=np.bool_)
    latency = np.where(between, machine.link_latency_DD, 0.0)
    per_byte = np.where(between, 1.0 / machine.link_bandwidth_DD, 0.0)
    pairs = max(1, int(between.sum()))
    return Links(latency, per_byte, float(latency.sum()) / pairs, float(per_byte.sum()) / pairs)


def bottom_levels(seconds: F64, needs: Dependencies, transfer_seconds: F64) -> F64:
    """[N] longest path from the start of each task to the end: task seconds [N] and dependency seconds [E] added up."""
    levels: F64 = _bottom_levels(seconds, needs, transfer_seconds)
    return levels


def heft(time_ND: F64, works: NDArray[np.bool_], needs: Dependencies, links: Links) -> Schedule:
    """Heterogeneous earliest finish time (Topcuoglu, Hariri, Wu 2002). Tasks go by upward rank with mean costs. Each
    goes where it ends first, into a gap of that device where one is long enough.

    time_ND: seconds of each task on each device. works: tasks that run at all.
    """
    rank = _bottom_levels(time_ND.mean(1), needs, links.mean_latency + needs.size * links.mean_per_byte)
    order = np.argsort(-rank, kind="stable").astype(np.int64)
    device, start, end = _insert_all(time_ND, works, needs, links, order, bool(time_ND.min() > 0.0))
    return Schedule(device, start, end, rank)


def list_by_bottom_level(
    time_ND: F64, works: NDArray[np.bool_], needs: Dependencies, links: Links, tie: F64 | None = None
) -> Schedule:
    """List scheduling. Whenever a device is idle and a task is ready, the task with the longest path to the end is
    started. It runs on the idle device where it ends first. Of equal paths the task with the largest `tie` [N] goes
    first, then that with the smallest id; of equal devices the first. A task of zero seconds keeps its device until all
    devices that are idle at that time have started a task, as in the event simulator."""
    level = _bottom_levels(time_ND.mean(1), needs, links.mean_latency + needs.size * links.mean_per_byte)
    position = positions(level, np.zeros(len(level)) if tie is None else tie)
    device, start, end = _start_when_idle(time_ND, works, needs, links, np.argsort(position), position)
    return Schedule(device, start, end, -position.astype(np.float64))


def positions(urgency: F64, tie: F64) -> I64:
    """[N] place in a list ordered by urgency, of equal ones by `tie`, both largest first, then by id."""
    position = np.empty(len(urgency), np.int64)
    position[np.lexsort((-tie, -urgency))] = np.arange(len(urgency))
    return position


def tie_breaks(seconds: F64, needs: Dependencies) -> list[F64]:
    """[N] tie breaks between tasks of one bottom level, one array each: none (the smallest id goes first), the number
    of dependent tasks, the task's own time. Then the work of its direct dependents, and the largest id."""
    reader = np.repeat(np.arange(len(seconds)), np.diff(needs.ptr))
    waiting = np.bincount(needs.source, minlength=len(seconds)).astype(np.float64)
    work = np.bincount(needs.source, seconds[reader], len(seconds)).astype(np.float64)
    return [np.zeros(len(seconds)), waiting, seconds, work, np.arange(len(seconds), dtype=np.float64)]


@njit(cache=True, nogil=True)
def _bottom_levels(seconds, needs, transfer_seconds):  # type: ignore[no-untyped-def]
    ptr, source = needs.ptr, needs.source
    level = np.zeros(len(seconds))
    for n in range(len(seconds) - 1, -1, -1):
        level[n] += seconds[n]
        for e in range(ptr[n], ptr[n + 1]):
            level[source[e]] = max(level[source[e]], level[n] + transfer_seconds[e])
    return level


@njit(cache=True, nogil=True)
def _arrival(n, d, needs, links, device, end):  # type: ignore[no-untyped-def]
    """When all that task n reads is on device d."""
    latest = 0.0
    for e in range(needs.ptr[n], needs.ptr[n + 1]):
        maker = needs.source[e]
        travel = links.latency[device[maker], d] + needs.size[e] * links.per_byte[device[maker], d]
        latest = max(latest, end[maker] + travel)
    return latest


@njit(cache=True, nogil=True)
def _insert_all(time_ND, works, needs, links, order, joins):  # type: ignore[no-untyped-def]
    """joins: tasks that follow each other without a gap are one busy interval, so few are looked at. Not where a task
    takes no time, as it has room between two others."""
    ptr, source, size = needs.ptr, needs.source, needs.size
    latency, per_byte = links.latency, links.per_byte
    num, devices = time_ND.shape
    device, start, end = np.zeros(num, np.int16), np.zeros(num), np.zeros(num)
    begins, ends, used = np.empty((devices, num)), np.empty((devices, num)), np.zeros(devices, np.int64)
    arrival = np.empty(devices)
    for n in order:
        if not works[_U(n)]:
            continue
        arrival[:] = 0.0
        for e in range(ptr[_U(n)], ptr[_U(n + 1)]):
            made, there = end[_U(source[_U(e)])], device[_U(source[_U(e)])]
            for d in range(devices):
                travel = latency[_U(there), _U(d)] + size[_U(e)] * per_byte[_U(there), _U(d)]
                arrival[_U(d)] = max(arrival[_U(d)], made + travel)
        best, place, first, last = -1, 0, 0.0, np.inf
        for d in range(devices):
            seconds, at, slot = time_ND[_U(n), _U(d)], arrival[_U(d)], used[_U(d)]
            while slot > 0 and ends[_U(d), _U(slot - 1)] > at:
                slot -= 1
            while slot < used[_U(d)] and at + seconds > begins[_U(d), _U(slot)]:
                at = max(at, ends[_U(d), _U(slot)])
                slot += 1
            if best < 0 or at + seconds < last:
                best, place, first, last = d, slot, at, at + seconds
        device[_U(n)], start[_U(n)], end[_U(n)] = best, first, last
        begin, finish, count = begins[best], ends[best], used[best]
        follows = joins and place > 0 and finish[_U(place - 1)] == first
        leads = joins and place < count and begin[_U(place)] == last
        if follows and leads:
            finish[_U(place - 1)] = finish[_U(place)]
            for i in range(place, count - 1):
                begin[_U(i)], finish[_U(i)] = begin[_U(i + 1)], finish[_U(i + 1)]
            used[best] -= 1
        elif follows:
            finish[_U(place - 1)] = last
        elif leads:
            begin[_U(place)] = first
        else:
            for i in range(count, place, -1):
                begin[_U(i)], finish[_U(i)] = begin[_U(i - 1)], finish[_U(i - 1)]
            begin[_U(place)], finish[_U(place)] = first, last
            used[best] += 1
    return device, start, end


@njit(cache=True, nogil=True)
def _start_when_idle(time_ND, works, needs, links, order, position):  # type: ignore[no-untyped-def]
    num, devices = time_ND.shape
    device, start, end = np.zeros(num, np.int16), np.zeros(num), np.zeros(num)
    waiting, reader_ptr, reader = _readers(needs, num)
    idle, now = np.ones(devices, np.bool_), 0.0
    ready = [position[n] for n in range(num) if works[n] and waiting[n] == 0]
    heapq.heapify(ready)
    running = [(0.0, 0) for _ in range(0)]
    while ready or running:
        while ready and idle.any():
            n = order[heapq.heappop(ready)]
            best, best_start = -1, np.inf
            for d in range(devices):
                if idle[d]:
                    begin = max(now, _arrival(n, d, needs, links, device, end))
                    if best < 0 or begin + time_ND[n, d] < best_start + time_ND[n, best]:
                        best, best_start = d, begin
            device[n], start[n], end[n] = best, best_start, best_start + time_ND[n, best]
            idle[best] = False
            heapq.heappush(running, (end[n], n))
        now = running[0][0]
        while running and running[0][0] == now:
            _, n = heapq.heappop(running)
            idle[device[n]] = True
            for r in range(reader_ptr[n], reader_ptr[n + 1]):
                waiting[reader[r]] -= 1
                if waiting[reader[r]] == 0:
                    heapq.heappush(ready, position[reader[r]])
    return device, start, end


@njit(cache=True, nogil=True)
def _readers(needs, num):  # type: ignore[no-untyped-def]
    """Dependencies each task waits for [N], and CSR (ptr, reader) of those that wait for it."""
    waiting, ptr = np.zeros(num, np.int64), np.zeros(num + 2, np.int64)
    for n in range(num):
        waiting[n] = needs.ptr[n + 1] - needs.ptr[n]
    for maker in needs.source:
        ptr[maker + 2] += 1
    ptr = np.cumsum(ptr)
    reader = np.empty(len(needs.source), np.int64)
    for n in range(num):
        for e in range(needs.ptr[n], needs.ptr[n + 1]):
            maker = needs.source[e]
            reader[ptr[maker + 1]] = n
            ptr[maker + 1] += 1
    return waiting, ptr, reader


def rough_seconds(graph: Graph, device: Device) -> F64:
    """[N] launch + the larger of FLOP / peak and bytes / bandwidth, or the time measured on this kind of device; views
    take none."""
    read = np.bincount(graph.operand_op, graph.tensor_bytes[graph.input_tensor], graph.num_ops)
    contraction = graph.category == Category.CONTRACTION
    arithmetic = graph.flops / np.where(contraction, device.contraction_flops, device.vector_flops)
    estimate = device.launch + np.maximum(arithmetic, (read + graph.result_bytes) / device.bandwidth)
    seconds = graph.measured.get(device.kind, estimate)
    return np.where(graph.category == Category.VIEW, 0.0, seconds)
