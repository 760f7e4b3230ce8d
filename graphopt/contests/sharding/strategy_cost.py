"""`strategy_cost`: what the chosen strategies of a sharding instance cost, as the contest prices them."""

from typing import ClassVar

import numpy as np

from graphopt.core.auto_sharding.strategies import price, relative, tables_of
from graphopt.core.plan import Plans, Role
from graphopt.problems.cost_model import CostModel, Objective, Prices


class StrategyCost(CostModel):
    """Sum of the chosen strategies' costs and of an entry of every edge's table, in the instance's units, estimates of
    time; inf where at some time the memory in use is over the limit. Impossible entries are summed as they are."""

    needs: ClassVar[frozenset[str]] = frozenset({"strategies"})
    reads: ClassVar[frozenset[Role | str]] = frozenset({"strategy"})

    def __init__(self, *, name: str, objective: Objective) -> None:
        self.name, self.objective = name, objective

    def price(self, plans: Plans) -> Prices:
        tables = tables_of(plans.graph)
        found = [price(tables, row.astype(np.int64)) for row in plans.choices["strategy"]]
        over = np.array([relative(units, tables.limit) for _, units in found])
        return Prices(np.where(over > 0, np.inf, np.array([cost for cost, _ in found])), over)
