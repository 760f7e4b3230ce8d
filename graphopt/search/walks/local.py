"""`local`: change the neighbourhood of one op, keep the better. The engine of uniform and of learned-guided search.

The step is that of LAF's search, guided or not: pick an op, mutate its
k-neighbourhood at random, keep the new configuration if it is not worse. Who picks the op is a parameter.
"""

from collections.abc import Callable

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.problems.optimizer import Optimizer
from graphopt.search.walks.moves import (
    Slots,
    Walk,
    check_start,
    neighbourhood,
    other_choice,
    scores,
    slots_of,
    start_walk,
)
from graphopt.utils.ranges import Whole

NodePicker = Callable[[Decision], int]
"""Which configurable op to change next, given the current decision [N, H]."""


class LocalSearch(Optimizer):
    """Uniform local search.

    start: `initial`, `random`, `zero` (choice 0 everywhere) or `heuristic`.
    hops: radius k of the mutated neighbourhood (0: the op alone). deltas: see `Walk`; only with hops = 0.
    """

    def __init__(self, *, name: str, start: str, hops: Whole, deltas: bool) -> None:
        self.name, self.start, self.hops, self.deltas = name, check_start(start), hops, deltas

    def solve(self, problem: AssignProblem) -> None:
        slots = slots_of(problem)
        if len(slots) and problem.open:
            walk = start_walk(problem, slots, self.start, deltas=self.deltas and self.hops == 0)
            local_search(problem, slots, walk, uniform_picker(problem, slots), self.hops)


def uniform_picker(problem: AssignProblem, slots: Slots) -> NodePicker:
    """Every configurable op equally often."""
    ops = np.unique(slots.op)
    return lambda decision: int(ops[problem.rng.integers(len(ops))])


def local_search(problem: AssignProblem, slots: Slots, walk: Walk, pick: NodePicker, hops: int) -> None:
    """Runs until the budget ends; `pick` must return configurable ops. Accepts what is not worse.

    `walk` must be opened with `deltas=False` when `hops` > 0.
    """
    while problem.open:
        op = pick(walk.decision)
        slot = int(problem.rng.integers(slots.first[op], slots.first[op + 1]))
        if hops > 0:
            candidate = _mutated(problem, slots, walk.decision, slot, hops)
            score = float(scores(problem, candidate[None])[0])
            if score <= walk.score:
                walk.move_to(candidate, score)
            continue
        head = int(slots.head[slot])
        choice = other_choice(problem.rng, int(walk.decision[op, head]), int(slots.choices[slot]))
        score = walk.price_one(op, head, choice)
        if score <= walk.score:
            walk.take(op, head, choice, score)


def _mutated(problem: AssignProblem, slots: Slots, current: Decision, centre: int, hops: int) -> Decision:
    """The centre slot changes; every other slot within `hops` of its op is redrawn uniformly."""
    candidate = current.copy()
    op, head = int(slots.op[centre]), int(slots.head[centre])
    near = neighbourhood(problem.graph, op, hops)
    rows = np.concatenate([np.arange(slots.first[n], slots.first[n + 1]) for n in near])
    candidate[slots.op[rows], slots.head[rows]] = problem.rng.integers(0, slots.choices[rows])
    candidate[op, head] = other_choice(problem.rng, int(current[op, head]), int(slots.choices[centre]))
    return candidate
