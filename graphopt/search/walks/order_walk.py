"""`order_walk`: annealing on the order of ops for least peak memory, from the best of the compilers' orders.

A move takes a window of the order and an op in it. `delay` runs the op, and all in the window that waits for it, after
the rest of the window; `advance` runs it, and all in the window that it waits for, before the rest. Both are legal for
any choice, and live values outside the window stay, so a move costs the time of its window: microseconds. Each counts
as one evaluation.

Energy: the sum over steps of (bytes at the step / scale) ^ sharpness. It falls where the peak gets lower or narrower,
on the plateaus where the peak alone stays the same. The search also proves a lower bound (`memory_bound`), and stops
where its best order reaches it.

Not from a paper. Shape legend: N ops, K ordered ops (steps), S storages.
"""

from typing import NamedTuple

import numpy as np

from graphopt.core.graph import I64, Bool
from graphopt.core.live_storage import LiveStorage, OpStorage, op_storage, peaks
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Count, NotNegative, Positive, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.compiler_orders import ORDERS, keys_of, storage_of
from graphopt.search.walks.moves import progress

CHUNK = 20_000  # moves between looks at the clock
MOST_OPS = 8000  # of `memory_bound`: who waits for whom is a matrix of their square


class OrderState(NamedTuple):
    """The state of a search: an order and the bytes at each of its steps. Changed in place."""

    order: I64  # [K]
    place: I64  # [N] step of each op
    live: I64  # [K+1] bytes before each step, and at the end
    high: I64  # [K] bytes at each step's worst moment
    begin: I64  # [S] first step that reads it
    end: I64  # [S] last step that reads it


def walk_from(ops: OpStorage, order: I64) -> OrderState:
    """The state of an order [K]."""
    steps, storages = len(order), len(ops.size)
    walk = OrderState(order.copy(), np.full(len(ops.workspace), -1), np.zeros(steps + 1, np.int64),
                np.zeros(steps, np.int64), np.full(storages, steps), np.full(storages, -1))  # fmt: skip
    _settle(ops, walk)
    return walk


@njit(cache=True, nogil=True)
def _settle(ops, walk):  # type: ignore[no-untyped-def]
    """Computes all that the order implies."""
    steps = len(walk.order)
    for t in range(steps):
        op = walk.order[t]
        walk.place[op] = t
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            walk.begin[ops.read[e]] = min(walk.begin[ops.read[e]], t)
            walk.end[ops.read[e]] = max(walk.end[ops.read[e]], t)
    walk.live[0] = ops.base
    for t in range(steps):
        op, live = walk.order[t], walk.live[t]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            live += ops.size[read] if ops.late[read] and walk.begin[read] == t else 0
        walk.high[t] = live + ops.workspace[op]
        for e in range(ops.made_ptr[op], ops.made_ptr[op + 1]):
            live += ops.size[ops.made[e]]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            live -= ops.size[read] if walk.end[read] == t and not ops.keep[read] else 0
        walk.live[t + 1] = live


@njit(cache=True, nogil=True)
def _delayed(ops, order, low, high, mark, stamp, out):  # type: ignore[no-untyped-def]
    """Into out: the window low..high with the op at `low`, and ops that wait for it, at the end."""
    mark[order[low]] = stamp
    count = 0
    for t in range(low + 1, high + 1):
        op = order[t]
        for e in range(ops.need_ptr[op], ops.need_ptr[op + 1]):
            if mark[ops.need[e]] == stamp:
                mark[op] = stamp
                break
        if mark[op] != stamp:
            out[count] = op
            count += 1
    for t in range(low, high + 1):
        if mark[order[t]] == stamp:
            out[count] = order[t]
            count += 1


@njit(cache=True, nogil=True)
def _advanced(ops, order, low, high, mark, stamp, out):  # type: ignore[no-untyped-def]
    """Into out: the window low..high with the op at `high`, and ops that it waits for, at the start."""
    mark[order[high]] = stamp
    for t in range(high, low - 1, -1):
        if mark[order[t]] == stamp:
            for e in range(ops.need_ptr[order[t]], ops.need_ptr[order[t] + 1]):
                mark[ops.need[e]] = stamp
    count = 0
    for moved in (True, False):
        for t in range(low, high + 1):
            if (mark[order[t]] == stamp) == moved:
                out[count] = order[t]
                count += 1


@njit(cache=True, nogil=True)
def _judged(ops, walk, low, high, window, left, begun, stamp, live, steps):  # type: ignore[no-untyped-def]
    """Fills live and steps (bytes before, at the worst moment) of a window in a new order."""
    for t in range(low, high + 1):
        op = walk.order[t]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            left[ops.read[e]] += 1
    now = walk.live[low]
    for i in range(high - low + 1):
        op = window[i]
        live[i] = now
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            if ops.late[read] and walk.begin[read] >= low and begun[read] != stamp:
                begun[read] = stamp
                now += ops.size[read]
        steps[i] = now + ops.workspace[op]
        for e in range(ops.made_ptr[op], ops.made_ptr[op + 1]):
            now += ops.size[ops.made[e]]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            left[read] -= 1
            if left[read] == 0 and walk.end[read] <= high and not ops.keep[read]:
                now -= ops.size[read]


@njit(cache=True, nogil=True)
def _take(ops, walk, low, high, window, live, steps):  # type: ignore[no-untyped-def]
    """Makes the window's new order the current one."""
    for i in range(high - low + 1):
        op = window[i]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            if walk.begin[read] >= low:
                walk.begin[read] = high + 1
    for i in range(high - low + 1):
        op, t = window[i], low + i
        walk.order[t], walk.place[op], walk.live[t], walk.high[t] = op, t, live[i], steps[i]
        for e in range(ops.read_ptr[op], ops.read_ptr[op + 1]):
            read = ops.read[e]
            if low <= walk.begin[read]:
                walk.begin[read] = min(walk.begin[read], t)
            if walk.end[read] <= high:
                walk.end[read] = t


@njit(cache=True, nogil=True)
def _window(steps, at, widest, delay, rng):  # type: ignore[no-untyped-def]
    """(low, high) of a window of a random length, every order of magnitude as often as any other. Half of them are
    around the peak at `at`: ops that it does not need are delayed beyond it, ops that free memory come before it."""
    length = int(np.exp(rng.random() * np.log(min(widest, steps))))
    low = int(rng.random() * (steps - 1))
    high = low + length
    if rng.random() < 0.5:
        part = int(rng.random() * (length + 1))
        low, high = (at - part, at - part + length) if delay else (at + part - length, at + part)
    return max(0, low), min(high, steps - 1)


@njit(cache=True, nogil=True)
def _risen(walk, low, high, steps, scale, sharpness):  # type: ignore[no-untyped-def]
    """By how much the energy is higher with a window's steps as judged."""
    change = 0.0
    for i in range(high - low + 1):
        change += (steps[i] / scale) ** sharpness - (walk.high[low + i] / scale) ** sharpness
    return change


@njit(cache=True, nogil=True)
def descend(ops, walk, moves, scale, sharpness, heat, widest, rng, best):  # type: ignore[no-untyped-def]
    """Tries so many moves; into best [K] goes the order with the lowest peak on the way.

    heat: by how much the energy, in steps at scale bytes, may rise with probability 1 / e.
    """
    count = len(walk.order)
    mark, begun = np.zeros(len(walk.place), np.int64), np.zeros(len(ops.size), np.int64)
    left = np.zeros(len(ops.size), np.int64)
    window, live, steps = np.empty(count, np.int64), np.empty(count, np.int64), np.empty(count, np.int64)
    at = np.argmax(walk.high)
    lowest = walk.high[at]
    best[:] = walk.order
    for stamp in range(1, moves + 1):
        delay = rng.random() < 0.5
        low, high = _window(count, at, widest, delay, rng)
        if high <= low:
            continue
        if delay:
            _delayed(ops, walk.order, low, high, mark, stamp, window)
        else:
            _advanced(ops, walk.order, low, high, mark, stamp, window)
        _judged(ops, walk, low, high, window, left, begun, stamp, live, steps)
        change = _risen(walk, low, high, steps, scale, sharpness)
        if change > 0.0 and rng.random() >= np.exp(-change / heat):
            continue
        rises = steps[: high - low + 1].max() >= walk.high[at]
        _take(ops, walk, low, high, window, live, steps)
        if rises or low <= at <= high:
            at = np.argmax(walk.high)
            if walk.high[at] < lowest:
                lowest = walk.high[at]
                best[:] = walk.order


def memory_bound(table: LiveStorage) -> int:
    """Bytes that no order on one device goes below; 0 for graphs of more than `MOST_OPS` ops.

    When an op runs, all that it waits for has run and nothing that waits for it has. So results made before it and read
    by it or after it live at that moment, in every order, and so do kept results made before it.
    """
    ops, ordered = op_storage(table), table.ordered
    if not 0 < len(ordered) <= MOST_OPS:
        return 0
    runs_before = ancestors(ops, ordered)  # [N, N]: of the row's op the column's
    maker = np.full(len(ops.size), -1)
    maker[ops.made] = np.repeat(np.arange(len(runs_before)), np.diff(ops.made_ptr))
    reader = np.repeat(np.arange(len(runs_before)), np.diff(ops.read_ptr))
    by_storage = np.argsort(ops.read, kind="stable")
    parts = np.split(reader[by_storage], np.searchsorted(ops.read[by_storage], np.arange(1, len(ops.size))))
    there = np.full(len(runs_before), ops.base - ops.size[ops.given].sum())
    for storage in np.flatnonzero(ops.given | (maker >= 0)):
        alive = np.ones(len(there), np.bool_) if maker[storage] < 0 else runs_before[:, maker[storage]]
        if not ops.keep[storage]:
            readers = parts[storage]
            after: Bool = np.logical_or.reduce(runs_before[readers])
            after[readers] = True
            alive = alive & after
        there = there + alive * ops.size[storage]
    kept = ops.base - ops.size[ops.given].sum() + ops.size[ops.keep & (maker >= 0)].sum()
    return int(max(kept, (there + ops.workspace)[ordered].max()))


def ancestors(ops: OpStorage, ordered: I64) -> Bool:
    """[N, N] whether the column's op must run before the row's; `ordered` is a topological order."""
    before = np.zeros((len(ops.workspace), len(ops.workspace)), np.bool_)
    for op in ordered:
        for need in ops.need[ops.need_ptr[op] : ops.need_ptr[op + 1]]:
            before[op] = np.logical_or(before[op], before[need])
            before[op, need] = True
    return before


class OrderWalk(Optimizer):
    """yaml: conf/algo/order_walk.yaml.

    rounds: times that it cools down, each from the best order so far. hot, cold: how much worse, in steps at the peak,
    an order may be that is taken with probability 1/e, at a round's begin and end. sharpness: power of the bytes of a
    step in the energy. widest: steps that a move changes at most.
    """

    needs_roles = frozenset({Role.PRIORITY})
    needs_cost = frozenset({"storage"})
    knows_roles = frozenset({Role.PRIORITY})

    def __init__(
        self, *, name: str, rounds: Whole, hot: Positive, cold: Positive, sharpness: NotNegative, widest: Count
    ) -> None:
        self.name, self.rounds, self.widest = name, rounds, widest
        self.hot, self.cold, self.sharpness = hot, cold, sharpness

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        table = storage_of(problem)
        problem.prove(float(memory_bound(table)))
        starts = [table.ordered, *(order(table) for order in ORDERS.values())]
        costs = problem.cost_keys(np.stack([keys_of(problem, order) for order in starts]))
        order = starts[int(np.argmin(costs))]
        for turn in range(self.rounds):
            order = self._cooled(problem, table, order, turn)

    def _cooled(self, problem: AssignProblem, table: LiveStorage, order: I64, turn: int) -> I64:
        """The best order of one round."""
        ops, best, lowest = op_storage(table), order, float(peaks(table, order[None])[0])
        walk, scale = walk_from(ops, order), lowest
        found, until = np.empty_like(order), (turn + 1) / self.rounds
        while problem.remaining > 1 and (share := progress(problem)) < until and problem.best_cost > problem.bound:
            heat = self.hot * (self.cold / self.hot) ** (share * self.rounds - turn)
            moves = min(CHUNK, problem.remaining - 1)
            problem.spend(moves)
            descend(ops, walk, moves, scale, self.sharpness, heat, self.widest, problem.rng, found)
            cost = float(peaks(table, found[None])[0])
            if cost < lowest:
                best, lowest = found.copy(), cost
                problem.cost_keys(keys_of(problem, best)[None])
        return best
