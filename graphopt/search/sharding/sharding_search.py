"""`sharding_search`: strategies by message passing, prices of memory, and regions solved exactly.

The instance is reduced to a smaller pairwise model with the same optimum. Lagrangian prices of memory over time and
messages (TRW-S) give a bound and first labels; walks from these and from the best solve regions exactly beside their
neighbours and take what is cheaper and fits. States that can be part of nothing better are cut where they are many. The
search prices inside; the best is billed, one evaluation each time, a hundred at most, and the bound is noted.
"""

import math

import numpy as np

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.sharding.dual import Ascent
from graphopt.sharding.hunt import Hunt, HuntSettings
from graphopt.sharding.instance import tables_of
from graphopt.sharding.reducing import reduced
from graphopt.tasks.sharding_task import Sharding
from graphopt.utils.ranges import Positive, Workers

BILLED = 0.01  # share of the time between two evaluations that are billed
LEFT = 0.99  # share of the time for the search: the rest is for the last evaluation


class ShardingSearch(Optimizer):
    """yaml: conf/algo/sharding_search.yaml. seconds: of wall clock, at most what the problem leaves; None: these alone.
    unlimited: seconds where nothing says how many. threads: 2: one passes messages while the other walks."""

    accepts = (Sharding,)

    def __init__(self, *, name: str, seconds: Positive | None, unlimited: Positive, threads: Workers,
                 ascents: list[Ascent], hunt: HuntSettings) -> None:  # fmt: skip
        self.name, self.seconds, self.unlimited, self.threads = name, seconds, unlimited, threads
        self.ascents, self.hunt = ascents, hunt

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        tables, seconds = tables_of(problem.graph), self.limit(problem)
        hunt = Hunt(reduced(tables), tables, self.ascents, self.hunt, problem.rng,
                    lambda: problem.seconds / (LEFT * seconds))  # fmt: skip
        hunt.start(problem.initial[:, 0].astype(np.int64))
        report = Report(problem, hunt)
        try:
            hunt.run(self.threads, report.improved)
        finally:
            report.finish()

    def limit(self, problem: AssignProblem) -> float:
        """Seconds of a solve."""
        seconds = min(problem.seconds_cap, self.seconds or math.inf)
        return seconds if math.isfinite(seconds) else self.unlimited


class Report:
    """Bills what a hunt finds: now and then, and what it ends with."""

    def __init__(self, problem: AssignProblem, hunt: Hunt) -> None:
        self._problem, self._hunt, self._last, self._cost = problem, hunt, -1.0, problem.initial_cost

    def improved(self) -> None:
        if self._problem.remaining > 1 and self._hunt.spent() - self._last >= BILLED:
            self.bill()

    def bill(self) -> None:
        """Prices the best; OutOfBudget passes through."""
        self._last, self._cost = self._hunt.spent(), self._hunt.best_cost
        self._problem.cost(self._hunt.best[None, :, None].astype(np.int16))

    def finish(self) -> None:
        if self._hunt.best_cost < self._cost and self._problem.open:
            self.bill()
        if math.isfinite(self._hunt.bound):
            self._problem.prove(self._hunt.bound)
