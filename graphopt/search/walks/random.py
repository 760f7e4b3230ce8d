"""`random`: independent samples, uniform over what may be decided, or around the default."""

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decisions
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import Slots, batch_size, slots_of, uniform
from graphopt.utils.ranges import Share


class RandomSearch(Optimizer):
    """Samples until the budget ends.

    change: probability that a slot is redrawn uniformly; 1 = uniform decisions, less = samples around the default. At
    least one slot of every sample is redrawn.
    """

    def __init__(self, *, name: str, change: Share) -> None:
        if not 0.0 < change <= 1.0:
            raise ValueError(f"change={change} must be in (0, 1]")
        self.name, self.change = name, change

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        while problem.open and len(slots):
            problem.cost(self._sample(problem, slots, batch_size(problem)))

    def _sample(self, problem: AssignProblem, slots: Slots, count: int) -> Decisions:
        """[count, N, H]"""
        drawn = uniform(problem, slots, count)
        if self.change == 1.0:
            return drawn
        keep = problem.rng.random((count, len(slots))) >= self.change
        keep[range(count), problem.rng.integers(0, len(slots), count)] = False
        initial = problem.initial[slots.op, slots.head]
        values = drawn[:, slots.op, slots.head]
        values[keep] = initial[None].repeat(count, 0)[keep]
        drawn[:, slots.op, slots.head] = values
        return drawn
