"""`motif_scan`: price what the compilers' rules answer, then try each choice for whole classes of alike ops, then scan.
The search without learning that a learned policy has to beat: it finds out by itself that blocks repeat."""

from graphopt.core.graph import I64
from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.rules_scan import price_rules
from graphopt.search.walks.motifs import motifs
from graphopt.search.walks.moves import Walk, scores, slots_of
from graphopt.search.walks.scan import scan


class MotifScan(Optimizer):
    """The default, `inline_all` and `xla_priority` (two evaluations); from the best of them, for 0 .. depth hops, the
    classes of alike ops (`motifs`), the largest first: all are inlined, then all stored, and what helps is kept; then a
    random-permutation scan."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, depth: int) -> None:
        self.name, self.depth = name, depth

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        price_rules(problem)
        if not len(slots) or not problem.open:
            return
        walk = Walk(problem, problem.best, problem.best_cost, deltas=False)
        head = problem.task.column(Role.FUSION)
        most = problem.task.heads[head].count - 1
        free = problem.task.mask(problem.graph)[:, head]
        for classes in motifs(problem.graph, free, self.depth):
            for ops in classes:
                for choice in (most, 0):
                    _try(problem, walk, ops, head, choice)
        scan(problem, slots, walk)


def _try(problem: AssignProblem, walk: Walk, ops: I64, head: int, choice: int) -> None:
    """Gives a class of ops one choice, if that is new and better; one evaluation."""
    if (walk.decision[ops, head] == choice).all():
        return
    changed = walk.decision.copy()
    changed[ops, head] = choice
    score = float(scores(problem, changed[None])[0])
    if score < walk.score:
        walk.move_to(changed, score)
