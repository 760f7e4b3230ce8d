"""`Learned`: the time that a program takes as TorchInductor compiles it, predicted from the code that it is lowered to.

Nothing is compiled or run. What the code does (instructions by kind, bytes by how far away they are, loops) is weighed
by costs that were fitted to measured plans of other graphs (`graphopt.ranking.code_time`).

Shape legend: B plans.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

import numpy as np

from graphopt import cache_dir
from graphopt.core.graph import Graph
from graphopt.core.head import Role
from graphopt.core.plan import Plans
from graphopt.costs.inductor import TABLE, Table
from graphopt.costs.tables import Environment
from graphopt.measure.builds import Builds
from graphopt.measure.environment import KEEPS_MEMORY, environment_here
from graphopt.measure.memo import Line, Memo
from graphopt.problems.cost_model import CostModel, Prices
from graphopt.ranking.asked import ASSUMED, READS, Asked, asked_of
from graphopt.ranking.lowered_requests import LoweredRequests
from graphopt.ranking.weights import load_weights, weights_file
from graphopt.utils.outside import WeightsFile
from graphopt.utils.ranges import Between, Positive


class Learned(CostModel):
    """weights: `shipped`; null: your own, of `graphopt measure learn_cost`; or a file. table, environment: of what
    was lowered, as those of `cost=inductor`, which may share them. builders, build_seconds: as there.

    A plan that cannot be lowered costs inf.
    """

    objective = "runtime"
    needs = frozenset({"compiled_program"})
    reads: ClassVar[frozenset[Role | str]] = READS
    assumes = ASSUMED

    def __init__(self, *, name: str, weights: WeightsFile, table: Table, environment: Environment,
                 builders: Annotated[int, Between(1, 256)], build_seconds: Positive) -> None:  # fmt: skip
        self.name, self._lowers = name, environment is None
        self.weights = load_weights(weights_file(weights))
        here = environment or f"{environment_here('cpu', 1, ('torch',))}, {KEEPS_MEMORY}"
        memo = Memo(cache_dir() / TABLE if table is None else Path(table))
        self.requests = LoweredRequests(memo, here, Builds(builders, build_seconds))

    def stored(self) -> Mapping[str, object]:
        return {"environment": self.requests.environment}

    def price(self, plans: Plans) -> Prices:
        lines = self.lowered(plans.graph, [asked_of(plans, b) for b in range(len(plans))])
        failed = np.array(["failure" in line for line in lines])
        cost = [np.inf if "failure" in line else self.weights.model.of(line["features"]) for line in lines]
        return Prices(np.array(cost), failed.astype(np.float64))

    def lowered(self, graph: Graph, asked: Sequence[Asked]) -> list[Line]:
        """`digest` and `features` of the code of each, or `failure`."""
        return self.requests.lines(graph, asked, lowers=self._lowers)
