"""`hot_local`: local search on random keys that perturbs where the price is decided.

Of peak memory that are the ops whose results are live, or are read, where and when the peak is; of run time those on
the chain of kernels and transfers that ends last. A run simulated by a plain roofline (`SimulatedRuns`) says which, and
is no evaluation: sizes, links and rules are known, times of kernels are a guess. Of a batch of random moves the best is
made unless it is worse; where nothing was found for `patience` evaluations the search goes on from the best keys after
`kick` such moves at once.

With `modelled` it starts from what the same search finds among so many simulated runs, which are no evaluations either;
without, from the best of all heuristics, each of which is priced. Other decisions of a task stay as in the first plan.

Not from a paper; REGAL (Paliwal et al., 2020) steers the draws of a genetic algorithm instead.
Shape legend: K keys, N ops, M kinds of moves.
"""

import contextlib
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Count, Share, Whole
from graphopt.costs.simulator import Simulator
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.optimizer import Optimizer
from graphopt.problems.problem import OutOfBudget
from graphopt.search.fusion.modelled_scan import plain_roofline
from graphopt.search.genetic.evolution import F32, priced_by
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.key_moves import Descent, Moves, WeightedMoves, first_plan

OBJECTIVES = frozenset[Objective]({"runtime", "peak_memory"})  # of which runs are simulated
Flags = NDArray[np.bool_]


class SimulatedRuns:
    """Runs of one problem's plans, simulated on its machine with kernels by a plain roofline."""

    def __init__(self, problem: AssignProblem) -> None:
        self._problem, task = problem, problem.task
        devices = tuple(plain_roofline(each) for each in task.machine.devices)
        self._machine = replace(task.machine, devices=devices)
        self._model = Simulator(name="model", machine=self._machine, objective="peak_memory", threads=1)
        self._needs = SchedulingInstance(problem.graph, task).needs
        self._source: I64 = self._needs.source.astype(np.int64)
        self._reader: I64 = np.repeat(np.arange(problem.graph.num_ops), np.diff(self._needs.ptr))

    def problem(self, evals: int) -> AssignProblem:
        """The same problem where runs are simulated: its prices are nobody's evaluations."""
        problem = self._problem
        model = Simulator(name="model", machine=self._machine, objective=problem.objective, threads=1)
        return AssignProblem(problem.graph, problem.task, model, evals=evals, seed=int(problem.rng.integers(2**31)))

    def decide(self, keys: F32) -> Flags:
        """[N] the ops by which the price of the plan of keys [K] is decided."""
        graph, problem = self._problem.graph, self._problem
        plan = problem.task.realise_keys(graph, keys[None])
        trace, device = self._model.simulate(plan), plan.device[0].astype(np.int64)
        step, start, end = when = np.zeros((3, graph.num_ops))
        when[:, trace.kernel_op] = trace.kernel_step[:, 0], trace.kernel_start, trace.kernel_end
        found = np.zeros(graph.num_ops, np.bool_)
        if problem.objective == "runtime":
            _critical(found, self._source, self._needs.ptr, device, start, end)
        else:
            peak = int(trace.peak_bytes.argmax())
            moment = int(trace.memory_bytes[:, peak].argmax())
            devices = trace.peak_bytes.size
            _live(found, self._source, self._reader, device, step, graph.result_bytes, peak, moment, devices)
        return found


@njit(cache=True, nogil=True)
def _critical(found, source, ptr, device, start, end):  # type: ignore[no-untyped-def]
    """Ops on the chain that ends last. The predecessor of a kernel is the latest to end among its inputs and the kernel
    before it on its device."""
    before = np.full(len(start), -1)
    last = np.full(device.max() + 1, -1)
    for op in np.argsort(start):
        if end[op] > 0.0:
            before[op] = last[device[op]]
            last[device[op]] = op
    at = int(np.argmax(end))
    while at >= 0 and not found[at]:
        found[at] = True
        latest = before[at]
        for e in range(ptr[at], ptr[at + 1]):
            if latest < 0 or end[source[e]] > end[latest]:
                latest = source[e]
        at = latest


@njit(cache=True, nogil=True)
def _live(found, source, reader, device, step, result, peak, moment, devices):  # type: ignore[no-untyped-def]
    """Those whose results, or copies of them, are live on the device `peak` at the step `moment`, and their readers
    there."""
    count = len(step)
    read, last_here = np.zeros(count, np.bool_), np.full((count, devices), -1.0)
    for e in range(len(source)):
        a, b = source[e], reader[e]
        read[a] = True
        last_here[a, device[b]] = max(last_here[a, device[b]], step[b])
    for op in range(count):
        needed = last_here[op, peak] if device[op] != peak else last_here[op].max() if read[op] else np.inf
        found[op] = result[op] > 0 and step[op] <= moment <= needed
    live = found.copy()
    for e in range(len(source)):
        found[reader[e]] |= live[source[e]] and device[reader[e]] == peak


@dataclass(frozen=True, kw_only=True)
class GuidedWalk:
    """conf/algo/hot_local.yaml explains them."""

    modelled: Whole
    batch: Count
    patience: Count
    kick: Count
    elsewhere: Share
    moves: Moves


class GuidedLocal(Optimizer):
    """yaml: conf/algo/hot_local.yaml."""

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})
    objectives = OBJECTIVES

    def __init__(self, *, name: str, walk: GuidedWalk) -> None:
        self.name, self.walk = name, walk

    def solve(self, problem: AssignProblem) -> None:
        """Without evaluations the best simulated run is the answer, if there was one."""
        if not problem.task.key_count(problem.graph) or not (problem.open or self.walk.modelled):
            return
        runs, keys = SimulatedRuns(problem), None
        if self.walk.modelled:
            model = runs.problem(self.walk.modelled)
            keys = self._descended(model, SimulatedRuns(model), None)
        if problem.open:
            self._descended(problem, runs, keys)
        elif keys is not None and not problem.evals_cap:
            problem.commit_keys(keys)

    def _descended(self, problem: AssignProblem, runs: SimulatedRuns, start: F32 | None) -> F32:
        """The best keys [K] from a start, or from the best heuristic, when the budget ends or nothing can move."""
        moves, price, rng = WeightedMoves(problem, self.walk.moves), priced_by(problem), problem.rng

        def weights(keys: F32) -> F64:
            """[M, N] of moves: ops that decide nothing are moved `elsewhere` as often."""
            return np.asarray(moves.base * np.where(runs.decide(keys), 1.0, self.walk.elsewhere))

        try:
            first = first_plan(problem, "heuristic", price) if start is None else (start, float(price(start[None])[0]))
        except OutOfBudget:
            return np.zeros(0, np.float32) if start is None else start
        walk = Descent(*first)
        if not np.isfinite(walk.cost) or not moves.base.any():
            return walk.best
        with contextlib.suppress(OutOfBudget):
            weight = weights(walk.here)
            while True:
                batch = moves.made(walk.here, moves.drawn(weight, self.walk.batch, rng), rng)
                if walk.step(batch, price(batch)):
                    weight = weights(walk.here)
                if walk.since >= self.walk.patience:
                    drawn = moves.drawn(weights(walk.best), self.walk.kick, rng)
                    keys = moves.made(walk.best, drawn, rng, together=True)[0]
                    walk.restart(keys, float(price(keys[None])[0]))
                    weight = weights(keys)
        return walk.best
