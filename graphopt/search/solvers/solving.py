"""Running OR-Tools CP-SAT on a formulation, and turning its schedules into plans.

Shape legend: N ops, K kernels, D devices.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.problem import OutOfBudget
from graphopt.search.heuristics.encoding import encode
from graphopt.search.solvers.formulation import Formulation
from graphopt.search.solvers.workload import Workload

I64 = NDArray[np.int64]
Found = Callable[[I64, I64], bool]
"""(start [K], device [K]) of a schedule that the solver found -> whether to go on."""


@dataclass(frozen=True)
class SolverLimits:
    """When the solver stops. effort: its own measure of work, about seconds, by which runs repeat; None: by the clock
    alone."""

    seconds: float
    effort: float | None
    workers: int


@dataclass(frozen=True)
class Proof:
    """What the solver knows at the end."""

    units: int  # no schedule of the model has a lower objective
    bound: float  # the same in seconds or bytes
    optimal: bool  # of the model


def run(formulation: Formulation, work: Workload, limits: SolverLimits, seed: int, found: Found) -> Proof:
    """Solves, and calls `found` for every better schedule. Needs OR-Tools."""
    from ortools.sat.python import cp_model

    class Listener(cp_model.CpSolverSolutionCallback):  # type: ignore[misc]
        def on_solution_callback(self) -> None:
            if not found(*_schedule(formulation, work, self.value)):
                self.stop_search()

    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = seed
    solver.parameters.use_overload_checker_in_cumulative = True  # with both, bounds are proved in a tenth of a second
    solver.parameters.use_timetable_edge_finding_in_cumulative = True  # that took more than ten without
    if math.isfinite(limits.seconds):
        solver.parameters.max_time_in_seconds = max(0.0, limits.seconds)
    if limits.effort is not None:
        solver.parameters.max_deterministic_time = limits.effort
        solver.parameters.interleave_search = limits.workers > 1
    status = solver.solve(formulation.model, Listener())
    if status == cp_model.INFEASIBLE:
        return Proof(0, 0.0, False)  # no plan has room
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE, cp_model.UNKNOWN):
        raise RuntimeError(f"the solver ended with {solver.status_name(status)}: {formulation.model.validate()}")
    units = max(0, math.ceil(solver.best_objective_bound - 1e-6))  # the objective is a whole number
    return Proof(units, units * formulation.unit, status == cp_model.OPTIMAL)


class Pricer:
    """Prices schedules as the solver finds them, and keeps the last evaluation for the last one. Stops at `goal`."""

    def __init__(self, problem: AssignProblem, work: Workload, goal: float) -> None:
        self._problem, self._work, self._goal = problem, work, goal
        self._waiting: tuple[I64, I64] | None = None

    def __call__(self, start: I64, device: I64) -> bool:
        self._waiting = start, device
        if self._problem.remaining > 1:
            self.finish()
        return self._problem.open and self._problem.best_cost > self._goal

    def finish(self) -> None:
        """Prices the last schedule, if that has not been done."""
        if self._waiting is not None and self._problem.open:
            keys = encode(self._problem, *on_ops(self._work, *self._waiting))
            self._waiting = None
            try:
                self._problem.cost_keys(keys[None])
            except OutOfBudget:  # the time was over just now; an exception must not pass through the solver
                return


def on_ops(work: Workload, start: I64, device: I64) -> tuple[I64, NDArray[np.float64]]:
    """(device [N], urgency [N]) of a schedule: the earlier the more urgent. Ops without a kernel have no say."""
    devices, urgency = np.zeros(work.ops, np.int64), np.zeros(work.ops)
    devices[work.op], urgency[work.op] = device, -start.astype(np.float64)
    return devices, urgency


def _schedule(formulation: Formulation, work: Workload, value: Callable[[Any], int]) -> tuple[I64, I64]:
    start = np.array([value(start) for start in formulation.start], np.int64)
    if formulation.place is None:
        return start, spread(start, np.array(formulation.busy), work.devices)
    device = [next(d for d, here in options.items() if value(here)) for options in formulation.place]
    return start, np.array(device, np.int64)


def spread(start: I64, busy: I64, devices: int) -> I64:
    """[K] devices for kernels of which at most D run at any time: each goes where one ended last before it starts. What
    takes no time does not count, and may start where all are busy."""
    free, device = np.zeros(devices, np.int64), np.zeros(len(start), np.int64)
    for k in np.lexsort((np.arange(len(start)), busy, start)):
        idle = np.flatnonzero(free <= start[k])
        device[k] = idle[np.argmax(free[idle])] if len(idle) else np.argmin(free)
        free[device[k]] = max(free[device[k]], start[k] + busy[k])
    return device
