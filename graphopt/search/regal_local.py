"""`regal_local`: local search on random keys, REGAL's baseline of that name.

The state is a vector of keys, so every task can be searched. Of a batch of random moves the best is made unless it is
worse; moves of equal cost are made too, since plateaus are wide. After `patience` evaluations without improvement the
search goes on from the best keys after `kick` random moves. The budget ends it.

Moves (the share of each among those that the task has is `moves`):
- `device`: an op exchanges its largest affinity with another of its own, so that it runs there;
- `block`: an op goes where a neighbour of it is, and takes up to `LARGEST_BLOCK` connected ops of its device along: so
  edges that are cut are mended, which random devices seldom do;
- `swap`: two ops exchange their priorities;
- `shift`: an op takes a new place in the order;
- `transfer`: a result gets a new place among those that wait for a link;
- `choice`: another choice of the op (tasks that decide more).

Our choices, where REGAL's text only names the method: batches instead of all moves, equal moves, kicks, and the shares.
Shape legend: K keys, B moves, N ops, D devices.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numba import njit
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.list_schedule import Dependencies
from graphopt.optimizer import Optimizer
from graphopt.problem import Problem
from graphopt.search.brkga import F32, Price, priced_by, uniform_keys
from graphopt.search.heuristics import Work, heuristic_keys
from graphopt.tasks.keys import Role

LARGEST_BLOCK = 64.0  # sizes of blocks are spread evenly over orders of magnitude up to it

I64 = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How often each kind of move is tried, relative to the others."""

    device: float
    block: float
    swap: float
    shift: float
    transfer: float
    choice: float


class RegalLocal(Optimizer):
    """yaml: conf/algo/regal_local.yaml.

    start: `random` keys, or the best of all `heuristics.HEURISTICS`, each of which is priced and billed.
    """

    def __init__(self, *, name: str, start: Literal["random", "heuristic"], batch: int, patience: int, kick: int,
                 moves: Moves) -> None:  # fmt: skip
        self.name, self.start, self.moves = name, start, moves
        self.batch, self.patience, self.kick = batch, patience, kick

    def solve(self, problem: Problem) -> None:
        if not problem.open or not problem.task.key_count(problem.graph):
            return
        price = priced_by(problem)
        keys, cost = self._begin(problem, price)
        moves = Neighbours(problem, self.moves)
        if moves.any:
            self._descend(keys, cost, price, moves, problem.rng)

    def _begin(self, problem: Problem, price: Price) -> tuple[F32, float]:
        if self.start == "heuristic":
            keys = heuristic_keys(problem)
        else:
            keys = uniform_keys(problem.task.key_count(problem.graph))(problem.rng, 1)
        cost = price(keys)
        return keys[int(np.argmin(cost))], float(cost.min())

    def _descend(self, keys: F32, cost: float, price: Price, moves: "Neighbours", rng: Generator) -> None:
        """Until `price` raises OutOfBudget."""
        best, best_cost, since = keys, cost, 0
        while True:
            batch = moves.around(keys, self.batch, rng)
            found = price(batch)
            winner, since = int(np.argmin(found)), since + self.batch
            if found[winner] <= cost:
                keys, cost = batch[winner], float(found[winner])
            if cost < best_cost:
                best, best_cost, since = keys, cost, 0
            elif cost == best_cost:
                best = keys
            if since >= self.patience:
                start = moves.kicked(best, self.kick, rng)
                keys, cost, since = start[0], float(price(start)[0]), 0


class Neighbours:
    """Random moves on the keys of one problem."""

    def __init__(self, problem: Problem, shares: Moves) -> None:
        layout, task = problem.task.layout(problem.graph), problem.task
        free, heads = task.mask(problem.graph), list(task.heads)
        affinity = _first_keys(layout.role == Role.AFFINITY, layout.op, _ops(free, heads, "device"))
        priority = _first_keys(layout.role == Role.PRIORITY, layout.op, _ops(free, heads, "priority"))
        sends = np.flatnonzero(layout.role == Role.TRANSFER)
        choice = np.flatnonzero((layout.role == Role.CHOICE) & free[layout.op, -1])
        first = np.full(problem.graph.num_ops, -1)
        first[layout.op[affinity]] = affinity
        ptr, beside = _beside(Work(problem.graph, problem.task).needs)
        self._keys = (affinity, layout.op[affinity], first, ptr, beside, priority, sends, choice)
        self._devices = task.machine.num_devices
        orders, blocks = len(priority) - 1, min(len(affinity), len(beside))
        there = [len(affinity), blocks, orders, orders, len(sends) - 1, len(choice)]
        wanted = [shares.device, shares.block, shares.swap, shares.shift, shares.transfer, shares.choice]
        self._bounds = np.cumsum([share if keys > 0 else 0.0 for share, keys in zip(wanted, there, strict=True)])

    @property
    def any(self) -> bool:
        """Whether something can move."""
        return bool(self._bounds[-1] > 0)

    def around(self, keys: F32, count: int, rng: Generator) -> F32:
        """[count, K] copies of keys [K], each after one random move."""
        rows = np.repeat(keys[None], count, 0)
        _move(rows, np.arange(count), rng.random((count, 4)), self._bounds, self._devices, *self._keys)
        return rows

    def kicked(self, keys: F32, moves: int, rng: Generator) -> F32:
        """[1, K] the keys after some random moves."""
        rows = keys[None].copy()
        _move(rows, np.zeros(moves, np.int64), rng.random((moves, 4)), self._bounds, self._devices, *self._keys)
        return rows


@njit(cache=True, nogil=True)
def _move(rows, which, uniform, bounds, devices, affinity, op, first_key, ptr, beside, priority, sends, choice):  # type: ignore[no-untyped-def] # fmt: skip
    """Makes moves in place, move i on row which[i], from uniform numbers [moves, 4]: its kind, two picks, a value."""
    for i in range(len(which)):
        keys, (kind, first, second, value) = rows[which[i]], uniform[i]
        kind *= bounds[-1]
        if kind < bounds[0]:
            start = affinity[int(first * len(affinity))]
            here = np.argmax(keys[start : start + devices])
            _exchange(keys, start, here, (here + 1 + int(second * (devices - 1))) % devices)
        elif kind < bounds[1]:
            size, place = int(LARGEST_BLOCK**value), int(first * len(affinity))
            _move_block(keys, place, second, size, devices, affinity, op, first_key, ptr, beside)
        elif kind < bounds[2]:
            one, other = priority[int(first * len(priority))], priority[int(second * len(priority))]
            keys[one], keys[other] = keys[other], keys[one]
        elif kind < bounds[3]:
            keys[priority[int(first * len(priority))]] = value
        elif kind < bounds[4]:
            keys[sends[int(first * len(sends))]] = value
        else:
            keys[choice[int(first * len(choice))]] = value


@njit(cache=True, nogil=True)
def _exchange(keys, start, here, there):  # type: ignore[no-untyped-def]
    keys[start + here], keys[start + there] = keys[start + there], keys[start + here]


@njit(cache=True, nogil=True)
def _move_block(keys, place, second, size, devices, affinity, op, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """From `place` on, the first op with a neighbour elsewhere goes there, and up to `size` - 1 others with it.

    No move when nothing is cut.
    """
    for step in range(len(affinity)):
        at = (place + step) % len(affinity)
        low, degree = ptr[op[at]], ptr[op[at] + 1] - ptr[op[at]]
        here = np.argmax(keys[affinity[at] : affinity[at] + devices])
        for i in range(degree):
            other = first_key[beside[low + (int(second * degree) + i) % degree]]
            if other >= 0:
                there = np.argmax(keys[other : other + devices])
                if there != here:
                    _spread(keys, op[at], here, there, size, devices, first_key, ptr, beside)
                    return


@njit(cache=True, nogil=True)
def _spread(keys, op, here, there, size, devices, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """Moves up to `size` connected ops from device `here` to `there`, breadth first from `op`."""
    block, count = np.empty(size, np.int64), 1
    block[0] = op
    _exchange(keys, first_key[op], here, there)
    for i in range(size):
        if i == count:
            return
        for e in range(ptr[block[i]], ptr[block[i] + 1]):
            start = first_key[beside[e]]
            if count < size and start >= 0 and np.argmax(keys[start : start + devices]) == here:
                _exchange(keys, start, here, there)
                block[count] = beside[e]
                count += 1


def _beside(needs: Dependencies) -> tuple[I64, NDArray[np.int32]]:
    """CSR (ptr [N+1], op) of the ops that each op reads from or is read by."""
    ops = len(needs.ptr) - 1
    reader = np.repeat(np.arange(ops, dtype=np.int32), np.diff(needs.ptr))
    here, there = np.append(needs.source, reader), np.append(reader, needs.source)
    ptr = np.append(0, np.cumsum(np.bincount(here, minlength=ops))).astype(np.int64)
    return ptr, there[np.argsort(here, kind="stable")].astype(np.int32)


def _ops(free: NDArray[np.bool_], heads: list[str], head: str) -> NDArray[np.bool_]:
    """[N] ops that have a choice under the head."""
    ops: NDArray[np.bool_] = free[:, heads.index(head)] if head in heads else np.ones(len(free), np.bool_)
    return ops


def _first_keys(part: NDArray[np.bool_], op: NDArray[np.int32], free: NDArray[np.bool_]) -> I64:
    """The first key of every op that has keys in a part and a choice."""
    keys = np.flatnonzero(part & free[op])
    return keys[np.unique(op[keys], return_index=True)[1]].astype(np.int64)
