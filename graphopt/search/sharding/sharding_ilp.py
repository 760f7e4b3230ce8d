"""`sharding_ilp`: strategies by an integer program over the reduced model, solved by OR-Tools CP-SAT.

As XLA's auto-sharding poses it: a 0-1 variable per state and one per possible pair of states of an edge, which sum to
the states at both ends; memory is a sum over states at every time that counts. Where that is larger than a limit the
default is the answer. What the solver proves holds for every decision, and is noted.
"""

import math
import warnings
from itertools import pairwise

import numpy as np

from graphopt.core.auto_sharding.strategies import IMPOSSIBLE
from graphopt.core.graph import I64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.solvers.solving import SolverLimits
from graphopt.sharding.instance import tables_of
from graphopt.sharding.occupancy import Occupancy, occupancy
from graphopt.sharding.pairwise import Pairwise
from graphopt.sharding.reducing import reduced
from graphopt.tasks.sharding_task import Sharding
from graphopt.utils.ranges import Count, Positive, Workers

SHARE = 0.95  # of the seconds that are left, for the solver


class ShardingIlp(Optimizer):
    """yaml: conf/algo/sharding_ilp.yaml. seconds: of wall clock, at most what the problem leaves. max_entries: of
    tables and memory; larger programs are not built."""

    accepts = (Sharding,)

    def __init__(self, *, name: str, seconds: Positive, workers: Workers, max_entries: Count) -> None:
        self.name, self.max_entries = name, max_entries
        self.limits = SolverLimits(seconds, None, workers)

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        tables = tables_of(problem.graph)
        model = reduced(tables)
        memory = occupancy(model, tables)
        size = len(model.table) + int((memory.high - memory.low).sum())
        if size > self.max_entries:
            warnings.warn(f"algo={self.name}: a program of {problem.graph.name!r} has {size:,} entries, over "
                          f"{self.max_entries:,}, so the default is the answer; to try, raise algo.max_entries",
                          stacklevel=2)  # fmt: skip
            return
        hint = model.labels(problem.initial[:, 0].astype(np.int64))
        left = SHARE * (problem.seconds_cap - problem.seconds)
        labels, bound = _solved(model, memory, hint, self.limits, min(self.limits.seconds, left), problem)
        problem.prove(bound)
        if labels is not None and problem.open:
            problem.cost(model.choice(labels)[None, :, None].astype(np.int16))


def _solved(model: Pairwise, memory: Occupancy, hint: I64, limits: SolverLimits, seconds: float,
            problem: AssignProblem) -> tuple[I64 | None, float]:  # fmt: skip
    """(labels [V] or None, a bound)."""
    from ortools.sat.python import cp_model

    program, ptr = cp_model.CpModel(), model.ptr
    state = [program.new_bool_var("") for _ in range(len(model.unary))]
    terms, costs = list(state), [round(cost) for cost in model.unary.tolist()]
    for v in range(len(ptr) - 1):
        program.add_exactly_one(state[ptr[v] : ptr[v + 1]])
        for s in range(ptr[v], ptr[v + 1]):
            program.add_hint(state[s], bool(s - ptr[v] == hint[v]))
    for e in range(len(model.first)):
        u, v = int(model.first[e]), int(model.second[e])
        table = model.table[model.table_ptr[e] : model.table_ptr[e + 1]].reshape(-1, int(ptr[v + 1] - ptr[v]))
        pair = {(a, b): program.new_bool_var("") for a, b in zip(*np.nonzero(table < np.inf), strict=True)}
        for a in range(table.shape[0]):
            program.add(sum(pair[key] for key in pair if key[0] == a) == state[ptr[u] + a])
        for b in range(table.shape[1]):
            program.add(sum(pair[key] for key in pair if key[1] == b) == state[ptr[v] + b])
        terms += pair.values()
        costs += [round(float(table[key])) for key in pair]
    for time, uses in _by_time(model, memory).items():
        program.add(sum(int(use) * state[s] for s, use in uses) <= int(memory.room[time]))
    if max(map(abs, costs), default=0) >= IMPOSSIBLE:
        return None, 0.0
    program.minimize(sum(cost * term for cost, term in zip(costs, terms, strict=True) if cost))
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = limits.workers
    solver.parameters.random_seed = int(problem.rng.integers(2**31))
    if math.isfinite(seconds):
        solver.parameters.max_time_in_seconds = max(0.1, seconds)
    status = solver.solve(program)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return None, 0.0 if status == cp_model.INFEASIBLE else max(0.0, solver.best_objective_bound)
    values = np.array([solver.boolean_value(one) for one in state])
    labels = np.array([int(np.argmax(values[a:b])) for a, b in pairwise(ptr)])
    return labels, max(0.0, float(solver.best_objective_bound))


def _by_time(model: Pairwise, memory: Occupancy) -> dict[int, list[tuple[int, float]]]:
    """Time -> (state, what it uses), where there is something."""
    uses: dict[int, list[tuple[int, float]]] = {}
    for v in range(len(model.ptr) - 1):
        for i in range(memory.ptr[v], memory.ptr[v + 1]):
            for s in range(model.ptr[v], model.ptr[v + 1]):
                use = float(memory.use[memory.use_ptr[i] + s - model.ptr[v]])
                for time in range(memory.low[i], memory.high[i]) if use else ():
                    uses.setdefault(time, []).append((s, use))
    return uses
