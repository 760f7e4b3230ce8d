"""`exact`: optima of small graphs, proved, or an error that says why not.

- Peak memory on one device: the best order of all (`lifetimes`).
- Runtime on identical devices without transfers: the shortest schedule of all, by CP-SAT until it has proved it. The
  simulator never lets a device wait beside a ready kernel, so some schedules have no plan; where the best ones have
  none, the plan found costs more than the proved bound.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from graphopt.core.head import Role
from graphopt.core.machine import Machine
from graphopt.errors import Unsolved
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.encoding import encode
from graphopt.search.solvers.cpsat import formulate, price_heuristics, provable, search
from graphopt.search.solvers.least_memory import Lifetime, optimal_order
from graphopt.search.solvers.makespan_model import anywhere
from graphopt.search.solvers.memory_model import one_device
from graphopt.search.solvers.solving import SolverLimits, on_ops
from graphopt.search.solvers.workload import Workload, workload
from graphopt.utils.ranges import Positive, Whole, Workers


class Exact(Optimizer):
    """yaml: conf/algo/exact.yaml.

    max_states: sets of ops that the search for an order may look at (some hundred bytes each). seconds, workers: of the
    search for a schedule.
    """

    needs_roles = frozenset({Role.PRIORITY})
    knows_roles = frozenset({Role.DEVICE, Role.PRIORITY})  # nothing is proved where fusion is decided
    objectives = frozenset[Objective]({"runtime", "peak_memory"})

    @classmethod
    def unfit(cls, machine: Machine, task: Mapping[str, Any], decides: Collection[Role], objective: Objective | None
              ) -> str:  # fmt: skip
        """What `anywhere` and `one_device` ask, as far as it does not depend on the graph."""
        alike = len({replace(device, name="") for device in machine.devices}) == 1
        spread = Role.DEVICE in decides and alike and not machine.link_latency_DD.any()
        if machine.num_devices == 1 or (task.get("placement") == "single" if objective == "peak_memory" else spread):
            return ""
        return "proves orders on one device, and times on identical devices that the task decides, without latency"

    def __init__(self, *, name: str, max_states: Whole, seconds: Positive, workers: Workers) -> None:
        self.name, self.max_states, self.limits = name, max_states, SolverLimits(seconds, None, workers)

    def solve(self, problem: AssignProblem) -> None:
        """Raises Unsolved where nothing can be proved, or not within the limits."""
        work = workload(problem, partial(problem.within, 1.0))
        if problem.objective == "peak_memory":
            self._order(problem, work)
        else:
            self._schedule(problem, work)

    def _order(self, problem: AssignProblem, work: Workload) -> None:
        if not one_device(work):
            raise Unsolved(
                f"algo={self.name} finds the least memory on one device only; take algo=cpsat, or a machine with one "
                "device, or task=scheduling task.placement=single"
            )
        weights = sum(t.size for t in work.tensors if t.weight)
        others = [Lifetime(t.size, t.maker, t.readers, t.keep) for t in work.tensors if not t.weight]
        found = optimal_order(len(work.op), others, max_states=self.max_states)
        if provable(problem):
            problem.prove(float(found.peak + weights))
        start = np.empty(len(work.op), np.int64)
        start[list(found.ops)] = np.arange(len(work.op))
        device = np.full(len(work.op), work.options[0][0])
        if problem.open:
            problem.cost_keys(encode(problem, *on_ops(work, start, device))[None])

    def _schedule(self, problem: AssignProblem, work: Workload) -> None:
        if not anywhere(work):
            raise Unsolved(
                f"algo={self.name} finds the least runtime on identical devices without transfers only; take "
                "algo=cpsat, or machine=identical"
            )
        if not problem.open:
            return
        price_heuristics(problem)
        proof = search(problem, work, formulate(problem, work, lanes=False), self.limits)
        if not proof.optimal and problem.bound < problem.best_cost:
            raise Unsolved(
                f"algo={self.name} did not prove a shortest schedule of {problem.graph.name!r} within "
                f"{self.limits.seconds:g} s; raise algo.seconds, or take algo=cpsat"
            )
