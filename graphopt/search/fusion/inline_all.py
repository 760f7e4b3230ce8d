"""`inline_all`: every op is computed inside its consumers wherever fusion is legal. A floor: what greed alone gives."""

import numpy as np

from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.fused import answer


class InlineAll(Optimizer):
    """One decision, one evaluation."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        ops = problem.graph.num_ops
        answer(problem, np.ones(ops, np.bool_), np.arange(ops))
