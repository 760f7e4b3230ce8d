"""The arrays that the event simulation reads and writes: kernels, links, working memory, the log.

Shape legend: N ops, T tensors, D devices, U kinds of device, E operand edges of kernels, R resources (D devices, then
the lanes), W words of bits, S steps.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphopt.core.errors import UserError
from graphopt.core.graph import F64, I32, I64, Graph
from graphopt.core.machine import Machine, TransferRule
from graphopt.core.utils.compiled import njit
from graphopt.costs.one_kernel.kernel_time import KernelGraph
from graphopt.costs.queues import levels

GRID = 2.0**-40
TICK_DIGITS = 6  # decimals of a duration in ticks
MAX_DEVICES = 62  # destinations are collected in the bits of an int64


class Flow(NamedTuple):
    """A kernel graph as the event loop reads it: who waits for whom, and sizes."""

    is_kernel: Any  # bool [N]
    waits: Any  # int32 [N] inputs made by other kernels
    in_ptr: Any  # int64 [N+1]
    in_tensor: Any  # int32 [E]
    out_ptr: Any  # int32 [N+1] results of op n are tensors out_ptr[n] .. out_ptr[n+1]-1
    reader_ptr: Any  # int32 [T+1]
    reader: Any  # int32 [E] kernels that read each tensor
    time: Any  # float64 [N, U] on each kind of device, in units of the clock
    column: Any  # int64 [D] the kind of each device
    tensor_bytes: Any  # int64 [T]
    result_bytes: Any  # int64 [N]
    is_weight: Any  # bool [T]
    keep: Any  # bool [T]
    name_rank: Any  # int64 [N] place of the op's name among all, where ties go by name; else [0]
    maker_rank: Any  # int64 [T] that of the op that makes a tensor, likewise


class LinkArrays(NamedTuple):
    """The links and the transfer rule of a machine. Times are in units of its clock."""

    bandwidth: Any  # float64 [D, D] bytes per unit of the clock
    latency: Any  # float64 [D, D]
    per_link: bool
    own_lanes: bool  # every transfer has one
    by_name: bool
    on_grid: bool
    resource_rank: Any  # int64 [R] place of a device or lane by the names of devices, where ties go by name; else [0]
    multicast: bool
    fifo_kernels: bool
    fifo_transfers: bool
    op_overhead: float
    lane_overhead: float
    tick: float  # in units of the clock; 0: free at the end of the last reader


class Log(NamedTuple):
    """The log of a traced simulation: items are kernels 0 .. N-1, then transfers in order of creation."""

    start: Any  # float64 [N+E] seconds
    end: Any  # float64 [N+E]
    step: Any  # int64 [N+E, 3] position of start and end in the order of all that happens, and the item's tie
    time: Any  # float64 [S] seconds of each step
    bytes: Any  # int64 [S, D] memory after it


class Scratch(NamedTuple):
    """Working memory of one simulation, allocated once per batch. Items are kernels 0 .. N-1, then transfers."""

    waiting: Any  # int32 [N] inputs not there yet
    order: Any  # int32 [N] kernels by priority, the most urgent first
    rank: Any  # int32 [N] position there
    result_order: Any  # int32 [T] results in the order of their producers
    result_rank: Any  # int32 [T] position there
    ready: Any  # int64 [R, W] ranks of waiting items as bits, in three levels
    key: Any  # float64 [N+E] order of waiting items: smallest first
    tie: Any  # int64 [N+E] op id of a kernel; tensor * 64 + destination + 1 of a transfer (destination -1: all)
    child: Any  # int32 [N+E] pairing heaps of waiting items
    sibling: Any  # int32 [N+E]
    root: Any  # int32 [R] first waiting item of every resource, or -1
    running: Any  # int32 [R] the item of a resource, or its state
    event_time: Any  # float64 [R] binary heap of the ends of running items
    event_resource: Any  # int32 [R]
    startable: Any  # int32 [R] idle devices with waiting kernels; from D on idle lanes with waiting transfers
    source: Any  # int32 [R] the device from which a lane starts; of own lanes set when a transfer gets one
    uses: Any  # int32 [T * D] reasons to keep the copy of a tensor on a device
    bytes: Any  # int64 [D] memory now


def link_arrays(machine: Machine) -> LinkArrays:
    """The machine's links as arrays. Raises UserError beyond 62 devices."""
    if machine.num_devices > MAX_DEVICES:
        raise UserError(
            f"machine {machine.name!r} has more than {MAX_DEVICES} devices, which the simulator takes at most"
        )
    rule, by_name = machine.transfer, machine.transfer.ties == "name"
    after_op, after_transfer = (float(_on_clock(np.array(s), rule)) for s in (rule.op_overhead, rule.lane_overhead))
    bandwidth, latency = machine.link_bandwidth_DD, machine.link_latency_DD
    if rule.clock == "tick":
        bandwidth, latency = np.round(bandwidth * rule.unit, TICK_DIGITS), _on_clock(latency, rule)
    return LinkArrays(
        bandwidth, latency, rule.lane == "link", rule.lane == "unlimited", by_name, rule.clock == "grid",
        _resource_ranks(machine) if by_name else np.zeros(0, np.int64), rule.multicast, rule.op_order == "fifo",
        rule.order == "fifo", after_op, after_transfer,
        rule.tick / rule.unit if rule.free == "tick_before" else 0.0,
    )  # fmt: skip


def _on_clock(seconds: F64, rule: TransferRule) -> F64:
    """Durations as the clock counts them."""
    if rule.clock == "tick":
        return np.asarray(np.round(seconds / rule.tick, TICK_DIGITS))
    return np.asarray(np.floor(seconds / GRID + 0.5) * GRID)


def _resource_ranks(machine: Machine) -> I64:
    """[R] devices by name, lanes by the names of source and destination."""
    names = [device.name for device in machine.devices]
    lanes = [(a, b) for a in names for b in names] if machine.transfer.lane == "link" else [(a, "") for a in names]
    return np.concatenate([_ranks(names), _ranks(lanes)])


def _ranks(names: Sequence[Any]) -> I64:
    """[N] place of each name among all; equal ones in their order."""
    ranks = np.empty(len(names), np.int64)
    ranks[sorted(range(len(names)), key=lambda i: names[i])] = np.arange(len(names))
    return ranks


def flow(graph: Graph, kernels: KernelGraph, rule: TransferRule) -> Flow:
    """Arranges a kernel graph for the event loop under the rule."""
    reader_ptr, reader = _readers(kernels.in_ptr, kernels.in_tensor, graph.num_tensors)
    made = np.append(0, np.cumsum(graph.producer[kernels.in_tensor] >= 0))
    time, column = _distinct_columns(kernels.time if rule.clock == "grid" else _on_clock(kernels.time, rule))
    name_rank = _ranks(graph.op_names) if rule.ties == "name" else np.zeros(0, np.int64)
    maker_rank = name_rank[graph.producer] if rule.ties == "name" else name_rank
    return Flow(
        kernels.is_kernel, np.diff(made[kernels.in_ptr]).astype(np.int32), kernels.in_ptr, kernels.in_tensor,
        graph.output_ptr.astype(np.int32), reader_ptr, reader, time, column, graph.tensor_bytes, graph.result_bytes,
        graph.is_weight, kernels.keep, name_rank, maker_rank,
    )  # fmt: skip


def _distinct_columns(time_ND: F64) -> tuple[F64, I64]:
    """Times on each kind of device [N, U], and the kind of each device [D]: fewer bytes for the loop to read."""
    kinds: list[int] = []
    column = np.zeros(time_ND.shape[1], np.int64)
    for d in range(time_ND.shape[1]):
        same = [k for k, kind in enumerate(kinds) if np.array_equal(time_ND[:, d], time_ND[:, kind])]
        column[d] = same[0] if same else len(kinds)
        kinds += [] if same else [d]
    return np.ascontiguousarray(time_ND[:, kinds]), column


def scratch(flow: Flow, links: LinkArrays, memory: bool) -> Scratch:
    """Working memory for plans of one kernel graph; one per thread."""
    num_ops, devices = len(flow.is_kernel), len(flow.column)
    tensors, edges = len(flow.keep), len(flow.in_tensor)
    lanes = edges if links.own_lanes else devices * devices if links.per_link else devices
    items, resources = num_ops + edges, devices + lanes
    ranked = devices if links.own_lanes else resources  # resources that may choose by rank
    words = sum(levels(max(num_ops, tensors - int(flow.out_ptr[0]))))
    tie = np.empty(items, np.int64)
    tie[:num_ops] = np.arange(num_ops)
    source = np.arange(resources, dtype=np.int32)
    source[devices:] = np.arange(lanes) // (devices if links.per_link else 1)  # of own lanes it is set on use

    def ids(length: int) -> I32:
        return np.empty(length, np.int32)

    return Scratch(
        waiting=ids(num_ops), order=ids(num_ops), rank=ids(num_ops), result_order=ids(tensors),
        result_rank=ids(tensors), ready=np.zeros((ranked, words), np.int64), key=np.empty(items), tie=tie,
        child=ids(items), sibling=ids(items),
        root=ids(resources), running=ids(resources), event_time=np.empty(resources), event_resource=ids(resources),
        startable=ids(resources), source=source, uses=ids(tensors * devices if memory else 0),
        bytes=np.zeros(devices, np.int64),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def _readers(in_ptr, in_tensor, tensors):  # type: ignore[no-untyped-def]
    """CSR (ptr [T+1], kernel) of the kernels that read each tensor, ascending."""
    ptr = np.zeros(tensors + 2, np.int64)
    for tensor in in_tensor:
        ptr[tensor + 2] += 1
    ptr = np.cumsum(ptr)
    reader = np.empty(len(in_tensor), np.int32)
    for n in range(len(in_ptr) - 1):
        for e in range(in_ptr[n], in_ptr[n + 1]):
            tensor = in_tensor[e]
            reader[ptr[tensor + 1]] = n
            ptr[tensor + 1] += 1
    return ptr[:-1].astype(np.int32), reader
