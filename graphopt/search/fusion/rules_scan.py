"""`rules_scan`: price what the compilers' rules answer, then scan from the best. What a careful engineer would do
without learning anything: the peer of a learned policy that is followed by search."""

from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.inline_all import InlineAll
from graphopt.search.fusion.xla_priority import XlaPriority
from graphopt.search.walks.moves import Walk, slots_of
from graphopt.search.walks.scan import scan


class RulesScan(Optimizer):
    """The default, `inline_all` and `xla_priority` (two evaluations), then a random-permutation scan from the best."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, deltas: bool) -> None:
        self.name, self.deltas = name, deltas

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        price_rules(problem)
        if len(slots) and problem.open:
            scan(problem, slots, Walk(problem, problem.best, problem.best_cost, deltas=self.deltas))


def price_rules(problem: AssignProblem) -> None:
    """Prices what the two rules answer, one evaluation each, as far as the budget goes."""
    for rule in (InlineAll(name="inline_all"), XlaPriority(name="xla_priority")):
        if problem.open:
            rule.solve(problem)
