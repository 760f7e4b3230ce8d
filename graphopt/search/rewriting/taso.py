"""`taso`: TASO's cost-based backtracking search (Jia et al., SOSP 2019; `ops.cc` of its code).

A queue of programs by cost. The cheapest is taken out and all its rewrites are found: every rule at every place. One is
queued if it costs less than alpha times the best, has fewer than twice (the task's `growth`) the original's ops, and
was never queued before. As in TASO's code, the best is that of the programs taken out of the queue, so that the
threshold does not move while a program is expanded. Programs are made when they are taken out.
"""

import heapq
from collections.abc import Sequence

from graphopt.rewrite.rewrite_problem import Point, RewriteProblem
from graphopt.rewrite.rewriter import Rewriter
from graphopt.rewrite.rules.matching import Match
from graphopt.rewrite.rules.steps import RewriteStep
from graphopt.utils.ranges import AtLeastOne, Count


class Taso(Rewriter):
    """alpha: 1 takes strict improvements alone (the default of TASO's code), 1.05 is the paper's. pops: programs that
    are expanded at most (TASO's `budget`).
    """

    def __init__(self, *, name: str, alpha: AtLeastOne, pops: Count) -> None:
        self.name, self.alpha, self.pops = name, alpha, pops

    def solve(self, problem: RewriteProblem) -> None:
        start = problem.start()
        queue: list[tuple[float, int, Point, RewriteStep | None]] = [(start.cost, 0, start, None)]
        seen, queued, best = {problem.digest(start)}, 1, start.cost
        for _ in range(self.pops):
            if not queue or not problem.open:
                return
            cost, _, parent, taken = heapq.heappop(queue)
            point = parent if taken is None else problem.take(parent, taken)
            best = min(best, cost)
            for step in problem.expand(point, self.others(problem, point)):
                if step.cost < self.alpha * best and step.ops < problem.most_ops and step.digest not in seen:
                    seen.add(step.digest)
                    heapq.heappush(queue, (step.cost, queued, point, step))
                    queued += 1

    def others(self, problem: RewriteProblem, point: Point) -> Sequence[Match]:
        """Rewrites of a program beside those of the rules."""
        return ()
