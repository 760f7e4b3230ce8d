"""`TileTime`: latency of a schedule of subgraphs on a core with fast and slow memory (docs/tiling.md)."""

from typing import ClassVar

import numpy as np

from graphopt.contests.tiling.pricing_tiles import Verdict, judge
from graphopt.contests.tiling.schedule import CHOICE_NAME, decode
from graphopt.contests.tiling.tile_workload import TileWorkload
from graphopt.contests.tiling.tiling_task import Tiling
from graphopt.contests.tiling.workload_graph import CARRIES
from graphopt.core.errors import Unreadable
from graphopt.core.plan import Plans, Role
from graphopt.problems.cost_model import CostModel, Prices


class TileTime(CostModel):
    """In the unit of time of the workload. A schedule that breaks a rule costs inf; `excess` is by what share of the
    capacity it is over it, or 1. task: says how the rules are read."""

    objective = "runtime"
    needs: ClassVar[frozenset[str]] = frozenset({CARRIES})
    reads: ClassVar[frozenset[Role | str]] = frozenset({CHOICE_NAME})

    def __init__(self, *, name: str, task: Tiling) -> None:
        self.name, self._task = name, task

    def price(self, plans: Plans) -> Prices:
        workload = self._task.workload(plans.graph)
        verdicts = [_verdict(workload, numbers) for numbers in plans.choices[CHOICE_NAME]]
        return Prices(np.array([v.cost for v in verdicts]), np.array([v.excess for v in verdicts]))


def _verdict(workload: TileWorkload, numbers: "np.typing.NDArray[np.int16]") -> Verdict:
    try:
        return judge(workload, decode(numbers))
    except Unreadable as error:
        return Verdict((), float("inf"), str(error), 1.0)
