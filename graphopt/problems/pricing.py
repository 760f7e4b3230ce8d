"""`Pricing`: the one way to price decisions about a graph. Problems, training and the collection of samples all price
through it, and those that no budget bills are counted.

Shape legend: B decisions, N ops, H heads, K keys, F flips.
"""

from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.problems.cost_model import CostModel, Flips, FlipState, Price, Prices
from graphopt.problems.decisions import Decision, Decisions
from graphopt.problems.keys import Keys

if TYPE_CHECKING:
    from graphopt.problems.task import AssignTask

Count = Callable[[int], None]
"""Is told how many prices were asked for."""


def uncounted(prices: int) -> None:
    """For those who bill by themselves."""


def price_of(plan: Plans, cost: CostModel) -> Price:
    """Of a batch of one, for nobody's budget."""
    return cost.price(plan).of(0)


class Pricing:
    """A graph under a task, priced by a cost model; `count` hears of every price."""

    def __init__(self, graph: Graph, task: "AssignTask", cost: CostModel, count: Count = uncounted) -> None:
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
        return price_of(self.initial_plans, self.cost).cost

    @cached_property
    def initial_plans(self) -> Plans:
        """The default heuristic's plan, a batch of one."""
        return self.task.realise(self.graph, self.task.initial(self.graph)[None])

    def ends(self, plan: Plans) -> tuple[Prices, F64] | None:
        """The price of one plan, and when the kernel of each op ends [N]; None where the cost model does not say it."""
        self._count(len(plan))
        return self.cost.price_and_ends(plan)

    def flips(self, decision: Decision, bill: "Bill | None" = None) -> "PricedFlips | None":
        """Exact delta pricing of store/inline flips from a decision, where the task decides nothing else and the cost
        model has it. Opening counts nothing: the decision's own price is known. bill: who pays, else `count`."""
        if [(head.role, head.count) for head in self.task.heads] != [(Role.FUSION, 2)] or self.task.limits is None:
            return None
        plan = self.task.realise(self.graph, decision[None])
        inner = self.cost.flips(self.graph, plan.inline[0], self.task.limits)
        return None if inner is None else PricedFlips(inner, self.task.mask(self.graph)[:, 0], bill or self._bill)

    def _bill(self, base: Decision, ops: NDArray[np.int64], price: Callable[[NDArray[np.int64]], F64]) -> F64:
        self._count(len(ops))
        return price(ops)


Bill = Callable[[Decision, NDArray[np.int64], Callable[[NDArray[np.int64]], F64]], F64]
"""(decision, ops, prices of ops) -> prices of the flips of these ops of the decision, as many as are paid for."""


class PricedFlips:
    """`Flips` whose prices are billed, and their current state as a decision. free: [N] ops with a choice."""

    def __init__(self, inner: Flips, free: NDArray[np.bool_], bill: Bill) -> None:
        self._inner, self._free, self._bill = inner, free, bill
        self._now: Decision | None = None

    @property
    def cost(self) -> float:
        """The price of the current state."""
        return self._inner.cost

    @property
    def decision(self) -> Decision:
        """[N, 1] the current state, read-only; views are always inline: they are no decision."""
        if self._now is None:
            self._now = (self._inner.inline & self._free)[:, None].astype(np.int16)
            self._now.flags.writeable = False
        return self._now

    def price(self, ops: NDArray[np.int64]) -> F64:
        """[F] prices after flipping each op alone."""
        return self._bill(self.decision, ops, self._inner.price)

    def apply(self, op: int) -> None:
        """Makes the flip of `op` the current state; free, since its price is known."""
        self._inner.apply(op)
        self._now = None

    def saved(self) -> FlipState:
        """The current state, to come back to."""
        return self._inner.saved()

    def restore(self, state: FlipState) -> None:
        """Makes a saved state the current one."""
        self._inner.restore(state)
        self._now = None
