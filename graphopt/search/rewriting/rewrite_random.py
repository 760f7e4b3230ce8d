"""`rewrite_random`: random walks from the original program, each step one of all rewrites, equally likely."""

from graphopt.rewrite.rewrite_problem import Point, RewriteProblem
from graphopt.rewrite.rewriter import Rewriter
from graphopt.utils.ranges import Count


class RewriteRandom(Rewriter):
    """steps: length of a walk; then the next one starts. walks: how many, if the budget lasts.

    Every program on the way is priced.
    """

    def __init__(self, *, name: str, steps: Count, walks: Count) -> None:
        self.name, self.length, self.walks = name, steps, walks

    def solve(self, problem: RewriteProblem) -> None:
        for _ in range(self.walks):
            point: Point | None = problem.start()
            for _ in range(self.length):
                if point is None or not problem.open:
                    break
                point = _drawn(problem, point)


def _drawn(problem: RewriteProblem, point: Point) -> Point | None:
    """The next program; None where there is none."""
    steps = [step for step in problem.steps(point) if step.ops < problem.most_ops]
    if not steps:
        return None
    taken = problem.take(point, steps[int(problem.rng.integers(len(steps)))])
    return taken._replace(cost=problem.cost(taken.outputs, taken.rules))
