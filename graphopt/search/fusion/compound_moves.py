"""Compound moves: one op is decided otherwise by force, and a model of kernels repairs what lies around it. Where no
single change helps any more, several near each other may; a model that costs no evaluation finds which.

After ejection chains (Glover, "Ejection chains, reference structures and alternating path methods", 1996), with a model
as the judge of what a forced change ejects.

Shape legend: N ops, F forced ops, C ops that change.
"""

from collections import deque
from collections.abc import Iterable
from math import erf, exp, pi, sqrt
from typing import NamedTuple

import numpy as np

from graphopt.core.graph import I64, Bool
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import CostModel, FlipState
from graphopt.problems.decisions import Decision
from graphopt.problems.pricing import PricedFlips, Pricing
from graphopt.search.walks.moves import neighbourhood

HOPS = 3  # around a forced op in which is repaired; views count
MOST_NEAR = 64  # ops there; fewer hops where there are more
REPAIRS = 4  # changes at most, each the best by the model
SURELY = 1.0 - 1e-9  # a price below so much of another one is lower
ERROR = 0.01  # of a kernel's modelled time: what is expected of a move that should cost little


class Compound(NamedTuple):
    """ops: [C] that change. seconds: what the model says that it adds. touched: modelled seconds of kernels that
    change."""

    ops: I64
    seconds: float
    touched: float

    @property
    def expected(self) -> float:
        """The expected improvement in seconds, if the model errs normally, by `ERROR` of what is touched."""
        spread, gain = max(ERROR * self.touched, 1e-30), -self.seconds
        z = gain / spread
        return spread * exp(-z * z / 2) / sqrt(2 * pi) + gain * 0.5 * (1 + erf(z / sqrt(2)))


class CompoundMoves:
    """Around one decision of a binary fusion task at a time. ops: [M] with a choice."""

    def __init__(self, problem: AssignProblem, model: Pricing, flips: PricedFlips) -> None:
        self._graph, self._model = problem.graph, model
        self._free: Bool = problem.task.mask(problem.graph)[:, 0]
        self.ops: I64 = np.flatnonzero(self._free)
        self._near: dict[int, I64] = {}
        self._start_from(flips)

    @classmethod
    def around(cls, problem: AssignProblem, model: CostModel, decision: Decision) -> "CompoundMoves | None":
        """None where the model has no exact prices of single flips."""
        pricing = Pricing(problem.graph, problem.task, model)
        flips = pricing.flips(decision)
        return None if flips is None else cls(problem, pricing, flips)

    def move_to(self, decision: Decision) -> None:
        """A decision becomes the one that moves start from."""
        self._start_from(self._opened(decision))

    def _start_from(self, flips: PricedFlips) -> None:
        self._flips, self._state, self.decision = flips, flips.saved(), flips.decision

    def _opened(self, decision: Decision) -> PricedFlips:
        flips = self._model.flips(decision)
        assert flips is not None
        return flips

    def promising(self, most: int) -> list[int]:
        """The ops whose flips alone cost least by the model, at most so many, the best first."""
        order = np.argsort(self._flips.price(self.ops), kind="stable")
        return [int(op) for op in self.ops[order[:most]]]

    def near(self, ops: Iterable[int]) -> I64:
        """Ops with a choice around some ops, ascending."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *(self._around(int(op)) for op in ops)]))

    def _around(self, op: int) -> I64:
        if op not in self._near:
            for hops in range(HOPS, 0, -1):
                found = neighbourhood(self._graph, op, hops)
                if len(found) <= MOST_NEAR:
                    break
            self._near[op] = found[self._free[found]]
        return self._near[op]

    def forced(self, ops: I64) -> Compound | None:
        """The move that begins with flips of [F] ops; None where it changes nothing."""
        self._repaired(ops)
        made = self._made(self._flips.saved())
        self._flips.restore(self._state)
        return made

    def whole(self, decision: Decision) -> Compound | None:
        """The move to another decision."""
        return self._made(self._opened(decision).saved())

    def descend(self, most: int) -> Decision:
        """The decision after moves that begin with one op each, as long as the model finds any better, of at most so
        many; it becomes the one that moves start from."""
        waiting = deque(self.ops.tolist())
        for _ in range(most):
            if not waiting:
                break
            op = waiting.popleft()
            self._repaired(np.array([op]))
            state = self._flips.saved()
            if state.cost < self._state.cost * SURELY:
                changed, self._state = np.flatnonzero(state.inline != self._state.inline), state
                known = set(waiting)
                waiting.extend(near for near in self.near(changed).tolist() if near not in known)
            else:
                self._flips.restore(self._state)
        self.decision = self._flips.decision
        return self.decision

    def _repaired(self, ops: I64) -> None:
        for op in ops.tolist():
            self._flips.apply(op)
        near = self.near(ops.tolist())
        for repair in range(REPAIRS):
            can = near if repair else near[~np.isin(near, ops)]  # not at once back
            prices = self._flips.price(can)
            if not len(can) or prices.min() >= self._flips.cost * SURELY:
                return
            self._flips.apply(int(can[np.argmin(prices)]))

    def _made(self, state: FlipState) -> Compound | None:
        ops = np.flatnonzero(state.inline != self._state.inline)
        differ = state.seconds != self._state.seconds
        touched = np.maximum(state.seconds, self._state.seconds)[differ].sum()
        return Compound(ops, state.cost - self._state.cost, float(touched)) if len(ops) else None
