"""`motif_scan`: price what the compilers' rules answer, then try each choice for whole classes of alike ops, then scan.
The search without learning that a learned policy has to beat: it finds out by itself that blocks repeat."""

from itertools import product
from typing import Annotated

from graphopt.core.plan import Role
from graphopt.core.utils.marks import Between
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.xla_priority import InlineAll, XlaPriority
from graphopt.search.walks.local import scan
from graphopt.search.walks.moves import Walk, alike, slots_of, try_decision

Depth = Annotated[int, Between(0, 16)]


class MotifScan(Optimizer):
    """The default, `inline_all` and `xla_priority` (two evaluations), then `scan_classes`."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, depth: Depth | None) -> None:
        self.name, self.depth = name, depth

    def solve(self, problem: AssignProblem) -> None:
        for rule in (InlineAll(name="inline_all"), XlaPriority(name="xla_priority")):
            if problem.open:
                rule.solve(problem)
        scan_classes(problem, self.depth)


def scan_classes(problem: AssignProblem, depth: int | None) -> None:
    """From the best decision so far, for 0 .. depth hops, the classes of alike ops, the largest first: all are inlined,
    then all stored, and what helps is kept; then a random-permutation scan. depth None: the scan alone."""
    slots = slots_of(problem)
    if not len(slots) or not problem.open:
        return
    walk = Walk(problem, problem.best, problem.best_cost)
    head = problem.task.column(Role.FUSION)
    free, most = problem.task.mask(problem.graph)[:, head], problem.task.heads[head].count - 1
    for classes in alike(problem.graph, free, depth) if depth is not None else ():
        for ops, choice in product(classes, (most, 0)):
            candidate = walk.decision.copy()
            candidate[ops, head] = choice
            try_decision(problem, walk, candidate)
    scan(problem, slots, walk)
