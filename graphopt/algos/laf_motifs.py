"""Whole classes of alike ops, by their predicted local advantages: beyond the paper. Blocks repeat, so one evaluation
that changes an op everywhere tells more than one that changes it once; the model says which class is worth it.

Shape legend: M slots, K choices, C members of all moves after each other, V moves.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.search.walks.motifs import motifs
from graphopt.search.walks.moves import F64, I64, Slots, Walk, scores
from graphopt.utils.ranges import Count, Whole

Advantages = Callable[[Decision], F64]
"""[M, K] predicted advantages around a decision, additive, in any unit; those of choices that do not exist are never
the lowest."""


@dataclass(frozen=True, kw_only=True)
class ClassMoves:
    """How classes are tried, before single ops."""

    depth: Whole | None  # hops over which ops have to look alike, from 0 on; null: no classes
    leaps: Whole  # first this often: all predicted gains at once
    refresh: Count  # refused moves between two predictions


def class_search(problem: AssignProblem, slots: Slots, walk: Walk, predict: Advantages, settings: ClassMoves) -> None:
    """Leaps, then the classes in the order of predicted gains as long as any is predicted, each at most once; what is
    better is kept."""
    for _ in range(settings.leaps):
        if problem.open:
            _try(problem, walk, _leap(slots, walk.decision, predict(walk.decision)))
    if settings.depth is None:
        return
    moves = _ClassChoices(problem, slots, settings.depth)
    while problem.open and moves.left.any():
        if not _round(problem, walk, moves, moves.gains(walk.decision, predict(walk.decision)), settings.refresh):
            return


def _round(problem: AssignProblem, walk: Walk, moves: "_ClassChoices", gain: F64, refresh: int) -> bool:
    """Tries the best moves until one helps, at most `refresh`; whether there were any."""
    order = [move for move in np.argsort(-gain, kind="stable")[:refresh].tolist() if gain[move] > 0]
    for move in order:
        moves.left[move] = False
        if problem.open and _try(problem, walk, moves.made(walk.decision, move)):
            break
    return bool(order)


def _try(problem: AssignProblem, walk: Walk, candidate: Decision) -> bool:
    """Prices a decision that is new and keeps it if it is better."""
    if (candidate == walk.decision).all():
        return False
    score = float(scores(problem, candidate[None])[0])
    if score < walk.score:
        walk.move_to(candidate, score)
        return True
    return False


def _leap(slots: Slots, decision: Decision, advantage_MK: F64) -> Decision:
    """Every slot at the choice of the lowest predicted advantage."""
    candidate = decision.copy()
    candidate[slots.op, slots.head] = advantage_MK.argmin(1)
    return candidate


class _ClassChoices:
    """Each class of each head with each choice; `left`: [V] not tried yet."""

    def __init__(self, problem: AssignProblem, slots: Slots, depth: int) -> None:
        found = list(_classes(problem, slots, depth))
        self._slots, self._choice_V = slots, np.array([choice for _, choice in found], np.int64)
        self._first_V = np.cumsum([0, *(len(rows) for rows, _ in found)])[:-1]
        self._row_C = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
        self._choice_C = np.repeat(self._choice_V, [len(rows) for rows, _ in found])
        self.left = np.ones(len(found), np.bool_)

    def gains(self, decision: Decision, advantage_MK: F64) -> F64:
        """[V] what each move is predicted to gain, the sum over its members; nothing for those that were tried."""
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
