"""`taso`: TASO's cost-based backtracking search (Jia et al., SOSP 2019; `ops.cc` of its code).

A queue of programs by cost. The cheapest is taken out and all its rewrites are found: every rule at every place. One is
queued if it costs less than alpha times the best, has fewer than twice (the task's `growth`) the original's ops, and
was never queued before. As in TASO's code, the best is that of the programs taken out of the queue, so that the
threshold does not move while a program is expanded. Programs are made when they are taken out.
"""

import heapq
from collections.abc import Iterator
from typing import NamedTuple

from graphopt.optimizer import Rewriter
from graphopt.rewrite.steps import Step
from graphopt.rewrite_problem import Point, RewriteProblem


class Way(NamedTuple):
    """A program that may be queued: one step from `point`, or `point` itself."""

    cost: float
    ops: int
    digest: int
    point: Point
    step: Step | None

    def end(self, problem: RewriteProblem) -> Point:
        return self.point if self.step is None else problem.take(self.point, self.step)


class Taso(Rewriter):
    """alpha: 1 takes strict improvements alone (the default of TASO's code), 1.05 is the paper's. pops: programs that
    are expanded at most (TASO's `budget`).
    """

    def __init__(self, *, name: str, alpha: float, pops: int) -> None:
        if alpha < 1.0 or pops < 1:
            raise ValueError(f"alpha={alpha} and pops={pops} must be at least 1")
        self.name, self.alpha, self.pops = name, alpha, pops

    def solve(self, problem: RewriteProblem) -> None:
        start = problem.start()
        first = Way(start.cost, start.ops, problem.digest(start), start, None)
        queue, seen, queued, best = [(start.cost, 0, first)], {first.digest}, 1, start.cost
        for _ in range(self.pops):
            if not queue or not problem.open:
                return
            cost, _, taken = heapq.heappop(queue)
            best = min(best, cost)
            for way in self.ways(problem, taken.end(problem)):
                if way.cost < self.alpha * best and way.ops < problem.most_ops and way.digest not in seen:
                    seen.add(way.digest)
                    heapq.heappush(queue, (way.cost, queued, way))
                    queued += 1

    def ways(self, problem: RewriteProblem, point: Point) -> Iterator[Way]:
        """Where rules lead from a program."""
        return (Way(step.cost, step.ops, step.digest, point, step) for step in problem.expand(point))
