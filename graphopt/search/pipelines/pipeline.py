"""What methods for `max_load` read: items that are placed as one, what they hand to each other, kinds of devices.

An item is a group of kernels that share a device. Transfers have one duration each, the longest over all pairs of
devices, and devices that are alike are one kind; so loads here are those of the cost model where all links are alike,
and never less elsewhere. The cost model prices what comes out.

Shape legend: N ops, M items, X transferred results, W weights, C kinds of devices, D devices, S states.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from graphopt.core.graph import F64, I64
from graphopt.costs.event_arrays import GRID
from graphopt.problems.assign_problem import AssignProblem
from graphopt.search.heuristics.rules import SchedulingInstance

MAX_STATES = 1024  # numbers of used devices of each kind; beyond it devices are used in their order


class Stream(NamedTuple):
    """Items and what they send each other. Arrays for Numba; pointers are CSR."""

    time: Any  # float64 [M, C] seconds; 0 where `blocked`
    blocked: Any  # int64 [M, C] ops of an item that a kind of device cannot run
    maker: Any  # int64 [X] item
    travel: Any  # float64 [X] seconds
    readers: Any  # int64 [X] items that read it, its maker not counted; at least 1
    made_ptr: Any  # int64 [M+1]
    made: Any  # int64 [X] transferred results by maker
    read_ptr: Any  # int64 [M+1]
    read: Any  # int64 results of others that an item reads
    weight_ptr: Any  # int64 [M+1]
    weight: Any  # int64 distinct weights that an item reads
    weight_bytes: Any  # float64 [W]


class Kinds(NamedTuple):
    """Kinds of devices, and the states of having used some of each. Arrays for Numba."""

    pays: Any  # bool [C]
    capacity: Any  # float64 [C] bytes
    after: Any  # int64 [S, C] the state after one more device of a kind, -1 where none is left; state 0: none used
    used: Any  # int64 [S, C] devices of each kind that are used


@dataclass(frozen=True)
class Pipeline:
    """The items of a problem in the order of their first ops, and its devices."""

    instance: SchedulingInstance
    item: I64  # [N] item of a kernel, -1 of ops without
    kind: I64  # [D] kind of each device
    kinds: Kinds
    links: tuple[F64, F64]  # latency and bandwidth [D, D]

    @cached_property
    def stream(self) -> Stream:
        return stream(self, self.item)

    @cached_property
    def edges(self) -> csr_array:
        """[M, M] symmetric: seconds that items send each other."""
        return exchange(self.stream)

    @cached_property
    def num_items(self) -> int:
        return int(self.item.max(initial=-1)) + 1

    @cached_property
    def of_op(self) -> I64:
        """[N] the item whose device an op shares, -1 of ops that stay where the initial decision has them."""
        graph, item = self.instance.graph, self.item
        if not len(graph.together):
            return item
        first = np.full(graph.num_ops, -1)
        kernels = np.flatnonzero(item >= 0)[::-1]
        first[graph.together[kernels]] = kernels
        leader = first[graph.together]
        return np.where(leader >= 0, item[leader], item)

    def devices(self, of_item: NDArray[np.integer]) -> NDArray[np.int16]:
        """[..., N] devices of all ops from those of items [..., M]."""
        if not self.num_items:
            return np.broadcast_to(self.instance.initial.device[0], (*of_item.shape[:-1], len(self.item))).astype(
                np.int16
            )
        own = of_item.astype(np.int16)[..., self.of_op]
        return np.where(self.of_op >= 0, own, self.instance.initial.device[0].astype(np.int16))


def pipeline(problem: AssignProblem) -> Pipeline:
    """The pipeline of a problem's initial fusion state."""
    return pipeline_of(SchedulingInstance(problem.graph, problem.task))


def pipeline_of(instance: SchedulingInstance) -> Pipeline:
    """The pipeline of the kernels that `instance` sees."""
    graph, machine = instance.graph, instance.task.machine
    leader = graph.together if len(graph.together) else np.arange(graph.num_ops)
    kernels = np.flatnonzero(instance.kernels.is_kernel)
    _, first, which = np.unique(leader[kernels], return_index=True, return_inverse=True)
    item = np.full(graph.num_ops, -1)
    item[kernels] = np.argsort(np.argsort(first))[which]
    time = instance.kernels.time
    traits = [
        (time[:, d].tobytes(), device.capacity, device.pays_transfers) for d, device in enumerate(machine.devices)
    ]
    distinct = list(dict.fromkeys(traits))
    kind = np.array([distinct.index(trait) for trait in traits])
    capacity = np.array([capacity for _, capacity, _ in distinct])
    pays = np.array([pays for *_, pays in distinct])
    kinds = Kinds(pays, capacity, *_states(np.bincount(kind)))
    if not len(kinds.after):  # too many kinds: every device is one, and they are used in their order
        kind = np.arange(len(traits))
        order = np.array([distinct.index(trait) for trait in traits])
        kinds = Kinds(pays[order], capacity[order], *_chain(len(traits)))
    return Pipeline(instance, item, kind, kinds, (machine.link_latency_DD, machine.link_bandwidth_DD))


def _states(count: I64) -> tuple[I64, I64]:
    """(after [S, C], used [S, C]) of all ways to have used some devices of each kind; nothing where they are many."""
    if np.prod(count + 1.0) > MAX_STATES:
        return np.zeros((0, len(count)), np.int64), np.zeros((0, len(count)), np.int64)
    used = np.stack(np.unravel_index(np.arange(int(np.prod(count + 1))), tuple(count + 1)), 1)
    weight = np.array([int(np.prod(count[c + 1 :] + 1)) for c in range(len(count))])
    after = np.where(used < count, np.arange(len(used))[:, None] + weight, -1)
    return after.astype(np.int64), used.astype(np.int64)


def _chain(devices: int) -> tuple[I64, I64]:
    """State s: the next device is s or a later one."""
    state, device = np.arange(devices + 1)[:, None], np.arange(devices)[None]
    return np.where(device >= state, device + 1, -1).astype(np.int64), (device < state).astype(np.int64)


def stream(pipeline: Pipeline, item: I64) -> Stream:
    """The stream of kernels grouped by `item` [N], -1 without one."""
    instance = pipeline.instance
    graph, kernels = instance.graph, instance.kernels
    count, representative = int(item.max(initial=-1)) + 1, np.unique(pipeline.kind, return_index=True)[1]
    has = item >= 0
    time, blocked = np.zeros((count, len(representative))), np.zeros((count, len(representative)), np.int64)
    alone = kernels.time[has][:, representative]
    np.add.at(time, item[has], np.where(np.isfinite(alone), alone, 0.0))
    np.add.at(blocked, item[has], ~np.isfinite(alone))
    reader = item[np.repeat(np.arange(graph.num_ops), np.diff(kernels.in_ptr))]
    tensor = kernels.in_tensor.astype(np.int64)
    maker = np.where(graph.producer[tensor] >= 0, item[graph.producer[tensor]], -1)
    sent = _distinct(tensor[(maker >= 0) & (maker != reader)], reader[(maker >= 0) & (maker != reader)])
    held = _distinct(tensor[graph.is_weight[tensor]], reader[graph.is_weight[tensor]])
    tensors, result, readers = np.unique(sent[0], return_inverse=True, return_counts=True)
    makers = item[graph.producer[tensors]]
    weights, weight = np.unique(held[0], return_inverse=True)
    made_ptr, made = _csr(makers, np.arange(len(tensors)), count)
    read_ptr, read = _csr(sent[1], result, count)
    weight_ptr, by_item = _csr(held[1], weight, count)
    return Stream(
        time, blocked, makers, _travel(pipeline, graph.tensor_bytes[tensors]), readers.astype(np.int64), made_ptr, made,
        read_ptr, read, weight_ptr, by_item, graph.tensor_bytes[weights].astype(np.float64),
    )  # fmt: skip


def exchange(stream: Stream) -> csr_array:
    """[M, M] symmetric: seconds that items send each other."""
    items = len(stream.time)
    reader = np.repeat(np.arange(items), np.diff(stream.read_ptr))
    seconds = stream.travel[stream.read]
    one_way = coo_array((seconds, (stream.maker[stream.read], reader)), shape=(items, items)).tocsr()
    return csr_array(one_way + one_way.T)


def _travel(pipeline: Pipeline, size: I64) -> F64:
    """[X] the longest that so many bytes travel between two devices, on the grid on which sums are exact."""
    latency, bandwidth = pipeline.links
    between = ~np.eye(len(latency), dtype=np.bool_)
    if not between.any():
        return np.zeros(len(size))
    seconds = latency[between][:, None] + size[None] / bandwidth[between][:, None]
    return np.asarray(np.floor(seconds.max(0) / GRID + 0.5) * GRID)


def _distinct(tensor: I64, reader: I64) -> tuple[I64, I64]:
    pairs = np.unique(np.stack([tensor, reader], 1), axis=0)
    return pairs[:, 0], pairs[:, 1]


def _csr(row: I64, column: I64, rows: int) -> tuple[I64, I64]:
    order = np.argsort(row, kind="stable")
    return np.searchsorted(row[order], np.arange(rows + 1)).astype(np.int64), column[order].astype(np.int64)
