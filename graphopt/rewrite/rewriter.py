"""`Rewriter`: solves problems of programs; what one leaves that searches by a cheap model."""

import contextlib

from graphopt.problems.cost_model import CostModel
from graphopt.problems.finalists import Candidate, Finalists
from graphopt.problems.optimizer import Solver
from graphopt.problems.problem import OutOfBudget
from graphopt.rewrite.io.as_graph import graph_of
from graphopt.rewrite.rewrite_problem import RewriteProblem
from graphopt.rewrite.rewrite_task import RewriteTask


class Rewriter(Solver[RewriteProblem]):
    """Finds an equivalent program."""

    accepts = (RewriteTask,)


def cheapest_by(search: Rewriter, additive: CostModel, problem: RewriteProblem, evals: int, kept: int,
                ) -> list[Candidate]:  # fmt: skip
    """What a search by an additive model leaves of a problem: its cheapest programs with the model's prices, the
    cheapest first; of those of one price, one. evals: of its own, not billed."""
    graph = graph_of(problem.initial, name=problem.graph.name, family=problem.graph.family)
    inner = problem.task.open(graph, additive, evals=evals, seconds=problem.seconds_cap - problem.seconds,
                              seed=int(problem.rng.integers(2**31)))  # fmt: skip
    inner.finalists = finalists = Finalists(inner.solution, kept)
    with contextlib.suppress(OutOfBudget):
        search.solve(inner)
    return finalists.candidates
