"""`Rewriter`: solves problems of programs."""

from graphopt.problems.optimizer import Solver
from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rewrite_task import RewriteTask


class Rewriter(Solver[RewriteProblem]):
    """Finds an equivalent program."""

    accepts = (RewriteTask,)
