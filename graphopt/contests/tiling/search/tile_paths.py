"""`TileExact`: the schedule of least cost of a small workload, as a shortest path."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from graphopt.contests.tiling.search.groupings import Wiring
from graphopt.contests.tiling.tile_latency import Kept, TileCosts, bits
from graphopt.contests.tiling.tile_workload import TileSchedule
from graphopt.contests.tiling.tiling_task import Tiler, TilingProblem
from graphopt.core.errors import Unsolved
from graphopt.core.utils.marks import Count
from graphopt.problems.problem import OutOfBudget


class State(NamedTuple):
    """Between two steps. slow, fast: ops, as bits, whose results lie in slow memory, and in fast memory."""

    slow: int
    fast: int


class TileExact(Tiler):
    """Dijkstra's algorithm over the contents of slow and fast memory; a step may be any subgraph and may keep any of
    its results, so that every order, grouping, recomputation and retention is looked at. The optimum is proven over
    tiles of all sides, with the depths of `tile_latency`, walked there and back by rows or by columns.

    most_ops: of a workload; the number of subgraphs doubles with each.
    """

    def __init__(self, *, name: str, most_ops: Count) -> None:
        self.name, self.most_ops = name, most_ops

    def solve(self, problem: TilingProblem) -> None:
        ops = problem.workload.num_ops
        if ops > self.most_ops:
            raise Unsolved(f"algo={self.name} solves graphs of at most {self.most_ops} ops, this one has {ops}: take "
                           "algo=tile_walk, or raise algo.most_ops")  # fmt: skip
        if not problem.remaining:
            raise OutOfBudget
        cost, schedule = _shortest(problem, _Steps(Wiring(TileCosts(problem.workload, every_side=True))))
        problem.cost(schedule)
        problem.prove(cost)


class _Steps:
    """All subgraphs of a workload: [2^N] stored ops that each reads from, and ops whose results leave it."""

    def __init__(self, wiring: Wiring) -> None:
        self.costs, self._made, ops = wiring.costs, wiring.workload.output, range(wiring.workload.num_ops)
        self.outputs = sum(1 << op for op in ops if not wiring.after[op])
        self._needs = [wiring.group(subset, 0).needs for subset in range(1 << len(ops))]
        self._leaves = [
            sum(1 << op for op in bits(subset) if not wiring.after[op] & subset) for subset in range(1 << len(ops))
        ]

    def after(self, state: State) -> Iterator[tuple[State, int, float]]:
        """(state that it leads to, its ops, its latency) of every step that can come next."""
        there, fast = state.slow | state.fast, self.tensors(state.fast)
        for ops in range(1, len(self._needs)):
            if self._needs[ops] & ~there:
                continue
            may_keep = kept = self._leaves[ops] & ~self.outputs
            while True:
                latency = self.costs.best(ops, fast, self.tensors(kept)).latency
                if latency < float("inf"):
                    yield State(state.slow | self._leaves[ops] & ~kept, kept), ops, latency
                if not kept:
                    break
                kept = (kept - 1) & may_keep

    def tensors(self, ops: int) -> Kept:
        return frozenset(self._made[op] for op in bits(ops))


def _shortest(problem: TilingProblem, steps: _Steps) -> tuple[float, TileSchedule]:
    """(cost, schedule) from nothing computed to all outputs in slow memory. Raises OutOfBudget when the time is over
    first."""
    start = State(0, 0)
    known, came, heap = {start: 0.0}, dict[State, tuple[State, int]](), [(0.0, start)]
    while heap:
        cost, state = heapq.heappop(heap)
        if cost > known[state]:
            continue
        if not steps.outputs & ~state.slow:
            path = []
            while state in came:
                before, ops = came[state]
                path.append(steps.costs.step(ops, steps.tensors(before.fast), steps.tensors(state.fast)))
                state = before
            return cost, TileSchedule(tuple(reversed(path)))
        problem.within(1.0)
        for reached, ops, latency in steps.after(state):
            if cost + latency < known.get(reached, float("inf")):
                known[reached], came[reached] = cost + latency, (state, ops)
                heapq.heappush(heap, (cost + latency, reached))
    raise Unsolved("no schedule fits into fast memory; give more capacity")
