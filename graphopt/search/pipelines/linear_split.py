"""Splits of an order into runs, one per device, of least maximal load: dynamic programming, and orders to split.

Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators" (NeurIPS 2020): a set of items on a
device is contiguous if it is what lies between two prefixes of a topological order. For one order the best cuts are
found exactly; over all orders see `graphopt.search.pipelines.ideal_split`. Any permutation of items can be split.

Shape legend: M items, C kinds of devices, S states, X results, W weights.
"""

import heapq
from typing import Any, NamedTuple

import numpy as np
from scipy.sparse import csr_array

from graphopt.core.graph import F64, I64
from graphopt.search.pipelines.pipeline import Kinds, Stream
from graphopt.utils.compiled import njit

MOST_CUTS = 2_000  # positions at which an order may be cut: all up to so many items, beyond it evenly spread ones


class SlidingSet(NamedTuple):
    """A set of items that grows and shrinks by one at a time, and what it would load a device with."""

    inside: Any  # int64 [X] readers inside
    made: Any  # bool [X] its maker is inside
    weights: Any  # int64 [W] readers inside
    compute: Any  # float64 [C] seconds
    blocked: Any  # int64 [C]
    sums: Any  # float64 [2] seconds of transfers, bytes of weights


def window(stream: Stream) -> SlidingSet:
    """An empty one."""
    kinds, results = stream.time.shape[1], len(stream.maker)
    return SlidingSet(
        np.zeros(results, np.int64), np.zeros(results, np.bool_), np.zeros(len(stream.weight_bytes), np.int64),
        np.zeros(kinds), np.zeros(kinds, np.int64), np.zeros(2),
    )  # fmt: skip


@njit(cache=True, nogil=True)
def add(stream, window, item):  # type: ignore[no-untyped-def]
    """The item joins the window."""
    for c in range(len(window.compute)):
        window.compute[c] += stream.time[item, c]
        window.blocked[c] += stream.blocked[item, c]
    for e in range(stream.made_ptr[item], stream.made_ptr[item + 1]):
        x = stream.made[e]
        before = window.inside[x] > 0
        after = window.inside[x] < stream.readers[x]
        window.made[x] = True
        window.sums[0] += stream.travel[x] * (np.int64(after) - np.int64(before))
    for e in range(stream.read_ptr[item], stream.read_ptr[item + 1]):
        x = stream.read[e]
        window.inside[x] += 1
        if window.made[x]:
            window.sums[0] -= stream.travel[x] * (window.inside[x] == stream.readers[x])
        else:
            window.sums[0] += stream.travel[x] * (window.inside[x] == 1)
    for e in range(stream.weight_ptr[item], stream.weight_ptr[item + 1]):
        w = stream.weight[e]
        window.weights[w] += 1
        window.sums[1] += stream.weight_bytes[w] * (window.weights[w] == 1)


@njit(cache=True, nogil=True)
def remove(stream, window, item):  # type: ignore[no-untyped-def]
    """The item leaves the window: `add` undone."""
    for e in range(stream.weight_ptr[item], stream.weight_ptr[item + 1]):
        w = stream.weight[e]
        window.sums[1] -= stream.weight_bytes[w] * (window.weights[w] == 1)
        window.weights[w] -= 1
    for e in range(stream.read_ptr[item], stream.read_ptr[item + 1]):
        x = stream.read[e]
        if window.made[x]:
            window.sums[0] += stream.travel[x] * (window.inside[x] == stream.readers[x])
        else:
            window.sums[0] -= stream.travel[x] * (window.inside[x] == 1)
        window.inside[x] -= 1
    for e in range(stream.made_ptr[item], stream.made_ptr[item + 1]):
        x = stream.made[e]
        before = window.inside[x] > 0
        after = window.inside[x] < stream.readers[x]
        window.made[x] = False
        window.sums[0] -= stream.travel[x] * (np.int64(after) - np.int64(before))
    for c in range(len(window.compute)):
        window.compute[c] -= stream.time[item, c]
        window.blocked[c] -= stream.blocked[item, c]


@njit(cache=True, nogil=True)
def judge(kinds, window, load):  # type: ignore[no-untyped-def]
    """The load of the window on each kind of device, inf where it does not fit, into `load` [C]; whether some kind may
    hold more: the least compute time of those, inf when none can."""
    least = np.inf
    for c in range(len(load)):
        load[c] = np.inf
        if window.blocked[c] == 0 and window.sums[1] <= kinds.capacity[c]:
            load[c] = window.compute[c] + (window.sums[0] if kinds.pays[c] else 0.0)
            least = min(least, window.compute[c])
    return least


class LinearSplit(NamedTuple):
    """The best runs of an order."""

    cost: float  # seconds; inf where none is below the limit
    run: I64  # [M] run of each item, in order
    kind: I64  # [runs] kind of device of each run


def split_order(stream: Stream, kinds: Kinds, order: I64, limit: float) -> LinearSplit:
    """The split of `order` [M] into runs with the least maximal load, if that is below `limit`."""
    items, states = len(order), len(kinds.after)
    stride = -(-items // MOST_CUTS)
    positions = np.unique(np.append(np.arange(0, items, stride), items))
    value = np.full((len(positions), states), np.inf)
    value[0, 0] = 0.0
    came = np.full((len(positions), states, 3), -1, np.int64)
    _fill(stream, kinds, order.astype(np.int64), positions, float(limit), window(stream), value, came)
    state = int(np.argmin(value[-1]))
    cost = float(value[-1, state])
    kind: list[int] = []
    run, place = np.zeros(items, np.int64), len(positions) - 1
    while np.isfinite(cost) and place > 0:
        earlier, before, used = came[place, state]
        run[order[positions[earlier] : positions[place]]] = len(kind)
        kind.append(int(used))
        place, state = int(earlier), int(before)
    return LinearSplit(cost, np.maximum(len(kind) - 1 - run, 0), np.array(kind[::-1], np.int64))


@njit(cache=True, nogil=True)
def _fill(stream, kinds, order, positions, limit, window, value, came):  # type: ignore[no-untyped-def]
    """value[p, s]: the least maximal load of the items before positions[p] with the devices of state s."""
    states, load = len(kinds.after), np.empty(len(kinds.pays))
    lowest = np.full(len(positions), np.inf)  # over states
    lowest[0] = 0.0
    for p in range(1, len(positions)):
        at = positions[p]
        for q in range(p - 1, -1, -1):
            while at > positions[q]:
                at -= 1
                add(stream, window, order[at])
            least = judge(kinds, window, load)
            if least >= limit:
                break
            if lowest[q] >= limit or load.min() >= limit:
                continue
            for s in range(states):
                if value[q, s] >= limit:
                    continue
                for c in range(len(load)):
                    after = kinds.after[s, c]
                    both = max(value[q, s], load[c])
                    if after >= 0 and both < limit and both < value[p, after]:
                        value[p, after] = both
                        came[p, after, 0], came[p, after, 1], came[p, after, 2] = q, s, c
        lowest[p] = value[p].min()
        for i in range(positions[p] - 1, at - 1, -1):
            remove(stream, window, order[i])


def to_devices(split: LinearSplit, kind_of_device: I64) -> I64:
    """[M] devices: runs take those of their kind one after another."""
    left = {int(k): np.flatnonzero(kind_of_device == k).tolist() for k in np.unique(kind_of_device)}
    taken = np.array([left[int(k)].pop(0) for k in split.kind], np.int64)
    return taken[split.run]


def topological(first: csr_array, key: F64) -> I64:
    """[M] an order in which `first` [M, M] holds: of the ready items the one with the smallest key, ties by number."""
    waiting = np.asarray(np.bincount(first.indices, minlength=first.shape[0]))
    ready = [(key[i], i) for i in np.flatnonzero(waiting == 0).tolist()]
    heapq.heapify(ready)
    order = []
    while ready:
        item = heapq.heappop(ready)[1]
        order.append(item)
        for j in first.indices[first.indptr[item] : first.indptr[item + 1]].tolist():
            waiting[j] -= 1
            if waiting[j] == 0:
                heapq.heappush(ready, (key[j], j))
    return np.array(order, np.int64)


def levels(first: csr_array) -> F64:
    """[M] the longest way, in items, from a start to each."""
    level = np.zeros(first.shape[0])
    for item in topological(first, np.zeros(len(level))):
        after = first.indices[first.indptr[item] : first.indptr[item + 1]]
        level[after] = np.maximum(level[after], level[item] + 1)
    return level


def depth_first(first: csr_array) -> I64:
    """[M] what an item needs right before it."""
    needs = csr_array(first.T)
    seen, order = np.zeros(first.shape[0], np.bool_), []
    for sink in range(first.shape[0]):
        stack = [(sink, False)]
        while stack:
            item, done = stack.pop()
            if done:
                order.append(item)
            elif not seen[item]:
                seen[item] = True
                stack.append((item, True))
                stack += [(j, False) for j in needs.indices[needs.indptr[item] : needs.indptr[item + 1]][::-1].tolist()]
    return np.array(order, np.int64)


def narrow(stream: Stream, first: csr_array) -> I64:
    """[M] of the ready items always the one after which fewest seconds of results wait to be read."""
    waiting = np.asarray(np.bincount(first.indices, minlength=first.shape[0]), np.int64)
    return np.asarray(_narrow(stream, first.indptr.astype(np.int64), first.indices.astype(np.int64), waiting))


@njit(cache=True, nogil=True)
def _narrow(stream, ptr, after, waiting):  # type: ignore[no-untyped-def]
    items = len(waiting)
    left, order, ready, count = stream.readers.copy(), np.empty(items, np.int64), np.empty(items, np.int64), 0
    for i in range(items):
        if waiting[i] == 0:
            ready[count] = i
            count += 1
    for step in range(items):
        best, lowest = 0, np.inf
        for k in range(count):
            change = 0.0
            for e in range(stream.made_ptr[ready[k]], stream.made_ptr[ready[k] + 1]):
                change += stream.travel[stream.made[e]]
            for e in range(stream.read_ptr[ready[k]], stream.read_ptr[ready[k] + 1]):
                change -= stream.travel[stream.read[e]] * (left[stream.read[e]] == 1)
            if change < lowest:
                best, lowest = k, change
        item = ready[best]
        order[step] = item
        ready[best : count - 1] = ready[best + 1 : count].copy()
        count -= 1
        for e in range(stream.read_ptr[item], stream.read_ptr[item + 1]):
            left[stream.read[e]] -= 1
        for e in range(ptr[item], ptr[item + 1]):
            waiting[after[e]] -= 1
            if waiting[after[e]] == 0:
                ready[count] = after[e]
                count += 1
    return order
