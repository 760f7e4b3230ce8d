"""`rewrite_sweeps`: steepest descent over sweeps. Each rule at all its places, the cheapest program, and again from
there until none is cheaper: what measuring sweeps is worth without learning, and without an additive model."""

from graphopt.rewrite.rewrite_problem import Point, RewriteProblem
from graphopt.rewrite.rewriter import Rewriter
from graphopt.utils.ranges import Count


class RewriteSweeps(Rewriter):
    """waves: a rule is applied everywhere up to so many times over. A program is priced once."""

    def __init__(self, *, name: str, waves: Count) -> None:
        self.name, self.waves = name, waves

    def solve(self, problem: RewriteProblem) -> None:
        point = problem.start()
        seen = {problem.digest(point)}
        while problem.open:
            best = self._best(problem, point, seen)
            if best is None or best.cost >= point.cost:
                return
            point = best

    def _best(self, problem: RewriteProblem, point: Point, seen: set[int]) -> Point | None:
        """The cheapest of its sweeps that were not seen, as far as the budget goes."""
        new = {problem.digest(one): one for one in problem.sweeps(point, self.waves)}
        points = [one for digest, one in new.items() if digest not in seen][: problem.remaining]
        seen.update(new)
        costs = problem.costs([(one.outputs, one.rules) for one in points])
        priced = [one._replace(cost=cost) for one, cost in zip(points, costs)]
        return min(priced, key=lambda one: one.cost, default=None)
