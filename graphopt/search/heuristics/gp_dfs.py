"""`gp_dfs`: a graph partition for placement, then a depth-first order (the baseline `GP + DFS` of REGAL's tables)."""

import numpy as np

from graphopt.core.head import Role
from graphopt.errors import ConfigError
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.encoding import encode
from graphopt.search.heuristics.rules import SchedulingInstance, Weight, metis_depth_first
from graphopt.utils.ranges import NotNegative


class PartitionDepthFirst(Optimizer):
    """One plan per setting of METIS (Karypis, Kumar 1998), as many as the budget allows; needs pymetis.

    balance: what devices share, the first matters most; `auto` = time for runtime, bytes for peak memory. imbalance:
    allowed excess of a device over its share.
    """

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, balance: list[str], imbalance: list[NotNegative]) -> None:
        known = ("auto", "time", "bytes")
        if not balance or not imbalance or any(kind not in known for kind in balance):
            raise ConfigError(f"gp_dfs needs balance from {', '.join(known)} and at least one imbalance")
        self.name, self.balance, self.imbalance = name, balance, imbalance

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        instance = SchedulingInstance(problem.graph, problem.task)
        settings = [(self._weight(kind, problem), slack) for kind in self.balance for slack in self.imbalance]
        plans = (
            metis_depth_first(instance, *setting) for setting in list(dict.fromkeys(settings))[: problem.remaining]
        )
        problem.cost_keys(np.stack([encode(problem, *plan) for plan in plans]))

    def _weight(self, kind: str, problem: AssignProblem) -> Weight:
        if kind == "auto":
            return "bytes" if problem.objective == "peak_memory" else "time"
        return "bytes" if kind == "bytes" else "time"
