"""`cpsat`: devices and orders by the constraint solver OR-Tools CP-SAT, with a bound that no plan can beat.

The solver's schedule becomes a plan: every kernel on its device, the earlier it starts the more urgent. The simulator
prices it, one evaluation each; its price is what counts, and may differ from the solver's (the model is a relaxation:
`makespan_model`, `memory_model`). Improved schedules are priced as they are found; the last evaluation is kept for the
last. The search starts from the run of the best heuristic.

What the solver proves of the model holds for every plan, and is noted, where the model is a relaxation of all that is
decided and priced: the task does not decide fusion, and the cost model is the event simulator with exact sums (for
memory, one that frees at the end of the last reader).
"""

import warnings
from functools import partial
from itertools import islice

import numpy as np

from graphopt.core.head import Role
from graphopt.core.trace import Trace
from graphopt.costs.event_arrays import GRID
from graphopt.costs.simulator import Simulator
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.heuristics.starts import heuristic_rows
from graphopt.search.solvers.formulation import Formulation, start_early
from graphopt.search.solvers.makespan_model import has_lanes, least_makespan, makespan_model
from graphopt.search.solvers.memory_model import least_memory, memory_model
from graphopt.search.solvers.solving import Pricer, Proof, SolverLimits, run
from graphopt.search.solvers.workload import Workload, workload
from graphopt.utils.ranges import Positive, Whole, Workers

HEURISTIC_SHARE = 0.25  # of the budget's seconds: when no further heuristic is tried
BUILD_SHARE = 0.5  # when a model that is not complete is given up: the solver needs as long to take it in
SOLVE_SHARE = 0.9  # of what is left then: the rest is for ending threads and reading the last schedule


class CpSat(Optimizer):
    """yaml: conf/algo/cpsat.yaml.

    seconds: of wall clock for the solver, at most what the problem leaves, whose own seconds hold for heuristics, model
    and solver together (`BUILD_SHARE` and others). effort: the solver's own measure of work, about seconds,
    which makes runs repeat exactly; None: no such limit. workers: threads. lanes: results share links.
    max_intervals: larger models are not built; the answer is then the best heuristic.
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


def price_heuristics(problem: AssignProblem) -> None:
    """List schedules and other heuristics (HEFT and bottom level come first), for at most half of the evaluations and,
    but for one that is under way, a quarter of the seconds."""
    if problem.seconds >= HEURISTIC_SHARE * problem.seconds_cap:
        return
    for keys in islice(heuristic_rows(problem), problem.remaining // 2):
        problem.cost_keys(keys[None])
        if problem.seconds >= HEURISTIC_SHARE * problem.seconds_cap:
            return


def simple_bound(problem: AssignProblem, work: Workload) -> float:
    """What needs no solver."""
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
    """What happens under the best plan so far, which has been priced."""
    simulator = Simulator(name="run", machine=problem.task.machine, objective=problem.objective, threads=1)
    return simulator.simulate(problem.solution().plans)


def search(problem: AssignProblem, work: Workload, formulation: Formulation, limits: SolverLimits) -> Proof:
    """Lets the solver look for schedules, prices them, and notes what is proved.

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
