"""Moves of whole classes of alike ops, in the order of what somebody expects of them.

Shape legend: N ops, C classes, A ops of all classes one after another.
"""

from collections.abc import Iterator

import numpy as np

from graphopt.core.graph import F64, I64, Bool, Graph
from graphopt.problems.assign_problem import AssignProblem
from graphopt.search.walks.motifs import motifs
from graphopt.search.walks.moves import Walk, scores

TRIED_BEFORE_ASKING = 8  # moves that were expected to help most and did not, after which the rest is left


def every_class(graph: Graph, free: Bool, depth: int) -> list[I64]:
    """All classes of alike free ops, those of fewer hops first, the largest first."""
    return [ops for classes in motifs(graph, free, depth) for ops in classes]


def try_class(problem: AssignProblem, walk: Walk, ops: I64, head: int, choice: int) -> bool:
    """Gives a class of ops one choice, if that is new and better; one evaluation. Whether it was better."""
    if (walk.decision[ops, head] == choice).all():
        return False
    changed = walk.decision.copy()
    changed[ops, head] = choice
    score = float(scores(problem, changed[None])[0])
    if score >= walk.score:
        return False
    walk.move_to(changed, score)
    return True


class ExpectedMoves:
    """gain: [N] what inlining an op is expected to be worth against storing it; a class is worth the sum over the ops
    that it changes. Each move is tried once."""

    def __init__(self, classes: list[I64], gain: F64, most: int) -> None:
        self._classes, self._choices = classes, (0, most)
        self._ops = np.concatenate([*classes, np.zeros(0, np.int64)]).astype(np.int64)
        self._owner = np.repeat(np.arange(len(classes)), [len(ops) for ops in classes])
        self._gain = gain[self._ops]
        self._tried = np.zeros((2, len(classes)), np.bool_)

    def run(self, problem: AssignProblem, walk: Walk, head: int) -> None:
        """Tries what is expected to help, the best first; looks again after every change. Ends where nothing more is
        expected to help, or the moves expected to help most do not."""
        while any(self._help(problem, walk, head, move) for move in self._best(walk, head)):
            pass

    def _help(self, problem: AssignProblem, walk: Walk, head: int, move: tuple[int, int]) -> bool:
        side, number = move
        self._tried[side, number] = True
        return try_class(problem, walk, self._classes[number], head, self._choices[side])

    def _best(self, walk: Walk, head: int) -> Iterator[tuple[int, int]]:
        """(0 to store or 1 to inline, class): the most promising ones that were not tried."""
        expected = np.stack([self._expected(walk, head, side) for side in (0, 1)])
        expected[self._tried] = 0.0
        order = np.argsort(-expected, axis=None, kind="stable")[:TRIED_BEFORE_ASKING]
        for flat in order[expected.flat[order] > 0].tolist():
            yield divmod(flat, len(self._classes))

    def _expected(self, walk: Walk, head: int, side: int) -> F64:
        """[C]"""
        changes = walk.decision[self._ops, head] != self._choices[side]
        worth = np.where(changes, self._gain if side else -self._gain, 0.0)
        return np.bincount(self._owner, worth, len(self._classes)).astype(np.float64)
