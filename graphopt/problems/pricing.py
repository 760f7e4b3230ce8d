"""`Pricing`: the one way to price decisions about a graph. Problems, training and the collection of samples all price
through it, and those that no budget bills are counted.

Shape legend: B decisions, N ops, H heads, K keys, F flips.
"""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.costs.cost_model import CostModel, Flips, Prices
from graphopt.tasks.keys import Keys
from graphopt.tasks.task import AssignTask, Decision, Decisions

Count = Callable[[int], None]
"""Is told how many prices were asked for."""


def uncounted(prices: int) -> None:
    """For those who bill by themselves."""


class Pricing:
    """A graph under a task, priced by a cost model; `count` hears of every price."""

    def __init__(self, graph: Graph, task: AssignTask, cost: CostModel, count: Count = uncounted) -> None:
        self.graph, self.task, self.cost, self._count = graph, task, cost, count

    def decisions(self, decisions: Decisions) -> Prices:
        """[B] prices of decisions [B, N, H]."""
        return self.plans(self.task.realise(self.graph, decisions))

    def keys(self, keys: Keys) -> Prices:
        """[B] prices of random keys [B, K]."""
        return self.plans(self.task.realise_keys(self.graph, keys))

    def plans(self, plans: Plans) -> Prices:
        """[B] prices of plans."""
        self._count(len(plans))
        return self.cost.price(plans)

    @cached_property
    def initial_cost(self) -> float:
        """The default heuristic's price: known to everybody, so it does not count."""
        default = self.task.realise(self.graph, self.task.initial(self.graph)[None])
        return float(self.cost.price(default).cost[0])

    def flips(self, decision: Decision) -> "CountedFlips | None":
        """Exact delta pricing of store/inline flips from a decision, where the task decides nothing else and the cost
        model has it. Opening counts nothing: the decision's own price is known."""
        if [(head.role, head.count) for head in self.task.heads] != [(Role.FUSION, 2)] or self.task.limits is None:
            return None
        plan = self.task.realise(self.graph, decision[None])
        inner = self.cost.flips(self.graph, plan.inline[0], self.task.limits)
        return None if inner is None else CountedFlips(inner, self._count)


class CountedFlips:
    """`Flips` that count: each price is one."""

    def __init__(self, inner: Flips, count: Count) -> None:
        self._inner, self._count = inner, count

    @property
    def inline(self) -> NDArray[np.bool_]:
        """[N] the current, legal state."""
        return self._inner.inline

    @property
    def cost(self) -> float:
        """Its price."""
        return self._inner.cost

    def price(self, ops: NDArray[np.int64]) -> F64:
        """[F] prices after flipping each op alone."""
        self._count(len(ops))
        return self._inner.price(ops)

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state."""
        self._inner.apply(op)
