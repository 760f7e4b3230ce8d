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

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.random import Generator

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.brkga import F32, Price, priced_by
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.key_moves import adjacent, by_op, elsewhere, exchange, first_plan, movable_keys, spread
from graphopt.utils.compiled import njit
from graphopt.utils.ranges import Count, Few, NotNegative, Whole

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
    """yaml: conf/algo/regal_local.yaml.

    start: `random` keys, or the best of all `heuristics.HEURISTICS`, each of which is priced and billed.
    """

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
        yield from self.bests_from(problem, *first_plan(problem, self.start, priced_by(problem)))

    def bests_from(self, problem: AssignProblem, keys: F32, cost: float) -> Iterator[F32]:
        """The same from given keys [K], whose price is known."""
        moves = RandomKeyMoves(problem, self.moves)
        yield keys
        if moves.any:
            yield from self._descend(keys, cost, priced_by(problem), moves, problem.rng)

    def _descend(self, keys: F32, cost: float, price: Price, moves: "RandomKeyMoves", rng: Generator) -> Iterator[F32]:
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
            yield best


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
