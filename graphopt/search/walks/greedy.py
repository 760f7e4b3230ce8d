"""`greedy`: from a poor start, the change with the largest gain first, with exact prices.

From choice 0 everywhere (store everything, for fusion) this is XLA's priority fusion with the problem's own cost in
place of XLA's. Gains are scored again near a change at once, elsewhere when they reach the top.
"""

import heapq

import numpy as np

from graphopt.core.graph import Graph
from graphopt.core.operators import Category
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import I64, Slots, Walk, check_start, slots_of, start_walk


class Greedy(Optimizer):
    """Largest gain first; ends when no change in the queue helps.

    start: `zero` (faithful), `initial` or `random`. A budget below the number of slots ends while the first gains are
    being scored, so the answer is then the best single change of the start, or the default.
    """

    def __init__(self, *, name: str, start: str) -> None:
        self.name, self.start = name, check_start(start)

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if not len(slots) or not problem.open:
            return
        queue = _Gains(start_walk(problem, slots, self.start, deltas=True), slots)
        queue.score(np.arange(len(slots)))
        near = _Near(problem.graph, slots)
        while (slot := queue.apply_best()) >= 0:
            queue.score(near.slots(int(slots.op[slot])))


class _Gains:
    """A queue of the best change of every slot by gain. A score is stale once any change was made after it."""

    def __init__(self, walk: Walk, slots: Slots) -> None:
        self._walk, self._slots = walk, slots
        self._queue: list[tuple[float, int, int]] = []  # (-gain, slot, version)
        self._version = np.zeros(len(slots), np.int64)
        self._scored_at = np.zeros(len(slots), np.int64)  # number of changes made before the score
        self._choice = np.zeros(len(slots), np.int64)
        self._price = np.zeros(len(slots))
        self._changes = 0

    def score(self, which: I64) -> None:
        """Prices every alternative of the given slots; queues the best of each where it helps."""
        counts = self._slots.choices[which] - 1
        slot = np.repeat(which, counts)
        op, head = self._slots.op[slot], self._slots.head[slot]
        place = np.arange(len(slot)) - np.repeat(np.cumsum(counts) - counts, counts)
        choice = place + (place >= self._walk.decision[op, head])
        prices = self._walk.price(op, head, choice)
        starts = np.cumsum(counts) - counts
        for i, s in enumerate(which.tolist()):
            best = int(starts[i] + np.argmin(prices[starts[i] : starts[i] + counts[i]]))
            self._version[s] += 1
            self._scored_at[s], self._choice[s], self._price[s] = self._changes, choice[best], prices[best]
            if prices[best] < self._walk.score:
                heapq.heappush(self._queue, (float(prices[best] - self._walk.score), s, int(self._version[s])))

    def apply_best(self) -> int:
        """Makes the change with the largest gain, re-scored if stale, and returns its slot; -1 when none helps."""
        while self._queue:
            _, slot, version = heapq.heappop(self._queue)
            if version != self._version[slot]:
                continue
            if self._scored_at[slot] < self._changes:
                self.score(np.array([slot]))
                continue
            op, head = int(self._slots.op[slot]), int(self._slots.head[slot])
            self._walk.take(op, head, int(self._choice[slot]), float(self._price[slot]))
            self._changes += 1
            self._version[slot] += 1
            return slot
        return -1


class _Near:
    """Slots whose gain a change of an op is likely to change: those of its producers, consumers, and their producers.

    Views decide nothing and are looked through.
    """

    def __init__(self, graph: Graph, slots: Slots) -> None:
        self._graph, self._slots = graph, slots
        self._is_view = graph.category == Category.VIEW

    def slots(self, op: int) -> I64:
        producers, consumers = self._beside(op, self._graph.predecessors), self._beside(op, self._graph.successors)
        ops = producers | consumers
        for consumer in consumers:
            ops |= self._beside(consumer, self._graph.predecessors)
        first = self._slots.first
        return np.array([s for n in sorted(ops - {op}) for s in range(first[n], first[n + 1])], np.int64)

    def _beside(self, op: int, adjacency: tuple[I64, np.ndarray[tuple[int, ...], np.dtype[np.int32]]]) -> set[int]:
        ptr, column = adjacency
        found: set[int] = set()
        stack = column[ptr[op] : ptr[op + 1]].tolist()
        while stack:
            here = stack.pop()
            if self._is_view[here]:
                stack += column[ptr[here] : ptr[here + 1]].tolist()
            else:
                found.add(here)
        return found
