"""`cpsat`: devices and orders by the constraint solver OR-Tools CP-SAT, with a bound that no plan can beat.

The solver's schedule becomes a plan: every kernel on its device, the earlier it starts the more urgent. The simulator
prices it, one evaluation each; its price counts, and may differ from the solver's (the model is a relaxation:
`makespan_model`, `memory_model`). Improved schedules are priced as they are found; the last evaluation is kept for the
last. The search starts from the run of the best heuristic.

On one device the order of least peak memory is found, and proved, by a search over sets of ops (`least_memory`), where
these are few enough. The solver is not asked then.

The solver's bound on the model holds for every plan, and is noted, where the model is a relaxation of all that is
decided and priced. For that the task does not decide fusion, and the cost model is the event simulator with exact sums.
For memory, it frees at the end of the last reader.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64
from graphopt.core.plan import Role
from graphopt.core.trace import Trace
from graphopt.core.utils.marks import Positive, Whole, Workers
from graphopt.costs.event_arrays import GRID
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.heuristics.starts import encode, heuristic_rows
from graphopt.search.solvers.constraint_models import (
    Formulation,
    Workload,
    has_lanes,
    least_makespan,
    least_memory,
    makespan_model,
    memory_model,
    one_device,
    start_early,
    workload,
)
from graphopt.search.solvers.least_memory import Lifetime, optimal_order

MOST_SETS = 200_000  # of ops that the search for an order looks at, some hundred bytes each
HEURISTIC_SHARE = 0.25  # of the budget's seconds: when no further heuristic is tried
ORDER_SHARE = 0.35  # when the search for an order is given up
BUILD_SHARE = 0.5  # when a model that is not complete is given up: the solver needs as long to take it in
SOLVE_SHARE = 0.9  # of the remaining time: the rest is for ending threads and reading the last schedule


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
    """The solver's result."""

    units: int  # no schedule of the model has a lower objective
    bound: float  # the same in seconds or bytes
    optimal: bool  # of the model


class CpSat(Optimizer):
    """yaml: conf/algo/cpsat.yaml.

    seconds: of wall clock for the solver, at most the problem's remaining seconds, which hold for heuristics, model and
    solver together (`BUILD_SHARE` and others). effort: the solver's own measure of work, about seconds, which makes
    runs repeat exactly; None: no such limit. workers: threads. lanes: results share links. max_intervals: larger models
    are not built; the answer is then the best heuristic.
    """

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})

    def __init__(self, *, name: str, seconds: Positive, effort: Positive | None, workers: Workers, lanes: bool,
                 max_intervals: Whole) -> None:  # fmt: skip
        self.name, self.lanes, self.max_intervals = name, lanes, max_intervals
        self.limits = SolverLimits(seconds, effort, workers)

    def solve(self, problem: AssignProblem) -> None:
        if not problem.evals_cap:
            return
        try:
            self._solve(problem)
        except OutOfBudget:
            best = "the best heuristic" if problem.best_cost < problem.initial_cost else "the default"
            short = f"{problem.seconds_cap:g} s are too short for algo={self.name}"
            problem.notes.append(f"{short}, whose model takes longer, so {best} is the answer; raise budget.seconds")

    def _solve(self, problem: AssignProblem) -> None:
        price_heuristics(problem)
        work = workload(problem, partial(problem.within, BUILD_SHARE))
        if not len(work.op):
            return
        if problem.objective == "max_load":
            warnings.warn(f"algo={self.name} has no model of max_load: the best heuristic is the answer", stacklevel=2)
            return
        if provable(problem):
            problem.prove(simple_bound(problem, work))
        if problem.objective == "peak_memory" and one_device(work) and _ordered(problem, work):
            return
        size, lanes = self._size(work, problem.objective)
        if size > self.max_intervals:
            warnings.warn(
                f"algo={self.name}: a model of {problem.graph.name!r} has {size:,} intervals, over "
                f"{self.max_intervals:,}, so the best heuristic is the answer; to try, raise algo.max_intervals",
                stacklevel=2,
            )
            return
        search(problem, work, formulate(problem, work, lanes=lanes), self.limits)

    def _size(self, work: Workload, objective: str) -> tuple[int, bool]:
        """(intervals of the model, whether lanes are in it): without lanes it is a smaller relaxation."""
        devices, results = work.devices, len(work.handed_on())
        if objective == "peak_memory":
            return (len(work.op) + len(work.tensors)) * devices + results * (devices > 1) * devices, False
        lanes = results * devices * (devices - 1)
        with_lanes = self.lanes and has_lanes(work) and len(work.op) * devices + lanes <= self.max_intervals
        return len(work.op) * devices + lanes * with_lanes, with_lanes


def _ordered(problem: AssignProblem, work: Workload) -> bool:
    """Prices the order of least memory on one device, and notes that it is; whether it was found."""
    weights = sum(t.size for t in work.tensors if t.weight)
    others = [Lifetime(t.size, t.maker, t.readers, t.keep) for t in work.tensors if not t.weight]
    try:
        check = partial(problem.within, ORDER_SHARE)
        found = optimal_order(len(work.op), others, max_states=MOST_SETS, check=check)
    except OutOfBudget:
        return False
    if found is None:
        return False
    if provable(problem):
        problem.prove(float(found.peak + weights))
    start = np.empty(len(work.op), np.int64)
    start[list(found.ops)] = np.arange(len(work.op))
    if problem.open:
        device = np.full(len(work.op), work.options[0][0])
        problem.cost_keys(encode(problem, *on_ops(work, start, device))[None])
    return True


def price_heuristics(problem: AssignProblem) -> None:
    """List schedules and other heuristics; HEFT and bottom level come first. They have at most half of the evaluations
    and, but for one that is under way, a quarter of the seconds."""
    if problem.seconds >= HEURISTIC_SHARE * problem.seconds_cap:
        return
    for keys in islice(heuristic_rows(problem), problem.remaining // 2):
        problem.cost_keys(keys[None])
        if problem.seconds >= HEURISTIC_SHARE * problem.seconds_cap:
            return


def simple_bound(problem: AssignProblem, work: Workload) -> float:
    """A bound without a solver."""
    if problem.objective == "peak_memory":
        return float(least_memory(work))
    return least_makespan(work) * GRID


def formulate(problem: AssignProblem, work: Workload, *, lanes: bool) -> Formulation:
    """The model of the problem's objective, with the best plan so far to start from. Raises OutOfBudget where half of
    the seconds pass before it is built."""
    check = partial(problem.within, BUILD_SHARE)
    check()
    known = best_run(problem)
    check()
    room = np.array([device.capacity for device in work.machine.devices])
    feasible = bool((known.peak_bytes <= room).all())
    if problem.objective == "peak_memory":
        return memory_model(work, known, feasible=feasible, check=check)
    return makespan_model(work, known, feasible=feasible, lanes=lanes, check=check)


def best_run(problem: AssignProblem) -> Trace:
    """The run of the best plan so far, which has been priced."""
    simulator = Simulator(name="run", machine=problem.task.machine, objective=problem.objective, threads=1)
    return simulator.simulate(problem.solution().plans)


def search(problem: AssignProblem, work: Workload, formulation: Formulation, limits: SolverLimits) -> Proof:
    """Lets the solver look for schedules, prices them, and notes its bound.

    The simulator never lets a device wait beside a ready kernel; so where the best schedule does not come out, those
    that are as good are tried, the earlier everything starts the better.
    """
    proof = _attempt(problem, work, formulation, limits, 0.0)
    if provable(problem):
        problem.prove(proof.bound)
    if proof.optimal and proof.bound < problem.best_cost and problem.open:
        start_early(formulation, proof.units)
        _attempt(problem, work, formulation, limits, proof.bound)
    return proof


def _attempt(
    problem: AssignProblem, work: Workload, formulation: Formulation, limits: SolverLimits, goal: float
) -> Proof:
    pricer = Pricer(problem, work, goal)
    seconds = min(limits.seconds, SOLVE_SHARE * (problem.seconds_cap - problem.seconds))
    seed = int(problem.rng.integers(2**31))
    proof = run(formulation, work, SolverLimits(seconds, limits.effort, limits.workers), seed, pricer)
    pricer.finish()
    return proof


def provable(problem: AssignProblem) -> bool:
    """Whether a bound on the model is one on every decision: nothing else is decided, and by the simulator's rules."""
    rule = problem.task.machine.transfer
    models = rule.clock == "grid" and (rule.free == "end" or problem.objective == "runtime")
    return problem.by_events and models and {head.role for head in problem.task.heads} <= {Role.DEVICE, Role.PRIORITY}


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
    """[K] devices for kernels of which at most D run at any time: each goes where one ended last before it starts.
    Kernels of zero seconds do not count, and may start where all are busy."""
    free, device = np.zeros(devices, np.int64), np.zeros(len(start), np.int64)
    for k in np.lexsort((np.arange(len(start)), busy, start)):
        idle = np.flatnonzero(free <= start[k])
        device[k] = idle[np.argmax(free[idle])] if len(idle) else np.argmin(free)
        free[device[k]] = max(free[device[k]], start[k] + busy[k])
    return device
