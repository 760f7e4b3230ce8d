"""`annealing`: sweeps of single changes in random order, worse ones accepted with a falling probability."""

import numpy as np

from graphopt.optimizer import Optimizer
from graphopt.problem import Problem
from graphopt.search.moves import Slots, Walk, check_start, other_choice, progress, slots_of, start_walk


class Annealing(Optimizer):
    """Simulated annealing over single changes, Metropolis acceptance, geometric cooling over the budget.

    Every sweep proposes each slot once, in a new random order, so that a cold sweep is a scan.
    start: `initial`, `random` or `zero`. warmup: share of the budget spent greedily while losses are collected.
    hot: the first temperature as a quantile of those losses (0..1). cold: last temperature / first.
    """

    def __init__(self, *, name: str, start: str, warmup: float, hot: float, cold: float) -> None:
        if not (0.0 <= warmup < 1.0 and 0.0 <= hot <= 1.0 and 0.0 < cold <= 1.0):
            raise ValueError(f"warmup={warmup} must be in [0, 1), hot={hot} in [0, 1], cold={cold} in (0, 1]")
        self.name, self.start, self.warmup, self.hot, self.cold = name, check_start(start), warmup, hot, cold

    def solve(self, problem: Problem) -> None:
        slots = slots_of(problem)
        if not len(slots) or not problem.open:
            return
        walk = start_walk(problem, slots, self.start)
        losses: list[float] = []
        while problem.open:
            for slot in problem.rng.permutation(len(slots)):
                done = progress(problem)
                temperature = 0.0 if done < self.warmup else self._temperature(losses, done)
                loss = _step(problem, walk, slots, int(slot), temperature)
                if done < self.warmup and 0.0 < loss < np.inf:
                    losses.append(loss)

    def _temperature(self, losses: list[float], done: float) -> float:
        """Geometric from the `hot` quantile of the losses to `cold` times that; 0 when no loss was seen."""
        if not losses:
            return 0.0
        share = (done - self.warmup) / (1.0 - self.warmup)
        first = float(np.quantile(losses, self.hot))
        return first * float(self.cold**share)


def _step(problem: Problem, walk: Walk, slots: Slots, slot: int, temperature: float) -> float:
    """Proposes one change; returns by how much it is worse (negative: better)."""
    op, head = int(slots.op[slot]), int(slots.head[slot])
    choice = other_choice(problem.rng, int(walk.decision[op, head]), int(slots.choices[slot]))
    score = walk.price_one(op, head, choice)
    loss = float(score - walk.score) if np.isfinite(walk.score) else -1.0
    if loss <= 0.0 or (temperature > 0.0 and problem.rng.random() < np.exp(-loss / temperature)):
        walk.take(op, head, choice, score)
    return loss
