"""What a search by a model of kernels does with a budget: from the best so far it evaluates whole classes of alike ops
and compound moves, those first of which the model expects most, then moves that begin with ops drawn at random."""

from collections.abc import Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice, product

import numpy as np

from graphopt.core.graph import I64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision
from graphopt.search.fusion.compound_moves import Compound, CompoundMoves
from graphopt.search.walks.motifs import motifs

LOOKED_AT = 20  # moves for each evaluation that is left, of which the model is asked at first
SPREAD = 60  # ops that changed, from which all moves are looked at again
DRAWN = (2, 3)  # ops that a random move begins with
GIVE_UP = 1000  # random moves after one another that give nothing new


def walk_by_model(problem: AssignProblem, moves: CompoundMoves, depth: int) -> None:
    """Until the budget ends, or nothing new is found. depth: hops over which ops of a class have to look alike."""
    walk = ModelledWalk(problem, moves)
    walk.expect_classes(depth)
    walk.expect(moves.promising(LOOKED_AT * problem.remaining))
    failed = 0
    while problem.open and failed < GIVE_UP:
        candidate = walk.expected()
        candidate = walk.drawn() if candidate is None else candidate
        failed = 0 if candidate is not None and walk.try_decision(candidate) else failed + 1


class ModelledWalk:
    """The best decision so far, and the moves from it that wait for an evaluation."""

    def __init__(self, problem: AssignProblem, moves: CompoundMoves) -> None:
        self._problem, self._moves = problem, moves
        self._cost, self._seen = problem.best_cost, set[bytes]()
        moves.move_to(self._legal(problem.best))
        self._seen.add(moves.decision.tobytes())
        self._waiting: list[tuple[float, int, int, I64, int | None]] = []  # less what is expected, number, ...
        self._number, self._newest = 0, dict[int, int]()

    def expect_classes(self, depth: int) -> None:
        """Each class with each choice; of many the largest."""
        for ops, choice in islice(self._classes(depth), LOOKED_AT * self._problem.remaining):
            made = self._moves.whole(self._legal(self._with(ops, choice)))
            if made is not None:
                self._push(-1, made, ops, choice)

    def expect(self, ops: Iterable[int]) -> None:
        """The compound moves that begin with ops, as they are from here."""
        for op in ops:
            made = self._moves.forced(np.array([op]))
            self._newest[op] = self._number + 1  # what was expected before no longer counts
            if made is not None:
                self._push(op, made, made.ops, None)

    def expected(self) -> Decision | None:
        """The decision that the best of the waiting moves makes."""
        while self._waiting:
            _, number, op, ops, choice = heappop(self._waiting)
            if choice is not None or self._newest[op] == number:
                return self._with(ops, choice)
        return None

    def drawn(self) -> Decision | None:
        """What a compound move makes that begins with some ops near each other."""
        rng, ops = self._problem.rng, self._moves.ops
        near = self._moves.near([int(rng.choice(ops))]) if len(ops) else ops
        count = min(len(near), int(rng.integers(DRAWN[0], DRAWN[1] + 1)))
        made = self._moves.forced(rng.choice(near, count, replace=False)) if count else None
        return None if made is None else self._with(made.ops, None)

    def try_decision(self, candidate: Decision) -> bool:
        """Evaluates it, unless it was before, and moves there if it is better; whether it was evaluated."""
        candidate = self._legal(candidate)
        if candidate.tobytes() in self._seen:
            return False
        self._seen.add(candidate.tobytes())
        cost = float(self._problem.cost(candidate[None])[0])
        if cost < self._cost:
            self._cost, changed = cost, np.flatnonzero((candidate != self._moves.decision)[:, 0])
            self._moves.move_to(candidate)
            self.expect((self._moves.ops if len(changed) > SPREAD else self._moves.near(changed)).tolist())
        return True

    def _push(self, op: int, made: Compound, ops: I64, choice: int | None) -> None:
        self._number += 1
        heappush(self._waiting, (-made.expected, self._number, op, ops, choice))

    def _classes(self, depth: int) -> Iterator[tuple[I64, int]]:
        free = self._problem.task.mask(self._problem.graph)[:, 0]
        return ((ops, choice) for classes in motifs(self._problem.graph, free, depth)
                for ops, choice in product(classes, (1, 0)))  # fmt: skip

    def _with(self, ops: I64, choice: int | None) -> Decision:
        """choice None: each its other one."""
        out = self._moves.decision.copy()
        out[ops, 0] = 1 - out[ops, 0] if choice is None else choice
        return out

    def _legal(self, decision: Decision) -> Decision:
        return self._problem.task.canonical(self._problem.graph, decision)
