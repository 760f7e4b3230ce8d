"""`plan_sample`: plans to fit and to judge cost models by, not to win: masks between the default and random ones, and
what lies near the default.

Shape legend: N ops, H heads.
"""

from collections.abc import Iterator

import numpy as np

from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.problems.optimizer import Optimizer
from graphopt.search.fusion.compiler_rules import rules
from graphopt.search.fusion.compiler_search import single_knobs
from graphopt.utils.ranges import Few, Whole

LARGEST_FLIP = 3


class PlanSample(Optimizer):
    """random: masks; the k-th of n draws the choice of a share k / n of the ops anew. near: every value of every knob,
    every rule, then flips of one to three ops, in all so many. batch: decisions that are priced together. What is
    stored or inlined is sampled, and in every fourth flip what is cut, where the task decides that."""

    needs_roles = frozenset({Role.FUSION})

    def __init__(self, *, name: str, random: Whole, near: Whole, batch: Few) -> None:
        self.name, self.random, self.near, self.batch = name, random, near, batch

    def solve(self, problem: AssignProblem) -> None:
        plans = [*self._random(problem), *self._near(problem)]
        for i in range(0, len(plans), self.batch):
            problem.cost(np.stack(plans[i : i + self.batch]))

    def _random(self, problem: AssignProblem) -> Iterator[Decision]:
        head, free = _fusion(problem)
        count = problem.task.heads[head].count
        for k in range(self.random):
            drawn = free[problem.rng.random(len(free)) < (k + 1) / self.random]
            decision = problem.initial.copy()
            decision[drawn, head] = problem.rng.integers(0, count, len(drawn))
            yield decision

    def _near(self, problem: AssignProblem) -> list[Decision]:
        found: dict[bytes, Decision] = {problem.initial.tobytes(): problem.initial}
        head, free = _fusion(problem)
        mask = problem.task.mask(problem.graph)
        changed = [*single_knobs(problem), *([(int(op), head, rule.choice) for op in rule.ops]
                                             for rule in rules(problem.graph, mask[:, head]))]  # fmt: skip
        for changes in changed:
            decision = problem.initial.copy()
            for op, column, choice in changes:
                decision[op, column] = choice
            found.setdefault(decision.tobytes(), decision)
        for k in range(8 * self.near if len(free) else 0):
            flipped = _flipped(problem, head, k)
            found.setdefault(flipped.tobytes(), flipped)
        return list(found.values())[1 : self.near + 1]


def _fusion(problem: AssignProblem) -> tuple[int, np.ndarray]:
    """The column of store and inline, and the ops with that choice."""
    head = problem.task.column(Role.FUSION)
    return head, np.flatnonzero(problem.task.mask(problem.graph)[:, head])


def _flipped(problem: AssignProblem, head: int, k: int) -> Decision:
    """The default with one to three ops otherwise; every fourth time they are cut."""
    names = [other.name for other in problem.task.heads]
    column = names.index("cut") if k % 4 == 3 and "cut" in names else head
    free = np.flatnonzero(problem.task.mask(problem.graph)[:, column])
    ops = problem.rng.choice(free, min(1 + k % LARGEST_FLIP, len(free)), replace=False)
    decision = problem.initial.copy()
    decision[ops, column] = np.where(decision[ops, column] > 0, 0, 1)
    return decision
