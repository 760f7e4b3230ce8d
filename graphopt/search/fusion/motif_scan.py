"""`motif_scan`: price what the compilers' rules answer, then try each choice for whole classes of alike ops, then scan.
The search without learning that a learned policy has to beat: it finds out by itself that blocks repeat."""

from itertools import product
from typing import Annotated

import numpy as np

from graphopt.core.graph import F64
from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.rules_scan import price_rules
from graphopt.search.walks.motif_moves import class_search, try_decision
from graphopt.search.walks.motifs import motifs
from graphopt.search.walks.moves import Walk, slots_of
from graphopt.search.walks.scan import scan
from graphopt.utils.ranges import Between

REFUSED = 8  # moves that were expected to help most and did not, after which the rest is left


class MotifScan(Optimizer):
    """The default, `inline_all` and `xla_priority` (two evaluations), then `scan_motifs`."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, depth: Annotated[int, Between(0, 16)]) -> None:
        self.name, self.depth = name, depth

    def solve(self, problem: AssignProblem) -> None:
        price_rules(problem)
        scan_motifs(problem, self.depth)


def scan_motifs(problem: AssignProblem, depth: int, gain: F64 | None = None) -> None:
    """From the best decision so far, for 0 .. depth hops, the classes of alike ops (`motifs`), the largest first: all
    are inlined, then all stored, and what helps is kept; then a random-permutation scan.

    gain: [N] what inlining each op is expected to be worth; then classes that are expected to help come first.
    """
    slots = slots_of(problem)
    if not len(slots) or not problem.open:
        return
    walk = Walk(problem, problem.best, problem.best_cost, deltas=False)
    head = problem.task.column(Role.FUSION)
    most = problem.task.heads[head].count - 1
    if gain is not None:
        expected_MK = np.zeros((len(slots), int(slots.choices.max())))
        expected_MK[slots.head == head, most] = -gain[slots.op[slots.head == head]]
        class_search(problem, slots, walk, lambda decision: expected_MK, depth=depth, refresh=REFUSED, patient=False)
    for classes in motifs(problem.graph, problem.task.mask(problem.graph)[:, head], depth):
        for ops, choice in product(classes, (most, 0)):
            candidate = walk.decision.copy()
            candidate[ops, head] = choice
            try_decision(problem, walk, candidate)
    scan(problem, slots, walk)
