"""Classes of alike ops (Weisfeiler-Leman), and moves of whole classes. Blocks of a network repeat, so one evaluation
that changes an op everywhere tells more than one that changes it once.

Shape legend: N ops, M slots, K choices, C members of all moves after each other, V moves.
"""

from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from graphopt.core.colours import colours, largest_result
from graphopt.core.graph import F64, I64, Graph
from graphopt.core.plan import Decision
from graphopt.problems.assignment import AssignProblem
from graphopt.search.walks.moves import Slots, Walk, scores

Advantages = Callable[[Decision], F64]
"""[M, K] expected advantages around a decision, additive, in any unit; those of choices that do not exist are never
the lowest."""


def alike(graph: Graph, free: NDArray[np.bool_], depth: int) -> Iterator[list[I64]]:
    """For 0 .. depth hops: the classes of at least two ops that are alike so far, each ascending, the largest first.

    Alike are free ops (free [N]) of one colour: the same operator and elements of the largest result, and from one hop
    on alike inputs and readers. A class that a smaller number of hops has given already is left out.
    """
    given: set[tuple[int, ...]] = set()
    ops = np.flatnonzero(free)
    for colour in islice(colours(graph, graph.kind, largest_result(graph), free), depth + 1):
        by_colour = ops[np.argsort(colour[ops], kind="stable")]
        parts = np.split(by_colour, np.flatnonzero(np.diff(colour[by_colour])) + 1)
        classes = [part for part in parts if len(part) > 1 and tuple(part.tolist()) not in given]
        given.update(tuple(part.tolist()) for part in classes)
        yield sorted(classes, key=lambda part: (-len(part), int(part[0])))


def try_decision(problem: AssignProblem, walk: Walk, candidate: Decision) -> bool:
    """Prices a decision that is another one and keeps it if it is better; whether it was."""
    if (candidate == walk.decision).all():
        return False
    score = float(scores(problem, candidate[None])[0])
    if score >= walk.score:
        return False
    walk.move_to(candidate, score)
    return True


def class_search(problem: AssignProblem, slots: Slots, walk: Walk, expect: Advantages, *, depth: int, refresh: int
                 ) -> None:  # fmt: skip
    """The classes of 0 .. depth hops with each choice, the one that is expected to gain most first, as long as any is
    expected to gain; each at most once; what is better is kept. What is expected is asked again after each change.

    refresh: how many moves that do not help are tried before asking again.
    """
    moves = _ClassChoices(problem, slots, depth)
    while problem.open and moves.left.any():
        order = moves.best(walk.decision, expect(walk.decision), refresh)
        for move in order:
            moves.left[move] = False
            if problem.open and try_decision(problem, walk, moves.made(walk.decision, move)):
                break
        if not order:
            return


class _ClassChoices:
    """Each class of each head with each choice; `left`: [V] not tried yet."""

    def __init__(self, problem: AssignProblem, slots: Slots, depth: int) -> None:
        free, found = problem.task.mask(problem.graph), list[tuple[I64, int]]()  # (slots of a class, choice)
        for head in range(len(problem.task.heads)):
            row_of = np.full(problem.graph.num_ops, -1)
            mine = np.flatnonzero(slots.head == head)
            row_of[slots.op[mine]] = mine
            for classes in alike(problem.graph, free[:, head] & (row_of >= 0), depth):
                for rows in (row_of[ops] for ops in classes):
                    found += [(rows, choice) for choice in range(int(slots.choices[rows].min()))]
        self._slots, self._choice_V = slots, np.array([choice for _, choice in found], np.int64)
        self._first_V = np.cumsum([0, *(len(rows) for rows, _ in found)])[:-1]
        self._row_C = np.concatenate([np.zeros(0, np.int64), *(rows for rows, _ in found)])
        self._choice_C = np.repeat(self._choice_V, [len(rows) for rows, _ in found])
        self.left = np.ones(len(found), np.bool_)

    def best(self, decision: Decision, advantage_MK: F64, count: int) -> list[int]:
        """At most so many moves that are left and expected to gain, the best first."""
        now_M = decision[self._slots.op, self._slots.head].astype(np.int64)
        gain_MK = advantage_MK[np.arange(len(now_M)), now_M][:, None] - advantage_MK
        gain = np.where(self.left, np.add.reduceat(gain_MK[self._row_C, self._choice_C], self._first_V), -np.inf)
        return [move for move in np.argsort(-gain, kind="stable")[:count].tolist() if gain[move] > 0]

    def made(self, decision: Decision, move: int) -> Decision:
        """The decision after a move."""
        end = self._first_V[move + 1] if move + 1 < len(self._first_V) else len(self._row_C)
        rows, candidate = self._row_C[self._first_V[move] : end], decision.copy()
        candidate[self._slots.op[rows], self._slots.head[rows]] = self._choice_V[move]
        return candidate
