"""`scan`: sweep all slots in random order, try every alternative, keep what helps; repeat."""

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import Slots, Walk, check_start, slots_of, start_walk


class Scan(Optimizer):
    """Random-permutation coordinate descent; ends early where no single change helps any more.

    start: `initial`, `random`, `zero` (choice 0 everywhere) or `heuristic`. deltas: see `Walk`.
    """

    def __init__(self, *, name: str, start: str, deltas: bool) -> None:
        self.name, self.start, self.deltas = name, check_start(start), deltas

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            scan(problem, slots, start_walk(problem, slots, self.start, deltas=self.deltas))


def scan(problem: AssignProblem, slots: Slots, walk: Walk) -> None:
    """Sweeps until no single change of the walk's decision helps, or the budget ends."""
    unchanged = 0  # slots tried since the last improvement
    while problem.open and unchanged < len(slots):
        for slot in problem.rng.permutation(len(slots)):
            unchanged = 0 if _improve(walk, slots, int(slot)) else unchanged + 1


def _improve(walk: Walk, slots: Slots, slot: int) -> bool:
    """Prices all alternatives of one slot, takes the best if it is better than now."""
    op, head = int(slots.op[slot]), int(slots.head[slot])
    others = np.delete(np.arange(slots.choices[slot]), walk.decision[op, head])
    prices = walk.price(np.full(len(others), op), np.full(len(others), head), others)
    best = int(np.argmin(prices))
    if prices[best] >= walk.score:
        return False
    walk.take(op, head, int(others[best]), float(prices[best]))
    return True
