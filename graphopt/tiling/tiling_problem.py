"""`TilingProblem`: one workload to be scheduled, all that a tiler sees."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from graphopt.problems.problem import OutOfBudget, Problem
from graphopt.problems.solution import Solution
from graphopt.tiling.schedule import TileSchedule
from graphopt.tiling.tiled import Tiled

if TYPE_CHECKING:
    from graphopt.tiling.tiling_task import TilingTask

LOWER = 1 - 1e-9  # by less than that share, a price that a method has computed itself is no new best


class TilingProblem(Problem):
    """A decision is a schedule; an evaluation is the price of one, or of a change whose price is that of its parts."""

    task: "TilingTask"

    def _prepared(self) -> float:
        self.workload = self.task.workload(self.graph)
        self.initial: TileSchedule = self.task.initial(self.graph)
        self.best: TileSchedule = self.initial
        return self._price(self.initial)

    def cost(self, schedule: TileSchedule) -> float:
        """The price of a schedule, inf where it breaks a rule; one evaluation.

        Raises OutOfBudget when there is none left.
        """
        if not self.remaining:
            raise OutOfBudget
        price = self._price(schedule)
        self.bill(np.array([price]), [hash(schedule)], lambda _: schedule)
        return price

    def propose(self, price: float, make: Callable[[], TileSchedule]) -> None:
        """One evaluation: a price that a method has put together from those of subgraphs. The schedule is made, and
        priced by the cost model, only where that is lower than the best. Raises OutOfBudget when there is none left."""
        if price < self.best_cost * LOWER:
            self.cost(make())
        elif self.remaining:
            self.evals += 1
        else:
            raise OutOfBudget

    def _price(self, schedule: TileSchedule) -> float:
        return self._cost.price(self.task.realise(self.graph, schedule)).of(0).cost

    def take_best(self, state: TileSchedule) -> None:
        self.best = state

    def default_state(self) -> TileSchedule:
        return self.initial

    def _best(self) -> tuple[Any, ...]:
        return (self.best,)

    def _solution(self) -> Solution:
        return Solution(self.graph, self.task, Tiled({}, self.trace_array(), self.best, self.initial))
