"""`annealing`: sweeps of single changes in random order, worse ones accepted with a falling probability."""

from typing import Annotated

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import (
    INFEASIBLE,
    Slots,
    Walk,
    check_start,
    other_choice,
    progress,
    slots_of,
    start_walk,
)
from graphopt.utils.ranges import Between, Share


class Annealing(Optimizer):
    """Simulated annealing over single changes, Metropolis acceptance, geometric cooling over the budget.

    Every sweep proposes each slot once, in a new random order. The first sweep is greedy and collects the losses of
    worse changes; cooling starts after it. So up to one sweep of budget it descends as a scan does. start: `initial`,
    `random`, `zero` or `heuristic`. hot: first temperature as a quantile of those losses (0..1). cold: last temperature
    / first. deltas: see `Walk`.
    """

    def __init__(
        self, *, name: str, start: str, hot: Share, cold: Annotated[float, Between(1e-12, 1.0)], deltas: bool
    ) -> None:
        self.name, self.start, self.hot, self.cold, self.deltas = name, check_start(start), hot, cold, deltas

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if not len(slots) or not problem.open:
            return
        walk = start_walk(problem, slots, self.start, deltas=self.deltas)
        steps = (_step(problem, walk, slots, int(slot), 0.0) for slot in problem.rng.permutation(len(slots)))
        losses = [loss for loss in steps if 0.0 < loss < INFEASIBLE]
        first = float(np.quantile(losses, self.hot)) if losses else 0.0
        begun = progress(problem)
        while problem.open:
            for slot in problem.rng.permutation(len(slots)):
                share = (progress(problem) - begun) / max(1e-9, 1.0 - begun)
                _step(problem, walk, slots, int(slot), first * self.cold**share)


def _step(problem: AssignProblem, walk: Walk, slots: Slots, slot: int, temperature: float) -> float:
    """Proposes one change; returns by how much it is worse (negative: better)."""
    op, head = int(slots.op[slot]), int(slots.head[slot])
    choice = other_choice(problem.rng, int(walk.decision[op, head]), int(slots.choices[slot]))
    score = walk.price_one(op, head, choice)
    loss = float(score - walk.score) if np.isfinite(walk.score) else -1.0
    if loss <= 0.0 or (temperature > 0.0 and problem.rng.random() < np.exp(-loss / temperature)):
        walk.take(op, head, choice, score)
    return loss
