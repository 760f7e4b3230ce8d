"""`rewrite_greedy`: steepest descent. The best rewrite of all, again and again, until none makes it cheaper."""

from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rewriter import Rewriter


class RewriteGreedy(Rewriter):
    """Of equally good rewrites the first one."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: RewriteProblem) -> None:
        point = problem.start()
        while problem.open:
            steps = [step for step in problem.expand(point) if step.ops < problem.most_ops]
            best = min(steps, key=lambda step: step.cost, default=None)
            if best is None or best.cost >= point.cost:
                return
            point = problem.take(point, best)
