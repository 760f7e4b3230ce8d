"""Moves of whole classes of alike ops (`motifs`), in the order of what somebody expects of them. Blocks repeat, so one
evaluation that changes an op everywhere tells more than one that changes it once.

Shape legend: M slots, K choices, C members of all moves after each other, V moves.
"""

from collections.abc import Callable, Iterator

import numpy as np

from graphopt.core.graph import F64, I64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.search.walks.motifs import motifs
from graphopt.search.walks.moves import Slots, Walk, scores

Advantages = Callable[[Decision], F64]
"""[M, K] expected advantages around a decision, additive, in any unit; those of choices that do not exist are never
the lowest."""


def try_decision(problem: AssignProblem, walk: Walk, candidate: Decision) -> bool:
    """Prices a decision that is another one and keeps it if it is better; whether it was."""
    if (candidate == walk.decision).all():
        return False
    score = float(scores(problem, candidate[None])[0])
    if score >= walk.score:
        return False
    walk.move_to(candidate, score)
    return True


def class_search(problem: AssignProblem, slots: Slots, walk: Walk, expect: Advantages, *, depth: int, refresh: int,
                 patient: bool) -> None:  # fmt: skip
    """The classes of 0 .. depth hops with each choice, the one that is expected to gain most first, as long as any is
    expected to gain; each at most once; what is better is kept. What is expected is asked again after each change.

    refresh: how many moves that do not help are tried before asking again; who is not patient ends then.
    """
    moves = _ClassChoices(problem, slots, depth)
    while problem.open and moves.left.any():
        order = moves.best(walk.decision, expect(walk.decision), refresh)
        helped = any(_take(problem, walk, moves, move) for move in order)
        if not order or not (helped or patient):
            return


def _take(problem: AssignProblem, walk: Walk, moves: "_ClassChoices", move: int) -> bool:
    moves.left[move] = False
    return problem.open and try_decision(problem, walk, moves.made(walk.decision, move))


class _ClassChoices:
    """Each class of each head with each choice; `left`: [V] not tried yet."""

    def __init__(self, problem: AssignProblem, slots: Slots, depth: int) -> None:
        found = list(_classes(problem, slots, depth))
        self._slots, self._choice_V = slots, np.array([choice for _, choice in found], np.int64)
        self._first_V = np.cumsum([0, *(len(rows) for rows, _ in found)])[:-1]
        self._row_C = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
        self._choice_C = np.repeat(self._choice_V, [len(rows) for rows, _ in found])
        self.left = np.ones(len(found), np.bool_)

    def best(self, decision: Decision, advantage_MK: F64, count: int) -> list[int]:
        """At most so many moves that are left and expected to gain, the best first."""
        gain = self._gains(decision, advantage_MK)
        return [move for move in np.argsort(-gain, kind="stable")[:count].tolist() if gain[move] > 0]

    def _gains(self, decision: Decision, advantage_MK: F64) -> F64:
        """[V] what each move is expected to gain, the sum over its members; nothing for those that were tried."""
        now_M = decision[self._slots.op, self._slots.head].astype(np.int64)
        gain_MK = advantage_MK[np.arange(len(now_M)), now_M][:, None] - advantage_MK
        return np.where(self.left, np.add.reduceat(gain_MK[self._row_C, self._choice_C], self._first_V), -np.inf)

    def made(self, decision: Decision, move: int) -> Decision:
        """The decision after a move."""
        end = self._first_V[move + 1] if move + 1 < len(self._first_V) else len(self._row_C)
        rows, candidate = self._row_C[self._first_V[move] : end], decision.copy()
        candidate[self._slots.op[rows], self._slots.head[rows]] = self._choice_V[move]
        return candidate


def _classes(problem: AssignProblem, slots: Slots, depth: int) -> Iterator[tuple[I64, int]]:
    """(slots of a class, choice)."""
    free = problem.task.mask(problem.graph)
    for head in range(len(problem.task.heads)):
        row_of = np.full(problem.graph.num_ops, -1)
        mine = np.flatnonzero(slots.head == head)
        row_of[slots.op[mine]] = mine
        for classes in motifs(problem.graph, free[:, head] & (row_of >= 0), depth):
            for ops in classes:
                rows = row_of[ops]
                yield from ((rows, choice) for choice in range(int(slots.choices[rows].min())))
