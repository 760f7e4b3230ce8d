"""Whole classes of alike ops by their predicted local advantages, before single ops: beyond the paper.

Shape legend: M slots, K choices.
"""

from dataclasses import dataclass

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.search.walks.classes import Advantages, class_search, try_decision
from graphopt.search.walks.moves import F64, Slots, Walk
from graphopt.utils.ranges import Count, Whole


@dataclass(frozen=True, kw_only=True)
class ClassMoves:
    """How classes are tried, before single ops."""

    depth: Whole | None  # hops over which ops have to look alike, from 0 on; null: no classes
    leaps: Whole  # first this often: all predicted gains at once
    refresh: Count  # refused moves between two predictions


def leaps_and_classes(problem: AssignProblem, slots: Slots, walk: Walk, predict: Advantages, moves: ClassMoves) -> None:
    """Leaps, then the classes in the order of predicted gains as long as any is predicted."""
    for _ in range(moves.leaps):
        if problem.open:
            try_decision(problem, walk, _leap(slots, walk.decision, predict(walk.decision)))
    if moves.depth is not None:
        class_search(problem, slots, walk, predict, depth=moves.depth, refresh=moves.refresh)


def _leap(slots: Slots, decision: Decision, advantage_MK: F64) -> Decision:
    """Every slot at the choice of the lowest predicted advantage."""
    candidate = decision.copy()
    candidate[slots.op, slots.head] = advantage_MK.argmin(1)
    return candidate
