"""Heuristics for placement and scheduling: plain functions that say devices and urgencies, and ask for no price.

A heuristic is a placement and an order. Both see the kernels that the initial decision makes, not the ops, and are fast
enough for graphs of 50,000 ops: orders are compiled, O(E log N). `starts.encode` makes keys of their suggestions.

Shape legend: N ops (ids without a kernel included), T tensors, D devices, E operands of kernels, K keys.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from graphopt.core.graph import F64, Graph
from graphopt.core.list_schedule import (
    Dependencies,
    Links,
    Schedule,
    bottom_levels,
    dependencies,
    heft,
    links,
    list_by_bottom_level,
)
from graphopt.core.plan import Plans
from graphopt.core.utils.compiled import njit
from graphopt.costs.one_kernel.kernel_time import KernelGraph, kernel_graph
from graphopt.problems.assignment import AssignTask
from graphopt.search.heuristics import partition


class Holdings(NamedTuple):
    """Reads and results of kernels, for orders that watch memory. Arrays for Numba."""

    in_ptr: Any  # int64 [N+1]
    in_tensor: Any  # int32 [E] distinct tensors that each kernel reads
    producer: Any  # int32 [T]
    made: Any  # int64 [N] bytes of the results
    size: Any  # int64 [T] bytes that end with the last reader; 0 of weights and graph outputs


def depth_first(needs: Dependencies) -> F64:
    """Every op's inputs run right before it: a walk against the arrows from every sink, in op order."""
    return _as_urgency(_depth_first(needs), len(needs.ptr) - 1)


def _as_urgency(order: Any, ops: int) -> F64:
    urgency = np.full(ops, -float(ops))
    urgency[order] = -np.arange(len(order), dtype=np.float64)
    return urgency


@njit(cache=True, nogil=True)
def _memory_greedy(work):  # type: ignore[no-untyped-def]
    """A heap with late corrections: a kernel's bytes fall when it becomes the only one left to read an operand."""
    in_ptr, in_tensor, producer, made, size = work
    num, tensors = len(made), len(size)
    waiting, bytes_of = np.zeros(num, np.int64), made.copy()
    left, sum_of_readers = np.zeros(tensors, np.int64), np.zeros(tensors, np.int64)
    reader_ptr = np.zeros(tensors + 2, np.int64)
    for n in range(num):
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            waiting[n] += producer[tensor] >= 0
            left[tensor] += 1
            sum_of_readers[tensor] += n
            reader_ptr[tensor + 2] += 1
    reader_ptr, reader = np.cumsum(reader_ptr), np.empty(len(in_tensor), np.int64)
    for n in range(num):
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            reader[reader_ptr[tensor + 1]] = n
            reader_ptr[tensor + 1] += 1
            bytes_of[n] -= size[tensor] if left[tensor] == 1 else 0
    out_ptr = np.zeros(num + 1, np.int64)  # of results in the order of their makers
    for tensor in range(tensors):
        out_ptr[producer[tensor] + 1] += 1
    for n in range(num):
        out_ptr[n + 1] += out_ptr[n]
    done, order, count = np.zeros(num, np.bool_), np.empty(num, np.int64), 0
    ready = [(bytes_of[n], n) for n in range(num) if waiting[n] == 0]
    heapq.heapify(ready)
    while ready:
        score, n = heapq.heappop(ready)
        if done[n] or score != bytes_of[n]:
            continue
        done[n] = True
        order[count] = n
        count += 1
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            left[tensor] -= 1
            sum_of_readers[tensor] -= n
            if left[tensor] == 1 and size[tensor] > 0:
                last = sum_of_readers[tensor]
                bytes_of[last] -= size[tensor]
                if waiting[last] == 0:
                    heapq.heappush(ready, (bytes_of[last], last))
        for tensor in range(out_ptr[n], out_ptr[n + 1]):
            for r in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                waiting[reader[r]] -= 1
                if waiting[reader[r]] == 0:
                    heapq.heappush(ready, (bytes_of[reader[r]], reader[r]))
    return order, count


@njit(cache=True, nogil=True)
def _depth_first(needs):  # type: ignore[no-untyped-def]
    ptr, source = needs.ptr, needs.source
    num = len(ptr) - 1
    read = np.zeros(num, np.bool_)
    for maker in source:
        read[maker] = True
    seen, at, order, count = np.zeros(num, np.bool_), ptr[:-1].copy(), np.empty(num, np.int64), 0
    stack = np.empty(num + 1, np.int64)
    for sink in range(num):
        if read[sink]:
            continue
        stack[0], depth = sink, 1
        seen[sink] = True
        while depth > 0:
            n = stack[depth - 1]
            if at[n] < ptr[n + 1]:
                maker = source[at[n]]
                at[n] += 1
                if not seen[maker]:
                    seen[maker] = True
                    stack[depth] = maker
                    depth += 1
            else:
                depth -= 1
                order[count] = n
                count += 1
    return order


CAUTION = 4.0  # of `heft_cautious`: links are narrower than HEFT knows

Device = NDArray[np.int16]
Weight = Literal["time", "bytes"]


class Suggestion(NamedTuple):
    """A heuristic's answer: the device of every op, and its urgency. Ops without a kernel: any device."""

    device: Device  # [N]
    urgency: F64  # [N] of ready ops the one with the largest goes first


@dataclass(frozen=True)
class SchedulingInstance:
    """The kernels of a graph as heuristics see them: under the task's initial decision, or under a plan (a batch of
    one)."""

    graph: Graph
    task: AssignTask
    plan: Plans | None = None

    @cached_property
    def kernels(self) -> KernelGraph:
        return kernel_graph(self.graph, self.initial.inline[0], self.task.machine.devices)

    @cached_property
    def needs(self) -> Dependencies:
        return dependencies(self.graph, self.kernels.in_ptr, self.kernels.in_tensor)

    @cached_property
    def links(self) -> Links:
        return links(self.task.machine)

    @cached_property
    def edges(self) -> csr_array:
        return partition.undirected(self.needs)

    def under(self, plan: Plans) -> "SchedulingInstance":
        """Under another plan (a batch of one); where that makes the same kernels, their properties are reused."""
        other, given = replace(self, plan=plan), {"initial", *(field.name for field in fields(self))}
        if np.array_equal(plan.inline, self.initial.inline):
            vars(other).update((name, known) for name, known in vars(self).items() if name not in given)
        return other

    @cached_property
    def initial(self) -> Plans:
        """That plan (a batch of one)."""
        return self.plan or self.task.realise(self.graph, self.task.initial(self.graph)[None])

    @cached_property
    def held(self) -> F64:
        """[N] bytes that an op brings to its device: weights that it reads, and results."""
        graph, kernels = self.graph, self.kernels
        reader = np.repeat(np.arange(graph.num_ops), np.diff(kernels.in_ptr))
        read = np.where(graph.is_weight, graph.tensor_bytes, 0)[kernels.in_tensor]
        held = np.bincount(reader, read, graph.num_ops) + graph.result_bytes
        return np.where(kernels.is_kernel, held, 0.0)

    @cached_property
    def spectral_by_time(self) -> Device:
        """[N] spectral partition that balances time."""
        return partition.spectral(self.weight("time"), self.share("time"), self.edges)

    @cached_property
    def spectral_by_bytes(self) -> Device:
        """[N] spectral partition that balances bytes."""
        return partition.spectral(self.weight("bytes"), self.share("bytes"), self.edges)

    def weight(self, kind: Weight) -> F64:
        """[N] the weights that a partition balances."""
        return np.nanmean(self._able, 1) if kind == "time" else self.held

    @cached_property
    def _able(self) -> F64:
        """[N, D] seconds; nan where a device cannot run an op that another can."""
        time = self.kernels.time
        return np.where(np.isinf(time) & np.isfinite(time).any(1, keepdims=True), np.nan, time)

    def share(self, kind: Weight) -> F64:
        """[D] how much of it each device should get: time by speed, bytes by capacity where that is limited."""
        if kind == "time":
            speed = 1.0 / np.maximum(np.nanmean(self._able, 0), 1e-30)
        else:
            capacity = np.array([device.capacity for device in self.task.machine.devices])
            speed = capacity if np.isfinite(capacity).all() else np.ones(len(capacity))
        return np.asarray(speed / speed.sum())


def heft_schedule(instance: SchedulingInstance, caution: float) -> Schedule:
    """HEFT that takes transfers for so many times as long as they are."""
    latency, per_byte, *means = instance.links
    slower = Links(caution * latency, caution * per_byte, *(caution * mean for mean in means))
    return heft(instance.kernels.time, instance.kernels.is_kernel, instance.needs, slower)


def by_heft(instance: SchedulingInstance, caution: float = 1.0) -> Suggestion:
    """HEFT: earliest finish time, by upward rank."""
    schedule = heft_schedule(instance, caution)
    return Suggestion(schedule.device, schedule.urgency)


def by_list(instance: SchedulingInstance) -> Suggestion:
    """List scheduling by bottom level: devices as they become idle."""
    schedule = list_by_bottom_level(instance.kernels.time, instance.kernels.is_kernel, instance.needs, instance.links)
    return Suggestion(schedule.device, schedule.urgency)


def place_single(instance: SchedulingInstance) -> Device:
    """As the initial decision: one device, where the task decides devices."""
    device: Device = instance.initial.device[0]
    return device


def place_blocks(instance: SchedulingInstance, kind: Weight) -> Device:
    """Runs of ops in op order."""
    return partition.blocks(instance.weight(kind), instance.share(kind))


def place_spectral(instance: SchedulingInstance, kind: Weight) -> Device:
    """Few bytes between devices, by eigenvectors."""
    return instance.spectral_by_time if kind == "time" else instance.spectral_by_bytes


def place_metis(instance: SchedulingInstance, kind: Weight, imbalance: float) -> Device:
    """Few bytes between devices, by METIS, which has to be installed."""
    return partition.metis(instance.weight(kind), instance.share(kind), instance.edges, imbalance)


def order_bottom_level(instance: SchedulingInstance, device: Device) -> F64:
    """Longest path to the end, transfers of this placement included, first."""
    needs, time = instance.needs, instance.kernels.time
    pair = device[needs.source], device[np.repeat(np.arange(len(device)), np.diff(needs.ptr))]
    travel = instance.links.latency[pair] + needs.size * instance.links.per_byte[pair]
    return bottom_levels(time[np.arange(len(device)), device], needs, travel)


def order_reverse_bottom_level(instance: SchedulingInstance, device: Device) -> F64:
    """Shortest path to the end first: branches that are nearly done are finished, so their memory is freed."""
    return -order_bottom_level(instance, device)


def order_topological(instance: SchedulingInstance, device: Device) -> F64:
    """The order in which the graph was given."""
    return -np.arange(len(device), dtype=np.float64)


def order_depth_first(instance: SchedulingInstance, device: Device) -> F64:
    """Every op's inputs run right before it."""
    return depth_first(instance.needs)


def order_memory_greedy(instance: SchedulingInstance, device: Device) -> F64:
    """Of the ready kernels that one first which adds least live memory: bytes of its results, less those of operands
    that it is the last to read. Ties by op id."""
    graph, kernels = instance.graph, instance.kernels
    size = np.where(graph.is_weight | kernels.keep, 0, graph.tensor_bytes)
    work = Holdings(kernels.in_ptr, kernels.in_tensor, graph.producer, graph.result_bytes, size)
    order, last = _memory_greedy(work)
    return _as_urgency(order[:last], graph.num_ops)


Placement = Callable[[SchedulingInstance], Device]
Order = Callable[[SchedulingInstance, Device], F64]
Heuristic = Callable[[SchedulingInstance], Suggestion]


def suggest(placement: Placement, order: Order) -> Heuristic:
    """A placement, and an order for it."""

    def heuristic(instance: SchedulingInstance) -> Suggestion:
        device = placement(instance)
        return Suggestion(device, order(instance, device))

    return heuristic


def _both() -> dict[str, Heuristic]:
    spectral, spectral_by_bytes = partial(place_spectral, kind="time"), partial(place_spectral, kind="bytes")
    return {
        "heft": by_heft,
        "heft_cautious": partial(by_heft, caution=CAUTION),
        "list_bottom_level": by_list,
        "single": suggest(place_single, order_bottom_level),
        "spectral": suggest(spectral, order_bottom_level),
        "spectral_depth_first": suggest(spectral, order_depth_first),
        "spectral_memory_greedy": suggest(spectral, order_memory_greedy),
        "spectral_reverse": suggest(spectral, order_reverse_bottom_level),
        "spectral_by_bytes": suggest(spectral_by_bytes, order_depth_first),
        "spectral_by_bytes_memory_greedy": suggest(spectral_by_bytes, order_memory_greedy),
        "spectral_by_bytes_reverse": suggest(spectral_by_bytes, order_reverse_bottom_level),
        "blocks": suggest(partial(place_blocks, kind="time"), order_bottom_level),
        "blocks_by_bytes": suggest(partial(place_blocks, kind="bytes"), order_depth_first),
        "single_memory_greedy": suggest(place_single, order_memory_greedy),
        "single_reverse": suggest(place_single, order_reverse_bottom_level),
    }


HEURISTICS = _both()
"""Tried where the best of all heuristics is wanted. METIS is not among them: answers must not depend on whether an
optional package is installed."""


def metis_depth_first(instance: SchedulingInstance, kind: Weight, imbalance: float) -> Suggestion:
    """REGAL's `GP + DFS`: a graph partition, and a depth-first order."""
    return suggest(partial(place_metis, kind=kind, imbalance=imbalance), order_depth_first)(instance)
