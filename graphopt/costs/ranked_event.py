"""The event simulation of the usual machine: the rules of `graphopt.costs.event`, about twice as fast.

The usual machine has one lane per pair of devices, no overheads, and lets everything wait by the plan's priority, or
transfers by keys of their own. Then nothing depends on the order of ends at one instant. The loop is fast by:

- The next end is the root of a tree of minima over all devices and lanes. Its entries are whole numbers, the time in
  units of `GRID` above the number of the device or lane, so a change is one minimum per level, without a branch.
- Items that wait by priority are a set of ranks, bits in three levels. Its lowest rank stands apart, so a start does
  not search for it.
- An op's device and the number of inputs that it waits for share one word.
- Whether an input was the last one is a bit that is set or not, no branch.
- Indices are unsigned: Numba then does not look whether they are negative.

Shape legend: N ops, T tensors, D devices, E operand edges of kernels, R resources (D devices, then D * D lanes),
W words of bits, B plans.
"""

import numpy as np

from graphopt.core.utils.compiled import njit
from graphopt.costs.event import load_inputs
from graphopt.costs.event_arrays import GRID, LinkArrays
from graphopt.costs.queues import dequeue, levels, lowest_bit, meld, rank_by_priority, rank_results

MAX_DEVICES = 31  # R stays below 2^10
_NONE = np.int32(1 << 30)  # the lowest rank of an empty set
_NEVER = np.int64(0x7FFFFFFFFFFFFFFF)  # the entry of an idle resource
_TICKS = 1.0 / GRID
_LONGEST = np.int64(2**53)  # ticks: 8192 s
_U = np.uintp


def ranked(links: LinkArrays, devices: int) -> bool:
    """Whether a machine is the usual one."""
    by_priority = not (links.fifo_kernels or links.fifo_transfers or links.by_name)
    plain = links.per_link and links.on_grid and not links.multicast and links.op_overhead == links.lane_overhead == 0.0
    return by_priority and plain and links.tick == 0.0 and devices <= MAX_DEVICES


@njit(cache=True, nogil=True)
def simulate_ranked(flow, links, device, priority, keys, makespan, peak):  # type: ignore[no-untyped-def]
    """Simulates plans: device [B, N], priority [B, N], keys of transfers [B, T, D] or None -> makespan [B] seconds,
    peak [B, D] bytes, or None for none.

    Returns how many plans are done: fewer than B where the next one takes 8192 s or more, or waits for itself.
    """
    is_kernel, waits, in_ptr, in_tensor, out_ptr, reader_ptr, reader, time, column = flow[:9]
    tensor_bytes, result_bytes, _, keep = flow[9:13]
    bandwidth, latency = links[:2]
    num_ops, tensors, devices, one = len(is_kernel), len(keep), len(column), np.int64(1)
    level1, level2, level3 = levels(max(num_ops, tensors - out_ptr[0]))
    words, resources = level1 + level2 + level3, devices + devices * devices
    device_leaves, lane_leaves = _power_of_two(devices), _power_of_two(devices * devices)
    order, rank, waiting = np.empty(num_ops, np.int32), np.empty(num_ops, np.int32), np.empty(num_ops, np.int32)
    transfers = 0 if keys is None else len(reader)
    key, tie = np.empty(transfers), np.empty(transfers, np.int32)  # of transfers that wait by keys of their own
    child, sibling = np.empty(transfers, np.int32), np.empty(transfers, np.int32)
    result_order, result_rank = np.empty(tensors, np.int32), np.empty(tensors, np.int32)
    ready, lowest = np.zeros(resources * words, np.int64), np.empty(resources, np.int32)
    running, tree = np.empty(resources, np.int32), np.empty(4 * lane_leaves, np.int64)
    leaf = np.empty(resources, np.int64)  # devices below entry 2 of the tree, lanes below entry 3
    idle, lanes = np.empty(devices + 1, np.int64), np.empty(devices * devices + 1, np.int64)
    uses, live = np.empty(tensors * devices if peak is not None else 0, np.int32), np.zeros(devices, np.int64)
    read_tensor = np.empty(len(reader), np.int32)
    for t in range(tensors):
        for r in range(reader_ptr[t], reader_ptr[t + 1]):
            read_tensor[r] = t
    kernels = 0
    ticks = np.empty(time.shape, np.int64)
    for n in range(num_ops):
        kernels += is_kernel[n]
        for kind in range(time.shape[1]):
            ticks[n, kind] = _ticks_of(time[n, kind])
    source, target = np.empty(resources, np.int64), np.empty(resources, np.int64)
    for resource in range(devices):
        leaf[resource] = 2 * device_leaves + resource
    for lane in range(devices, resources):
        leaf[lane] = 3 * lane_leaves + lane - devices
        source[lane], target[lane] = (lane - devices) // devices, (lane - devices) % devices

    for b in range(len(device)):
        rank_by_priority(priority[b], order, rank)
        if keys is None:
            rank_results(out_ptr, order, result_order, result_rank)
        tree[:], lowest[:], running[:] = _NEVER, _NONE, -1
        idle_devices, idle_lanes, items, done, now = 0, 0, 0, 0, np.int64(0)
        for n in range(num_ops):
            here = np.int64(device[_U(b), _U(n)])
            waiting[_U(n)] = waits[_U(n)] | np.int32(here << 24)
            if is_kernel[_U(n)] and waits[_U(n)] == 0:
                _insert(ready, here * words, np.int64(rank[n]), one, level1, level2)
                if lowest[here] == _NONE:
                    idle[idle_devices] = here
                    idle_devices += 1
                lowest[here] = min(lowest[here], rank[n])
        if peak is not None:
            load_inputs(flow, device[b], uses, live, peak[b])
        while True:
            for i in range(idle_lanes):
                lane = lanes[_U(i)]
                first = lowest[_U(lane)]
                tensor = np.int64(result_order[_U(first)] if keys is None else tie[_U(first)])
                here, there = source[_U(lane)], target[_U(lane)]
                seconds = latency[_U(here), _U(there)] + tensor_bytes[_U(tensor)] / bandwidth[_U(here), _U(there)]
                if peak is not None:
                    uses[_U(tensor * devices + there)] = 0
                    live[_U(there)] += tensor_bytes[_U(tensor)]
                    peak[_U(b), _U(there)] = max(peak[_U(b), _U(there)], live[_U(there)])
                end = now + _ticks_of(seconds)
                if end >= _LONGEST:
                    return b
                running[_U(lane)] = tensor
                _set(tree, leaf[_U(lane)], end << 10 | lane)
                if keys is None:
                    lowest[_U(lane)] = _drop_lowest(ready, lane * words, np.int64(first), level1, level2, words)
                else:
                    following = dequeue(first, key, tie, child, sibling)
                    lowest[_U(lane)] = following if following >= 0 else _NONE
            wait = idle_lanes > 0 and tree[1] >> 10 == now  # a transfer that takes no time arrives first
            idle_lanes = 0
            for i in range(0 if wait else idle_devices):
                here = idle[_U(i)]
                first = lowest[_U(here)]
                item = order[_U(first)]
                if peak is not None:
                    for result in range(out_ptr[_U(item)], out_ptr[_U(item + 1)]):
                        uses[_U(result * devices + here)] = keep[_U(result)]
                    live[_U(here)] += result_bytes[_U(item)]
                    peak[_U(b), _U(here)] = max(peak[_U(b), _U(here)], live[_U(here)])
                end = now + ticks[_U(item), _U(column[_U(here)])]
                if end >= _LONGEST:
                    return b
                running[_U(here)] = item
                _set(tree, leaf[_U(here)], end << 10 | here)
                lowest[_U(here)] = _drop_lowest(ready, here * words, np.int64(first), level1, level2, words)
            idle_devices = idle_devices if wait else 0
            if tree[1] == _NEVER:
                break
            now = tree[1] >> 10
            while tree[1] >> 10 == now:
                resource = tree[1] & 1023
                item = np.int64(running[_U(resource)])
                running[_U(resource)] = -1
                _set(tree, leaf[_U(resource)], _NEVER)
                if resource < devices:
                    done += 1
                    first, base, sent, before = lowest[_U(resource)], resource * words, np.int64(0), np.int32(-1)
                    for r in range(reader_ptr[_U(out_ptr[_U(item)])], reader_ptr[_U(out_ptr[_U(item + 1)])]):
                        kernel = reader[_U(r)]
                        word = waiting[_U(kernel)]
                        there = np.int64(word >> 24)
                        if there == resource:
                            waiting[_U(kernel)] = word - 1
                            last = (word - 1) & 0xFFFFFF == 0
                            place = rank[_U(kernel)]
                            _insert(ready, base, np.int64(place), np.int64(last), level1, level2)
                            first = min(first, place if last else _NONE)
                            if peak is not None:
                                uses[_U(read_tensor[_U(r)] * devices + resource)] += 1
                            continue
                        tensor = read_tensor[_U(r)]
                        sent = sent if tensor == before else np.int64(0)
                        before = tensor
                        if not (sent >> there) & 1:
                            sent |= one << there
                            lane = devices + resource * devices + there
                            top = lowest[_U(lane)]
                            if top == _NONE and running[_U(lane)] < 0:
                                lanes[_U(idle_lanes)] = lane
                                idle_lanes += 1
                            if keys is None:
                                place = result_rank[_U(tensor)]
                                _insert(ready, lane * words, np.int64(place), one, level1, level2)
                                lowest[_U(lane)] = min(top, place)
                            else:
                                waiter = np.int32(items)
                                items += 1
                                key[_U(waiter)], tie[_U(waiter)] = -keys[_U(b), _U(tensor), _U(there)], tensor
                                child[_U(waiter)] = -1
                                lowest[_U(lane)] = (
                                    waiter if top == _NONE else meld(top, waiter, key, tie, child, sibling)
                                )
                            if peak is not None:
                                uses[_U(tensor * devices + resource)] += 1
                    lowest[_U(resource)] = first
                    idle[_U(idle_devices)] = resource
                    idle_devices += first != _NONE
                    if peak is not None:
                        for result in range(out_ptr[_U(item)], out_ptr[_U(item + 1)]):
                            if uses[_U(result * devices + resource)] == 0:
                                live[_U(resource)] -= tensor_bytes[_U(result)]
                        for e in range(in_ptr[_U(item)], in_ptr[_U(item + 1)]):
                            _release(uses, live, tensor_bytes, in_tensor[_U(e)], resource, devices)
                else:
                    here, there = source[_U(resource)], target[_U(resource)]
                    first, base = lowest[_U(there)], there * words
                    begins = first == _NONE and running[_U(there)] < 0
                    for r in range(reader_ptr[_U(item)], reader_ptr[_U(item + 1)]):
                        kernel = reader[_U(r)]
                        word = waiting[_U(kernel)]
                        if word >> 24 != there:
                            continue
                        waiting[_U(kernel)] = word - 1
                        if (word - 1) & 0xFFFFFF == 0:
                            place = rank[_U(kernel)]
                            _insert(ready, base, np.int64(place), one, level1, level2)
                            first = min(first, place)
                        if peak is not None:
                            uses[_U(item * devices + there)] += 1
                    lowest[_U(there)] = first
                    idle[_U(idle_devices)] = there
                    idle_devices += begins and first != _NONE
                    lanes[_U(idle_lanes)] = resource
                    idle_lanes += lowest[_U(resource)] != _NONE
                    if peak is not None:
                        _release(uses, live, tensor_bytes, item, here, devices)
        makespan[b] = now * GRID
        if done < kernels:
            return b
    return len(device)


@njit(cache=True, nogil=True)
def _power_of_two(least):  # type: ignore[no-untyped-def]
    result = 1
    while result < least:
        result *= 2
    return result


@njit(cache=True, nogil=True, forceinline=True)
def _ticks_of(seconds):  # type: ignore[no-untyped-def]
    return np.int64(seconds * _TICKS + 0.5) if seconds < 8192.0 else _LONGEST


@njit(cache=True, nogil=True, forceinline=True)
def _set(tree, at, entry):  # type: ignore[no-untyped-def]
    """Changes a leaf of the tree of minima, whose root is entry 1."""
    tree[_U(at)] = entry
    while at > 1:
        entry = min(entry, tree[_U(at ^ 1)])
        at >>= 1
        tree[_U(at)] = entry


@njit(cache=True, nogil=True, forceinline=True)
def _insert(ready, base, rank, bit, level1, level2):  # type: ignore[no-untyped-def]
    """Adds a rank to the set at `base` where `bit` is 1; changes nothing where it is 0."""
    ready[_U(base + (rank >> 6))] |= bit << (rank & 63)
    ready[_U(base + level1 + (rank >> 12))] |= bit << ((rank >> 6) & 63)
    ready[_U(base + level1 + level2 + (rank >> 18))] |= bit << ((rank >> 12) & 63)


@njit(cache=True, nogil=True, forceinline=True)
def _drop_lowest(ready, base, rank, level1, level2, words):  # type: ignore[no-untyped-def]
    """Removes the lowest rank from its set and returns the next, or `_NONE`."""
    one = np.int64(1)
    low, middle, top = base + (rank >> 6), base + level1 + (rank >> 12), base + level1 + level2 + (rank >> 18)
    word = ready[_U(low)] & ~(one << (rank & 63))
    ready[_U(low)] = word
    above = ready[_U(middle)]
    above = above if word != 0 else above & ~(one << ((rank >> 6) & 63))
    ready[_U(middle)] = above
    highest = ready[_U(top)]
    highest = highest if above != 0 else highest & ~(one << ((rank >> 12) & 63))
    ready[_U(top)] = highest
    while highest == 0:
        top += 1
        if top == base + words:
            return _NONE
        highest = ready[_U(top)]
    middle = ((top - base - level1 - level2) << 6) + lowest_bit(highest)
    low = (middle << 6) + lowest_bit(ready[_U(base + level1 + middle)])
    return np.int32((low << 6) + lowest_bit(ready[_U(base + low)]))


@njit(cache=True, nogil=True, forceinline=True)
def _release(uses, live, tensor_bytes, tensor, device, devices):  # type: ignore[no-untyped-def]
    """One use less of the copy of a tensor on a device; the last one frees it."""
    place = tensor * devices + device
    uses[_U(place)] -= 1
    if uses[_U(place)] == 0:
        live[_U(device)] -= tensor_bytes[_U(tensor)]
