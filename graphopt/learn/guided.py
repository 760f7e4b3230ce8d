"""Search in the order of a learned preference: single changes, most preferred first, kept when they help.

Any learner that says how likely it finds every choice of every op, given a current decision, can spend its budget here.
Shape legend: N ops, H heads, K choices, M slots (op, head) that have a choice.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from graphopt.core.plan import Decision
from graphopt.problems.assignment import AssignProblem
from graphopt.search.walks.local import local_search
from graphopt.search.walks.moves import Slots, Walk

Preference = Callable[[Decision], NDArray[np.float32]]
"""[N, H, K] log-probabilities of every choice, given the current decision [N, H]."""

LEAST_DOUBT = 0.02  # added to every slot's doubt, so that no op is out of reach


def guided_search(problem: AssignProblem, slots: Slots, prefer: Preference, refresh: int) -> None:
    """From the best decision so far until the budget ends.

    First single changes by preference, asked again every `refresh` changes, until none helps; then local search on
    neighbourhoods, centred where the preference is least sure.
    """
    if problem.open:
        walk = Walk(problem, problem.best, problem.best_cost)
        _Walker(problem, slots, prefer, walk).run(refresh)
    if problem.open:
        walk = Walk(problem, problem.best, problem.best_cost)
        local_search(problem, slots, walk, _doubtful(problem, slots, prefer(problem.best)), 1)


class _Walker:
    """The walk and which changes were tried since their surroundings last changed."""

    def __init__(self, problem: AssignProblem, slots: Slots, prefer: Preference, walk: Walk) -> None:
        self.problem, self.slots, self.prefer, self.walk = problem, slots, prefer, walk
        task = problem.task
        self.tried = np.zeros((problem.graph.num_ops, len(task.heads), task.num_choices), np.bool_)

    def run(self, refresh: int) -> None:
        while self.problem.open:
            op, head, choice = self._next_changes(refresh)
            if not len(op):
                return
            for change in zip(op.tolist(), head.tolist(), choice.tolist(), strict=True):
                self._attempt(*change)

    def _attempt(self, op: int, head: int, choice: int) -> None:
        """After a change the op and its neighbours are worth another look."""
        score = self.walk.price_one(op, head, choice)
        self.tried[op, head, choice] = True
        if score < self.walk.score:
            left = self.walk.decision[op, head]
            self.walk.take(op, head, choice, score)
            self.tried[op] = False
            for ptr, column in (self.problem.graph.predecessors, self.problem.graph.successors):
                self.tried[column[ptr[op] : ptr[op + 1]]] = False
            self.tried[op, head, left] = True

    def _next_changes(self, count: int) -> tuple[NDArray[np.int64], ...]:
        """(op, head, choice): for every slot the likeliest untried other choice, by how much likelier it is than the
        present one. Heads take turns, since their probabilities are on different scales."""
        slots, rows = self.slots, np.arange(len(self.slots))
        present = self.walk.decision[slots.op, slots.head]
        gain_MK = self.prefer(self.walk.decision)[slots.op, slots.head].copy()
        gain_MK -= gain_MK[rows, present][:, None]
        gain_MK[self.tried[slots.op, slots.head] | (np.arange(gain_MK.shape[1]) >= slots.choices[:, None])] = -np.inf
        gain_MK[rows, present] = -np.inf
        choice, gain = gain_MK.argmax(1), gain_MK.max(1)
        order = np.argsort(-gain, kind="stable")
        order = order[np.isfinite(gain[order])]
        order = order[np.argsort(_turn(slots.head[order]), kind="stable")][:count]
        return slots.op[order], slots.head[order], choice[order].astype(np.int64)


def _turn(head: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many earlier entries have the same head."""
    turn = np.empty(len(head), np.int64)
    for h in np.unique(head):
        mine = np.flatnonzero(head == h)
        turn[mine] = np.arange(len(mine))
    return turn


def _doubtful(problem: AssignProblem, slots: Slots, log_p: NDArray[np.float32]) -> Callable[[Decision], int]:
    """Picks slots in proportion to the probability that the preferred choice is not the right one."""
    doubt = 1.0 - np.exp(log_p[slots.op, slots.head]).max(1) + LEAST_DOUBT
    cumulative = np.cumsum(doubt / doubt.sum())
    return lambda decision: int(slots.op[min(int(np.searchsorted(cumulative, problem.rng.random())), len(slots) - 1)])
