"""Orders by a score: of the ready ops always the one with the largest, a weighted sum of what each would do to memory
and of where it stands. Which weights are good is learned (`graphopt.algos.order_policy`).

Shape legend: N ops, K ordered ops, F features, S storages.
"""

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.core.live_storage import LiveStorage, peaks
from graphopt.core.op_storage import op_storage
from graphopt.utils.compiled import njit

FEATURES = (
    "made",  # bytes of its results that stay
    "freed",  # bytes that it is the last to read
    "rise",  # by how much its worst moment is above the peak so far
    "fits",  # whether it is not
    "shared",  # bytes that it reads, each over the readers that are left
    "unlocked",  # the most bytes that go, less those that come, with a reader that only waits for it
    "place",  # in the order of the graph
    "waiting",  # how long it has been ready
    "follows",  # whether it reads what the last op made
    "readers",  # that wait for it
    "kept",  # bytes of its results that are outputs
    "workspace",  # bytes that go again at once
)
"""Of a ready op. Bytes count in shares of the peak of the graph's own order, places and times in those of all ops."""


def scored_order(table: LiveStorage, weights: F64) -> I64:
    """[K] the order of weights [F]."""
    ops, own = op_storage(table), float(peaks(table, table.ordered[None])[0])
    order = np.empty(len(table.ordered), np.int64)
    _scored(ops, table.ordered, weights / _units(own), order)
    return order


def _units(own: float) -> F64:
    """[F] what a feature is measured in: the peak of the graph's own order, where it is bytes."""
    plain = {"fits": 1.0, "place": 1.0, "waiting": 1.0, "follows": 1.0, "readers": 10.0}
    return np.array([plain.get(feature, own) for feature in FEATURES])


@njit(cache=True, nogil=True)
def _scored(ops, ordered, weights, order):  # type: ignore[no-untyped-def]
    """Into order: the ready op with the largest score, again and again."""
    count, left = len(ordered), np.zeros(len(ops.size), np.int64)
    for storage in ops.read:
        left[storage] += 1
    begun, since = np.zeros(len(ops.size), np.bool_), np.zeros(len(ops.workspace), np.int64)
    waiting = ops.need_ptr[1:] - ops.need_ptr[:-1]
    ready, size = np.empty(count, np.int64), 0
    for op in ordered:
        if waiting[op] == 0:
            ready[size] = op
            size += 1
    live, high, last, values = ops.base, ops.base, -1, np.zeros(len(weights))
    for step in range(count):
        best, top = 0, -np.inf
        for i in range(size):
            _describe(ops, ready[i], live, high, last, left, begun, waiting, values)
            values[6] = ready[i] / len(ops.workspace)
            values[7] = (step - since[ready[i]]) / count
            score = (values * weights).sum()
            if score > top:
                best, top = i, score
        op = ready[best]
        size -= 1
        ready[best] = ready[size]
        order[step] = op
        last = op
        live, high = _run(ops, op, live, high, left, begun)
        for e in range(ops.out_ptr[op], ops.out_ptr[op + 1]):
            reader = ops.out[e]
            waiting[reader] -= 1
            if waiting[reader] == 0:
                ready[size] = reader
                since[reader] = step
                size += 1


@njit(cache=True, nogil=True)
def _run(ops, op, live, high, left, begun):  # type: ignore[no-untyped-def]
    """(bytes that live after an op, peak so far)."""
    for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
        read = ops.read[e]
        if ops.late[read] and not begun[read]:
            begun[read] = True
            live += ops.size[read]
    high = max(high, live + ops.workspace[op])
    for e in range(ops.made_ptr[op], ops.made_ptr[op + 1]):
        live += ops.size[ops.made[e]]
    for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
        read = ops.read[e]
        left[read] -= 1
        if left[read] == 0 and not ops.keep[read]:
            live -= ops.size[read]
    return live, high


@njit(cache=True, nogil=True)
def _net(ops, op, left):  # type: ignore[no-untyped-def]
    """(bytes that come, bytes that go) with an op."""
    made, freed = 0, 0
    for e in range(ops.made_ptr[op], ops.made_ptr[op + 1]):
        made += ops.size[ops.made[e]]
    for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
        read = ops.read[e]
        freed += ops.size[read] if left[read] == 1 and not ops.keep[read] else 0
    return made, freed


@njit(cache=True, nogil=True)
def _describe(ops, op, live, high, last, left, begun, waiting, values):  # type: ignore[no-untyped-def]
    """Fills values [F], in bytes."""
    made, freed = _net(ops, op, left)
    shared, kept, follows, late = 0.0, 0, 0.0, 0
    for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
        read = ops.read[e]
        late += ops.size[read] if ops.late[read] and not begun[read] else 0
        shared += 0.0 if ops.keep[read] else ops.size[read] / left[read]
    for e in range(ops.need_ptr[op], ops.need_ptr[op + 1]):
        follows = 1.0 if ops.need[e] == last else follows
    for e in range(ops.made_ptr[op], ops.made_ptr[op + 1]):
        kept += ops.size[ops.made[e]] if ops.keep[ops.made[e]] else 0
    unlocked = 0
    for e in range(ops.out_ptr[op], ops.out_ptr[op + 1]):
        if waiting[ops.out[e]] == 1:
            came, went = _net(ops, ops.out[e], left)
            unlocked = max(unlocked, went + made - came)
    rise = live + late + ops.workspace[op] - high
    values[0], values[1], values[2], values[3] = made, freed, max(0, rise), rise <= 0
    values[4], values[5], values[8] = shared, unlocked, follows
    values[9] = ops.out_ptr[op + 1] - ops.out_ptr[op]
    values[10], values[11] = kept, ops.workspace[op] - made
