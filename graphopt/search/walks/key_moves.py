"""Local search on random keys: `regal_local`, REGAL's baseline of that name, and the moves that other searches on keys
share.

The state is a vector of keys, so every task can be searched. Of a batch of random moves the best is made unless it is
worse; moves of equal cost are made too, since plateaus are wide. After `patience` evaluations without improvement the
search goes on from the best keys after `kick` random moves. The budget ends it.

Moves (the share of each among those that the task has is `moves`):
- `device`: an op exchanges its largest affinity with another of its own, so that it runs there;
- `block`: an op goes where a neighbour of it is, and takes up to `LARGEST_BLOCK` connected ops of its device along. So
  edges that are cut are mended, which random devices seldom do;
- `swap`: two ops exchange their priorities;
- `shift`: an op takes a new place in the order;
- `transfer`: a result gets a new place among those that wait for a link;
- `choice`: another choice of the op (tasks that decide more).

Our choices, where REGAL's text only names the method: batches instead of all moves, equal moves, kicks, and the shares.
Shape legend: K keys, N ops, M kinds of moves, B moves, D devices.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.core.list_schedule import Dependencies
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Count, Few, NotNegative, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.evolution import F32, Price, priced_by, uniform_keys
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.heuristics.starts import heuristic_keys

LARGEST_BLOCK = 64.0  # sizes of blocks are spread evenly over orders of magnitude up to it


@dataclass(frozen=True, kw_only=True)
class Moves:
    """How often each kind of move is tried, relative to the others."""

    device: NotNegative
    block: NotNegative
    swap: NotNegative
    shift: NotNegative
    transfer: NotNegative
    choice: NotNegative


class RegalLocal(Optimizer):
    """start: `random` keys, or the best of all heuristics, each of which is priced and billed."""

    def __init__(self, *, name: str, start: Literal["random", "heuristic"], batch: Few, patience: Count, kick: Whole,
                 moves: Moves) -> None:  # fmt: skip
        self.name, self.start, self.moves = name, start, moves
        self.batch, self.patience, self.kick = batch, patience, kick

    def solve(self, problem: AssignProblem) -> None:
        if problem.open and problem.task.key_count(problem.graph):
            for _ in self.bests(problem):
                pass

    def bests(self, problem: AssignProblem) -> Iterator[F32]:
        """The best keys [K] after the start and after every batch, as long as nobody stops and the budget lasts; of a
        problem in which nothing can move, those of the start."""
        price = priced_by(problem)
        walk = Descent(*first_plan(problem, self.start, price))
        yield walk.best
        yield from self.descent(walk, price, RandomKeyMoves(problem, self.moves), problem.rng)

    def best_after(self, problem: AssignProblem, evals: int) -> F32 | None:
        """The best keys [1, K] after so many evaluations, as a start of another search; None after none."""
        best = None
        for found in self.bests(problem) if evals else ():
            best = found[None]
            if problem.evals >= evals:
                break
        return best

    def descent(self, walk: "Descent", price: Price, moves: "RandomKeyMoves", rng: Generator) -> Iterator[F32]:
        """The best keys after every batch, until `price` raises OutOfBudget."""
        while moves.any:
            batch = moves.around(walk.here, self.batch, rng)
            walk.step(batch, price(batch))
            if walk.since >= self.patience:
                start = moves.kicked(walk.best, self.kick, rng)
                walk.restart(start[0], float(price(start)[0]))
            yield walk.best


class Descent:
    """Where a local search on keys is. here, cost: the current keys [K] and their price; best, least: the best so far;
    since: evaluations without improvement."""

    def __init__(self, keys: F32, cost: float) -> None:
        self.here, self.cost, self.best, self.least, self.since = keys, cost, keys, cost, 0

    def step(self, batch: F32, found: F64) -> bool:
        """Makes the best of a priced batch [B, K] the current one unless it is worse; whether it did."""
        winner = int(np.argmin(found))
        taken = bool(found[winner] <= self.cost)
        self.since += len(batch)
        if taken:
            self.here, self.cost = batch[winner], float(found[winner])
        if self.cost < self.least:
            self.best, self.least, self.since = self.here, self.cost, 0
        elif self.cost == self.least:
            self.best = self.here
        return taken

    def restart(self, keys: F32, cost: float) -> None:
        """Goes on from other keys."""
        self.here, self.cost, self.since = keys, cost, 0


def first_plan(problem: AssignProblem, start: Literal["random", "heuristic"], price: Price) -> tuple[F32, float]:
    """Keys [K] and their price: `random` ones, or the best of all heuristics, each of which is priced and billed."""
    if start == "heuristic":
        keys = heuristic_keys(problem)
    else:
        keys = uniform_keys(problem.task.key_count(problem.graph))(problem.rng, 1)
    cost = price(keys)
    return keys[int(np.argmin(cost))], float(cost.min())


def movable_keys(problem: AssignProblem, role: KeyRole) -> I64:
    """The first key of that role of every op that has one and a choice."""
    layout, free = problem.layout, problem.task.mask(problem.graph)
    keys = np.flatnonzero((layout.role == role) & free[layout.op, layout.head])
    return keys[np.unique(layout.op[keys], return_index=True)[1]].astype(np.int64)


def by_op(problem: AssignProblem, first: I64) -> I64:
    """[N] which of these keys is an op's, -1 without."""
    found = np.full(problem.graph.num_ops, -1)
    found[problem.layout.op[first]] = first
    return found


def adjacent(needs: Dependencies) -> tuple[I64, NDArray[np.int32]]:
    """CSR (ptr [N+1], op) of the ops that each op reads from or is read by."""
    ops = len(needs.ptr) - 1
    reader = np.repeat(np.arange(ops, dtype=np.int32), np.diff(needs.ptr))
    here, there = np.append(needs.source, reader), np.append(reader, needs.source)
    ptr = np.append(0, np.cumsum(np.bincount(here, minlength=ops))).astype(np.int64)
    return ptr, there[np.argsort(here, kind="stable")].astype(np.int32)


@njit(cache=True, nogil=True)
def exchange(keys, start, here, there):  # type: ignore[no-untyped-def]
    """Exchanges two affinities of the op whose first is at `start`."""
    keys[start + here], keys[start + there] = keys[start + there], keys[start + here]


@njit(cache=True, nogil=True)
def elsewhere(keys, op, here, pick, devices, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """The device of a neighbour that is not `here`, the search beginning at a random one by `pick`; -1 without any."""
    degree = ptr[op + 1] - ptr[op]
    for i in range(degree):
        start = first_key[beside[ptr[op] + (int(pick * degree) + i) % degree]]
        if start >= 0:
            there = np.argmax(keys[start : start + devices])
            if there != here:
                return there
    return -1


@njit(cache=True, nogil=True)
def spread(keys, op, here, there, size, window, devices, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """Moves up to `size` connected ops of one window (of each op, [N]) from device `here` to `there`, breadth first."""
    block, count = np.empty(size, np.int64), 1
    block[0] = op
    exchange(keys, first_key[op], here, there)
    for i in range(size):
        if i == count:
            return
        for e in range(ptr[block[i]], ptr[block[i] + 1]):
            start = first_key[beside[e]]
            near = count < size and start >= 0 and window[beside[e]] == window[op]
            if near and np.argmax(keys[start : start + devices]) == here:
                exchange(keys, start, here, there)
                block[count] = beside[e]
                count += 1


class RandomKeyMoves:
    """Random moves on the keys of one problem."""

    def __init__(self, problem: AssignProblem, shares: Moves) -> None:
        layout, task = problem.layout, problem.task
        affinity, priority = movable_keys(problem, KeyRole.AFFINITY), movable_keys(problem, KeyRole.PRIORITY)
        sends = np.flatnonzero(layout.role == KeyRole.TRANSFER)
        choice = np.flatnonzero((layout.role == KeyRole.CHOICE) & task.mask(problem.graph)[layout.op, layout.head])
        first = by_op(problem, affinity)
        ptr, beside = adjacent(SchedulingInstance(problem.graph, task).needs)
        window = np.zeros(problem.graph.num_ops, np.int64)  # blocks may spread everywhere
        self._keys = (affinity, layout.op[affinity], first, window, ptr, beside, priority, sends, choice)
        self._devices = task.machine.num_devices
        orders, blocks = len(priority) - 1, min(len(affinity), len(beside))
        there = [len(affinity), blocks, orders, orders, len(sends) - 1, len(choice)]
        wanted = [shares.device, shares.block, shares.swap, shares.shift, shares.transfer, shares.choice]
        self._bounds = np.cumsum([share if keys > 0 else 0.0 for share, keys in zip(wanted, there, strict=True)])

    @property
    def any(self) -> bool:
        """Whether something can move."""
        return self.total > 0

    @property
    def total(self) -> float:
        """The sum of the shares of those moves that there are."""
        return float(self._bounds[-1])

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
def _move(rows, which, uniform, bounds, devices, affinity, op, first_key, window, ptr, beside, priority, sends, choice):  # type: ignore[no-untyped-def] # fmt: skip
    """Makes moves in place, move i on row which[i], from uniform numbers [moves, 4]: its kind, two picks, a value."""
    for i in range(len(which)):
        keys, (kind, first, second, value) = rows[which[i]], uniform[i]
        kind *= bounds[-1]
        if kind < bounds[0]:
            start = affinity[int(first * len(affinity))]
            here = np.argmax(keys[start : start + devices])
            exchange(keys, start, here, (here + 1 + int(second * (devices - 1))) % devices)
        elif kind < bounds[1]:
            size, place = int(LARGEST_BLOCK**value), int(first * len(affinity))
            _move_block(keys, place, second, size, window, devices, affinity, op, first_key, ptr, beside)
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
def _move_block(keys, place, second, size, window, devices, affinity, op, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """From `place` on, the first op with a neighbour elsewhere goes there, and up to `size` - 1 others with it.

    No move when nothing is cut.
    """
    for step in range(len(affinity)):
        at = (place + step) % len(affinity)
        here = np.argmax(keys[affinity[at] : affinity[at] + devices])
        there = elsewhere(keys, op[at], here, second, devices, first_key, ptr, beside)
        if there >= 0:
            spread(keys, op[at], here, there, size, window, devices, first_key, ptr, beside)
            return


KINDS = ("device", "block", "swap", "shift", "transfer")


class Drawn(NamedTuple):
    """Moves by kind and op, [B] each."""

    kind: I64
    op: I64


class WeightedMoves:
    """Moves whose kind and op are drawn by weights, so that a search can say where it perturbs; which other op, device
    or place it is stays uniform. `transfer` gives a result of the op a new place.

    base: [M, N] how often each is tried by chance alone, summing to 1 (or to 0 where nothing can move)."""

    def __init__(self, problem: AssignProblem, shares: Moves) -> None:
        layout, task, ops = problem.layout, problem.task, problem.graph.num_ops
        affinity, priority = (
            by_op(problem, movable_keys(problem, role)) for role in (KeyRole.AFFINITY, KeyRole.PRIORITY)
        )
        ptr, beside = adjacent(SchedulingInstance(problem.graph, task).needs)
        sends = np.flatnonzero(layout.role == KeyRole.TRANSFER)
        sends = sends[np.argsort(layout.op[sends], kind="stable")]
        send_ptr = np.searchsorted(layout.op[sends], np.arange(ops + 1))
        window = np.zeros(ops, np.int64)  # blocks may spread everywhere
        orders = np.flatnonzero(priority >= 0)
        self._keys = (affinity, priority, orders, sends, send_ptr, window, ptr, beside, task.machine.num_devices)
        ordered = (priority >= 0) & (len(orders) > 1)
        able = np.stack([affinity >= 0, (affinity >= 0) & (np.diff(ptr) > 0), ordered, ordered, np.diff(send_ptr) > 0])
        share = np.array([getattr(shares, kind) for kind in KINDS])
        base = able * (share / np.maximum(able.sum(1), 1))[:, None]  # each kind's, divided among ops
        self.base: F64 = base / max(base.sum(), 1e-30)

    def drawn(self, weight: F64, count: int, rng: Generator) -> Drawn:
        """Kinds and ops by weights [M, N] of any scale."""
        total = np.cumsum(weight)
        flat = np.searchsorted(total, rng.random(count) * total[-1], side="right")
        kind, op = np.divmod(np.minimum(flat, weight.size - 1), weight.shape[1])
        return Drawn(kind, op)

    def made(self, keys: F32, moves: Drawn, rng: Generator, *, together: bool = False) -> F32:
        """[B, K] copies of keys [K], each after its move; together: [1, K] one copy after all of them."""
        count = len(moves.kind)
        rows = np.repeat(keys[None], 1 if together else count, 0)
        which = np.zeros(count, np.int64) if together else np.arange(count)
        _make(rows, which, moves.kind, moves.op, rng.random((count, 2)), *self._keys)
        return rows


@njit(cache=True, nogil=True)
def _make(rows, which, kinds, ops, uniform, affinity, priority, orders, sends, send_ptr, window, ptr, beside, devices):  # type: ignore[no-untyped-def] # fmt: skip
    """Makes moves in place, move i on row which[i], with uniform numbers [B, 2]: another op or device, a value."""
    for i in range(len(which)):
        keys, kind, op = rows[which[i]], kinds[i], ops[i]
        pick, value = uniform[i]
        if kind == 0:
            here = np.argmax(keys[affinity[op] : affinity[op] + devices])
            exchange(keys, affinity[op], here, (here + 1 + int(pick * (devices - 1))) % devices)
        elif kind == 1:
            here = np.argmax(keys[affinity[op] : affinity[op] + devices])
            there = elsewhere(keys, op, here, pick, devices, affinity, ptr, beside)
            if there < 0:
                there = (here + 1 + int(pick * (devices - 1))) % devices
            spread(keys, op, here, there, int(LARGEST_BLOCK**value), window, devices, affinity, ptr, beside)
        elif kind == 2:
            other = priority[orders[int(pick * len(orders))]]
            keys[priority[op]], keys[other] = keys[other], keys[priority[op]]
        elif kind == 3:
            keys[priority[op]] = value
        else:
            count = send_ptr[op + 1] - send_ptr[op]
            keys[sends[send_ptr[op] + int(pick * count)]] = value
