"""How LAF's search goes on when every op has had its turn (beyond the paper): a local optimum of single changes.

Ops whose own change cost least are mutated most, since a second change near them may tip the balance; and what is a
little worse may be accepted, with a temperature that falls until the budget ends.
"""

from dataclasses import dataclass

import numpy as np

from graphopt.problem import Problem
from graphopt.search.moves import INFEASIBLE, Slots, progress
from graphopt.search.progressive import Uniform
from graphopt.tasks.base import Decision

LEAST = 0.1  # of a cost, in logarithms of multiples of the median: no op is infinitely likelier than another


@dataclass(frozen=True, kw_only=True)
class Late:
    """What is done when every op has had its turn."""

    near: bool  # ops are picked in inverse proportion to what their own change cost, else uniformly
    hot: float  # first temperature: a quantile of what single changes cost; 0: nothing worse is accepted
    cold: float  # last temperature / first


class LateGuide:
    """Picks by what single changes have cost."""

    def __init__(self, problem: Problem, slots: Slots, late: Late) -> None:
        self._problem, self._slots, self._late = problem, slots, late
        self._ops, self._uniform = np.unique(slots.op), Uniform(problem, slots)
        self._cost = np.zeros(problem.graph.num_ops)  # size of what the last single change of each op did to the score
        self._begun: float | None = None  # progress of the search when its turn came
        self._first = 0.0  # temperature then

    def note(self, op: int, change: float) -> None:
        """A single change of an op changed the score by so much."""
        self._cost[op] = min(abs(change), INFEASIBLE)

    def pick(self, decision: Decision) -> tuple[int, int | None]:
        if self._begun is None:
            self._begin()
        if not self._late.near:
            return self._uniform.pick(decision)
        cost = self._cost[self._ops]
        usual = float(np.median(cost[cost > 0])) if (cost > 0).any() else 1.0
        cumulative = np.cumsum(1.0 / (LEAST + np.log1p(cost / usual)))
        at = np.searchsorted(cumulative, self._problem.rng.random() * cumulative[-1])
        op = int(self._ops[min(int(at), len(self._ops) - 1)])
        return int(self._problem.rng.integers(self._slots.first[op], self._slots.first[op + 1])), None

    def temperature(self) -> float:
        """0 until its turn has come."""
        if self._begun is None or self._first == 0.0:
            return 0.0
        share = (progress(self._problem) - self._begun) / max(1e-9, 1.0 - self._begun)
        return float(self._first * self._late.cold**share)

    def _begin(self) -> None:
        self._begun = progress(self._problem)
        cost = self._cost[self._ops]
        known = cost[(cost > 0) & (cost < INFEASIBLE / 2)]
        self._first = float(np.quantile(known, self._late.hot)) if len(known) and self._late.hot else 0.0
