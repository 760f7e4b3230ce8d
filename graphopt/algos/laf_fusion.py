"""`laf_motif`: LAF on fusion that knows compilers' rules."""

from graphopt.algos.laf import LAF
from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.search.fusion.rules_scan import price_rules
from graphopt.search.walks.moves import Slots, Walk


class FusionLAF(LAF):
    """Starts from the best of the default and of what two rules answer, two evaluations; `search.steps.start` says
    nothing."""

    needs_roles = frozenset({Role.FUSION})

    def _first_walk(self, problem: AssignProblem, slots: Slots) -> Walk:
        price_rules(problem)
        return Walk(problem, problem.best, problem.best_cost, deltas=False)
