"""`TileExact`: the schedule of least cost of a small workload, as a shortest path."""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from graphopt.errors import Unsolved
from graphopt.problems.problem import OutOfBudget
from graphopt.tiling.schedule import TileSchedule
from graphopt.tiling.tile_costs import Kept, TileCosts, bits
from graphopt.tiling.tiler import Tiler
from graphopt.tiling.tiling_problem import TilingProblem
from graphopt.utils.ranges import Count


class State(NamedTuple):
    """Between two steps. slow, fast: ops, as bits, whose results lie in slow memory, and in fast memory."""

    slow: int
    fast: int


class _Edge(NamedTuple):
    came: State
    ops: int
    kept: int


class TileExact(Tiler):
    """Dijkstra's algorithm over what lies in slow and in fast memory; a step may be any subgraph and may keep any of
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
        cost, schedule = _Paths(problem).shortest()
        problem.cost(schedule)
        problem.prove(cost)


class _Paths:
    """From nothing computed to all outputs in slow memory."""

    def __init__(self, problem: TilingProblem) -> None:
        self._problem, workload = problem, problem.workload
        self._costs, self._outputs = TileCosts(workload, every_side=True), 0
        self._needs, self._writes = [0], [0]
        before = [sum(1 << workload.producer[t] for t in {*read} if workload.producer[t] >= 0)
                  for read in workload.inputs]  # fmt: skip
        after = [sum(1 << op for op in workload.readers[made]) for made in workload.output]
        self._outputs = sum(1 << op for op in range(workload.num_ops) if not after[op])
        for ops in range(1, 1 << workload.num_ops):
            needs = 0
            for op in bits(ops):
                needs |= before[op]
            self._needs.append(needs & ~ops)
            self._writes.append(sum(1 << op for op in bits(ops) if not after[op] & ops))

    def shortest(self) -> tuple[float, TileSchedule]:
        """(cost, schedule). Raises OutOfBudget when the time is over first."""
        start = State(0, 0)
        known, edges, heap = {start: 0.0}, dict[State, _Edge](), [(0.0, start)]
        while heap:
            cost, state = heapq.heappop(heap)
            if cost > known[state]:
                continue
            if not self._outputs & ~state.slow:
                return cost, self._schedule(state, edges)
            self._problem.within(1.0)
            for ops, kept, latency in self._steps(state):
                reached = State(state.slow | self._writes[ops] & ~kept, kept)
                if cost + latency < known.get(reached, float("inf")):
                    known[reached] = cost + latency
                    edges[reached] = _Edge(state, ops, kept)
                    heapq.heappush(heap, (cost + latency, reached))
        raise Unsolved("no schedule fits into fast memory; give more capacity")

    def _steps(self, state: State) -> Iterator[tuple[int, int, float]]:
        """(ops, results kept, latency) of every step that can come next."""
        there, fast = state.slow | state.fast, self._tensors(state.fast)
        for ops in range(1, len(self._needs)):
            if self._needs[ops] & ~there or not self._writes[ops]:
                continue
            may_keep = kept = self._writes[ops] & ~self._outputs
            while True:
                latency = self._costs.best(ops, fast, self._tensors(kept)).latency
                if latency < float("inf"):
                    yield ops, kept, latency
                if not kept:
                    break
                kept = (kept - 1) & may_keep

    def _tensors(self, ops: int) -> Kept:
        return frozenset(self._problem.workload.output[op] for op in bits(ops))

    def _schedule(self, state: State, edges: dict[State, _Edge]) -> TileSchedule:
        steps = []
        while state in edges:
            edge = edges[state]
            steps.append(self._costs.step(edge.ops, self._tensors(edge.came.fast), self._tensors(edge.kept)))
            state = edge.came
        return TileSchedule(tuple(reversed(steps)))
