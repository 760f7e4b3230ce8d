"""The event simulation of one plan: kernels on devices, results on links, bytes in memory, as time passes.

The rules (docs/semantics.md says the same):
- A device runs one kernel at a time. Among its ready kernels the highest priority starts first, ties by op id.
- A lane (a directed link, or the outgoing bus of a device) carries one transfer at a time and is busy for latency +
  bytes / bandwidth; where lanes are unlimited every transfer has one of its own. A result is sent once per destination
  device (multicast: once, on the lane and with the key of its first reader's device, as slowly as to the slowest
  destination). Waiting transfers go by the priority of the producing op or by the plan's transfer keys; ties by tensor
  id, then destination. Graph inputs and weights are not sent.
- First in, first out means by the step at which an item became ready (steps are defined next), ties as above, or by
  name (`TransferRule.ties`): then items of zero seconds end before anything else starts.
- At one instant all that ends comes first (it frees memory, makes kernels ready), then all that starts (it allocates).
  Each such pair is a step; items of zero seconds end in a further step of the same instant. Kernels start after the
  transfers of that instant that take no time have arrived.
- Memory: weights are resident on every device that reads them; graph inputs from time 0 on every device that reads them
  until the last reader there ends; a result from the start of its kernel, a received copy from the start of its
  transfer, both until the last reader there has ended; a result also until its outgoing transfers have ended. Graph
  outputs stay where they were made. Under `tick_before` copies are not counted, a result lasts until one tick before
  its last reader anywhere ends, and at one instant starts come before ends.

All durations are multiples of `GRID` seconds, so sums are exact below 8192 s and do not depend on their order; but for
the clock that counts ticks in floating point.

Shape legend: N ops, T tensors, D devices, E operand edges of kernels, R resources (D devices, then the lanes).
"""

import numpy as np

from graphopt.core.utils.compiled import njit
from graphopt.costs.event_arrays import GRID
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

_IDLE, _COOLING = -1, -2  # states of a resource that runs nothing: free, or in the overhead after an item


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
    """The makespan on one device, the same for every order."""
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
        load_inputs(flow, device, uses, live, peak)
    while True:
        # Ready items start: transfers, then kernels unless a transfer of zero seconds has to arrive first.
        # By name nothing starts before items of zero seconds have ended.
        starts = idle_lanes + idle_devices
        if by_name:
            _sort_by_rank(startable, np.int64(0), idle_devices, resource_rank)
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
        # The next end, and all other ends at that time.
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
                        if by_name:  # the last arrival by name decides
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
def load_inputs(flow, device, uses, live_bytes, peak):  # type: ignore[no-untyped-def]
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
