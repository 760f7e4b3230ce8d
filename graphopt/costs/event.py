"""The event simulation of one plan: kernels on devices, results on links, bytes in memory, as time passes.

The rules (docs/semantics.md says the same):
- A device runs one kernel at a time. Among its ready kernels the highest priority starts first, ties by op id.
- A lane (a directed link, or the outgoing bus of a device) carries one transfer at a time and is busy for latency +
  bytes / bandwidth; where lanes are unlimited every transfer has one of its own. A result is sent once per destination
  device (multicast: once, on the lane and with the key of its first reader's device, as slowly as to the slowest
  destination). Waiting transfers go by the priority of the producing op or by the plan's transfer keys; ties by tensor
  id, then destination. Graph inputs and weights are not sent.
- First in, first out means by the step at which an item became ready (steps are defined next), ties as above, or by
  name (`TransferRule.ties`): then what takes no time ends before anything else starts.
- At one instant all that ends comes first (it frees memory, makes kernels ready), then all that starts (it allocates).
  Each such pair is a step; what takes no time ends in a further step of the same instant. Kernels start after the
  transfers of that instant that take no time have arrived.
- Memory: weights are resident on every device that reads them; graph inputs from time 0 on every device that reads them
  until the last reader there ends; a result from the start of its kernel, a received copy from the start of its
  transfer, both until the last reader there has ended; a result also until its outgoing transfers have ended. Graph
  outputs stay where they were made. Under `tick_before` copies are not counted, a result lasts until one tick before
  its last reader anywhere ends, and at one instant what starts comes first.

All durations are multiples of `GRID` seconds, so sums are exact below 8192 s and do not depend on their order; but for
the clock that counts ticks in floating point.

Shape legend: N ops, T tensors, D devices, E operand edges of kernels, R resources (D devices, then the lanes).
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from graphopt.core.graph import F64, I32, I64, Graph
from graphopt.core.machine import Machine, TransferRule
from graphopt.costs.kernel_time import KernelGraph
from graphopt.costs.queues import (
    any_left,
    dequeue,
    drop_first_event,
    insert,
    levels,
    meld,
    push_event,
    rank_by_priority,
    rank_results,
    take_first,
)
from graphopt.errors import UserError
from graphopt.utils.compiled import njit

GRID = 2.0**-40
TICK_DIGITS = 6  # decimals of a duration in ticks
MAX_DEVICES = 62  # destinations are collected in the bits of an int64
_IDLE, _COOLING = -1, -2  # states of a resource that runs nothing: free, or in the overhead after an item


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
    """What a traced simulation writes: items are kernels 0 .. N-1, then transfers in order of creation."""

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
    running: Any  # int32 [R] item, _IDLE or _COOLING
    event_time: Any  # float64 [R] binary heap of the ends of what runs
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
def simulate_rows(flow, links, scratch, device, priority, transfer, memory, trace, makespan, peak, log):  # type: ignore[no-untyped-def]
    """Simulates plans: device [B, N], priority [B, N], transfer [B, T, D] (or [0, 0, 0]) -> makespan [B], peak [B, D].

    `memory`: whether peaks are wanted. `trace`: whether `log` is written in full (then B is 1); its `start` and `end`
    are written where they are not empty. Returns False on a cycle.
    """
    kernels, sound = 0, True
    for n in range(len(flow.is_kernel)):
        kernels += flow.is_kernel[n]
    for b in range(len(device)):
        if not memory and not trace and len(log.start) == 0 and links.on_grid and _on_one_device(flow, device[b]):
            makespan[b] = _sum_of_times(flow, links, device[b])
        else:
            keys = transfer[b] if len(transfer) else transfer[:, 0]
            makespan[b], done = _run(flow, links, scratch, device[b], priority[b], keys, memory, trace, peak[b], log)
            sound = sound and done == kernels
    return sound


@njit(cache=True, nogil=True)
def _on_grid(seconds):  # type: ignore[no-untyped-def]
    return np.floor(seconds / GRID + 0.5) * GRID


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


@njit(cache=True, nogil=True)
def _on_one_device(flow, device):  # type: ignore[no-untyped-def]
    first = -1
    for n in range(len(device)):
        if flow.is_kernel[n]:
            if first >= 0 and device[n] != first:
                return False
            first = device[n]
    return True


@njit(cache=True, nogil=True)
def _sum_of_times(flow, links, device):  # type: ignore[no-untyped-def]
    """The makespan on one device, whatever the order."""
    total = 0.0
    for n in range(len(device)):
        if flow.is_kernel[n]:
            time = flow.time[n, flow.column[device[n]]]
            total += time + (links.op_overhead if time > 0.0 else 0.0)
    return total


@njit(cache=True, nogil=True)
def _run(flow, links, scratch, device, priority, keys, memory, trace, peak, log):  # type: ignore[no-untyped-def]
    """Simulates one plan. Returns (makespan, kernels done).

    One long function: handing a dozen arrays to a function costs Numba more than what the function does here.
    """
    is_kernel, waits, in_ptr, in_tensor, out_ptr, reader_ptr, reader, time, column = flow[:9]
    tensor_bytes, result_bytes, _, keep, name_rank, maker_rank = flow[9:]
    bandwidth, latency, per_link, own_lanes, by_name, on_grid, resource_rank = links[:7]
    multicast, fifo_kernels, fifo_transfers, op_overhead, lane_overhead, _ = links[7:]
    waiting, order, rank, result_order, result_rank, ready, key, tie, child, sibling, root, running = scratch[:12]
    event_time, event_resource, startable, source, uses, live = scratch[12:]
    num_ops, devices = len(is_kernel), len(column)
    level1, level2, _ = levels(max(num_ops, len(keep) - out_ptr[0]))
    ranked_lanes = per_link and not fifo_transfers and len(keys) == 0
    if ranked_lanes or not fifo_kernels:
        rank_by_priority(priority, order, rank)
    if ranked_lanes:
        rank_results(out_ptr, order, result_order, result_rank)
    for resource in range(len(root)):
        root[resource], running[resource] = -1, _IDLE
    events, idle_devices, idle_lanes, items, done, step, now = 0, 0, 0, num_ops, 0, 0, 0.0
    for n in range(num_ops):
        waiting[n] = waits[n]
        if by_name:
            key[n] = -1.0  # no result has arrived
        if is_kernel[n] and waits[n] == 0:
            queue, top = np.int64(device[n]), root[device[n]]
            root[queue] = n
            if top < 0:
                startable[idle_devices] = queue
                idle_devices += 1
            if not fifo_kernels:
                insert(rank[n], queue, ready, level1, level2)
            else:
                key[n], child[n] = 0.0, -1
                if top >= 0:
                    root[queue] = meld(top, np.int32(n), key, tie, child, sibling)
    if memory:
        _load_inputs(flow, device, uses, live, peak)
    while True:
        # What can start, starts: transfers, then kernels unless a transfer that takes no time has to arrive first.
        # By name nothing starts before what takes no time has ended.
        starts = idle_lanes + idle_devices
        if by_name:
            _sort_by_rank(startable, 0, idle_devices, resource_rank)
            _sort_by_rank(startable, devices, devices + idle_lanes, resource_rank)
        for i in range(starts):
            if (by_name or i == idle_lanes) and events > 0 and event_time[0] == now:
                starts = i
                break
            resource = startable[devices + i if i < idle_lanes else i - idle_lanes]
            item = root[resource]
            if fifo_kernels if resource < devices else not ranked_lanes:
                root[resource] = dequeue(item, key, tie, child, sibling)
            else:
                first = take_first(resource, ready, level1, level2)
                root[resource] = any_left(resource, ready, level1 + level2)
                if resource < devices:
                    item = order[first]
                else:
                    item = np.int32(items)
                    items += 1
                    target = -1 if multicast else resource - devices - source[resource] * devices
                    tie[item] = np.int64(result_order[first]) << 6 | (target + 1)
            running[resource] = item
            if resource < devices:
                end = now + time[item, column[resource]]
                if memory:
                    live[resource] += result_bytes[item]
                    peak[resource] = max(peak[resource], live[resource])
            else:
                tensor, target, here = tie[item] >> 6, (tie[item] & 63) - 1, np.int64(source[resource])
                seconds, seen = 0.0, np.int64(1) << here
                for r in range(reader_ptr[tensor], reader_ptr[tensor + 1] if target < 0 else reader_ptr[tensor] + 1):
                    there = np.int64(device[reader[r]]) if target < 0 else target
                    if not (seen >> there) & 1:
                        seen |= np.int64(1) << there
                        seconds = max(seconds, latency[here, there] + tensor_bytes[tensor] / bandwidth[here, there])
                        if memory:
                            uses[tensor * devices + there] = 0
                            live[there] += tensor_bytes[tensor]
                            peak[there] = max(peak[there], live[there])
                end = now + (_on_grid(seconds) if on_grid else seconds)
            push_event(end, resource, events, event_time, event_resource)
            events += 1
            if len(log.start):
                log.start[item], log.end[item] = now, end
            if trace:
                log.step[item, 0], log.step[item, 2] = step, tie[item]
        if starts < idle_lanes:
            for i in range(starts, idle_lanes):
                startable[devices + i - starts] = startable[devices + i]
            idle_lanes -= starts
        else:
            for i in range(starts - idle_lanes, idle_devices):
                startable[i - starts + idle_lanes] = startable[i]
            idle_devices, idle_lanes = idle_lanes + idle_devices - starts, 0
        if trace:
            log.time[step] = now
            for d in range(devices):
                log.bytes[step, d] = live[d]
        if events == 0:
            return now, done
        # What ends next, and all else that ends at that time.
        now = event_time[0]
        step += 1
        while events > 0 and event_time[0] == now:
            resource = event_resource[0]
            events -= 1
            drop_first_event(events, event_time, event_resource)
            item, overhead, from_kernel = running[resource], 0.0, resource < devices
            first, last, here, target = 0, 0, np.int64(resource), np.int64(0)
            if item >= 0:
                if trace:
                    log.step[item, 1] = step
                if from_kernel:
                    first, last = out_ptr[item], out_ptr[item + 1]
                    overhead = op_overhead if time[item, column[resource]] > 0.0 else 0.0
                    done += 1
                else:
                    first, target, here = tie[item] >> 6, (tie[item] & 63) - 1, np.int64(source[resource])
                    last = first + 1
                    overhead = lane_overhead
            for tensor in range(first, last):
                sent, local = np.int64(0), 0
                for r in range(reader_ptr[tensor], reader_ptr[tensor + 1]):
                    kernel = reader[r]
                    there = np.int64(device[kernel])
                    arrived = there == here if from_kernel else there == target or (target < 0 and there != here)
                    if arrived:
                        local += 1
                        if memory and not from_kernel:
                            uses[tensor * devices + there] += 1
                        waiting[kernel] -= 1
                        if by_name:  # what arrives last by name decides
                            names = maker_rank[tensor] << 32 | name_rank[kernel]
                            tie[kernel] = max(tie[kernel], names) if key[kernel] == step else names
                            key[kernel] = step
                        if waiting[kernel] > 0:
                            continue
                        waiter, queue = kernel, there
                        key[waiter] = step
                    elif from_kernel and not (sent >> there) & 1 and not (multicast and sent):
                        sent |= np.int64(1) << there
                        local += 1
                        waiter, queue = np.int32(items), devices + (here * devices + there if per_link else here)
                        if own_lanes:
                            queue = np.int64(devices + items - num_ops)
                            source[queue] = here
                        if not ranked_lanes:
                            items += 1
                            tie[waiter] = tensor << 6 | (0 if multicast else there + 1)
                            urgency = keys[tensor, there] if len(keys) else priority[item]
                            key[waiter] = step if fifo_transfers else -urgency
                    else:
                        continue
                    top = root[queue]
                    root[queue] = waiter
                    if top < 0 and running[queue] == _IDLE:
                        if arrived:
                            startable[idle_devices] = queue
                            idle_devices += 1
                        else:
                            startable[devices + idle_lanes] = queue
                            idle_lanes += 1
                    if ranked_lanes and not arrived:
                        insert(result_rank[tensor], queue, ready, level1, level2)
                    elif arrived and not fifo_kernels:
                        insert(rank[waiter], queue, ready, level1, level2)
                    else:
                        child[waiter] = -1
                        if top >= 0:
                            root[queue] = meld(top, waiter, key, tie, child, sibling)
                if memory:
                    place = tensor * devices + here
                    if from_kernel:
                        uses[place] = local + (1 if keep[tensor] else 0)
                    else:
                        uses[place] -= 1
                    if uses[place] == 0:
                        live[here] -= tensor_bytes[tensor]
            if memory and item >= 0 and from_kernel:
                for e in range(in_ptr[item], in_ptr[item + 1]):
                    place = in_tensor[e] * devices + here
                    uses[place] -= 1
                    if uses[place] == 0:
                        live[here] -= tensor_bytes[in_tensor[e]]
            if overhead > 0.0:
                running[resource] = _COOLING
                push_event(now + overhead, resource, events, event_time, event_resource)
                events += 1
            else:
                running[resource] = _IDLE
                if root[resource] >= 0 and resource < devices:
                    startable[idle_devices] = resource
                    idle_devices += 1
                elif root[resource] >= 0:
                    startable[devices + idle_lanes] = resource
                    idle_lanes += 1


@njit(cache=True, nogil=True)
def _sort_by_rank(resources, first, last, rank):  # type: ignore[no-untyped-def]
    """Sorts resources[first:last], of which there are few, by rank."""
    for i in range(first + 1, last):
        resource, j = resources[i], i
        while j > first and rank[resources[j - 1]] > rank[resource]:
            resources[j] = resources[j - 1]
            j -= 1
        resources[j] = resource


@njit(cache=True, nogil=True)
def _load_inputs(flow, device, uses, live_bytes, peak):  # type: ignore[no-untyped-def]
    """Puts weights and graph inputs on the devices that read them; weights and outputs get a use that never ends."""
    devices = len(live_bytes)
    for d in range(devices):
        live_bytes[d] = 0
    for tensor in range(flow.out_ptr[0]):
        for d in range(devices):
            uses[tensor * devices + d] = 0
        for r in range(flow.reader_ptr[tensor], flow.reader_ptr[tensor + 1]):
            there = device[flow.reader[r]]
            place = tensor * devices + there
            if uses[place] == 0:
                live_bytes[there] += flow.tensor_bytes[tensor]
                uses[place] += 1 if flow.is_weight[tensor] or flow.keep[tensor] else 0
            uses[place] += 1
    for d in range(devices):
        peak[d] = live_bytes[d]
