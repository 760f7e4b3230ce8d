"""`hot_local`: local search on random keys that perturbs where the price is decided.

Of peak memory that are the ops whose results are live, or are read, where and when the peak is; of run time those on
the chain of kernels and transfers that ends last. A run simulated by a plain roofline says which (`RunColumns`), and is
no evaluation: sizes, links and rules are known, times of kernels are a guess. Of a batch of random moves the best is
made unless it is worse; where nothing was found for `patience` evaluations the search goes on from the best keys after
`kick` such moves at once.

With `modelled` it starts from what the same search finds among so many simulated runs, which are no evaluations
either; without, from the best of all heuristics, each of which is priced. What else a task decides stays as in the
first plan. `perturb_policy` is the same search, told by a network where to perturb.

Not from a paper; REGAL (Paliwal et al., 2020) steers what a genetic algorithm draws instead.
Shape legend: K keys, N ops, E dependencies between kernels, F columns, M kinds of moves, S steps, D devices.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64, I64
from graphopt.core.plan import Role
from graphopt.core.trace import Trace
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
from graphopt.search.walks.key_moves import KINDS, Descent, Moves, WeightedMoves, first_plan

OBJECTIVES = frozenset[Objective]({"runtime", "peak_memory"})  # of which runs are simulated
HOT = {"runtime": ("critical",), "peak_memory": ("live", "held", "reads_live")}

COLUMNS = (
    "full",  # 1 on the device that decides: with the highest peak, or that ends last
    "result", "weights", "seconds",  # shares: of the peak, of the peak, of the makespan
    "begins", "ends",  # shares of the makespan
    "before", "after",  # how far from the deciding moment it begins, in shares of the steps
    "live", "held",  # share of the peak: its result where and when the peak is; copies of its result there
    "reads_live",  # share of the peak: what it reads of what is live then and there
    "late",  # share of the peak: of what it alone keeps alive, as the last reader
    "cut_in", "cut_out",  # shares of the bytes that it reads, and that are read of it, across devices
    "idle", "wait", "slack",  # shares of the makespan: its device before it; until its first and last reader begin
    "critical",  # 1 on the chain of kernels and transfers that ends last
    "load", "other_load",  # busy shares of its device and of the busiest other one
    "readers", "reads",  # logarithms of their numbers, in tens
)  # fmt: skip
INDEX = {name: i for i, name in enumerate(COLUMNS)}

Flags = NDArray[np.bool_]


class RunColumns:
    """Columns of one problem's plans. source, reader: [E] ops of dependencies between kernels."""

    def __init__(self, problem: AssignProblem) -> None:
        self._problem, task = problem, problem.task
        devices = tuple(plain_roofline(each) for each in task.machine.devices)
        self._machine = replace(task.machine, devices=devices)
        self._model = Simulator(name="model", machine=self._machine, objective="peak_memory", threads=1)
        instance = SchedulingInstance(problem.graph, task)
        self._needs, ops = instance.needs, problem.graph.num_ops
        self.source: I64 = self._needs.source.astype(np.int64)
        self.reader: I64 = np.repeat(np.arange(ops), np.diff(self._needs.ptr))
        self._weights = instance.held - np.where(instance.kernels.is_kernel, problem.graph.result_bytes, 0.0)

    def problem(self, evals: int) -> AssignProblem:
        """The same problem where runs are simulated: its prices are nobody's evaluations."""
        problem = self._problem
        model = Simulator(name="model", machine=self._machine, objective=problem.objective, threads=1)
        return AssignProblem(problem.graph, problem.task, model, evals=evals, seed=int(problem.rng.integers(2**31)))

    def of(self, keys: F32) -> NDArray[np.float32]:
        """[N, F] of the plan of keys [K]."""
        graph, problem = self._problem.graph, self._problem
        plan = problem.task.realise_keys(graph, keys[None])
        trace, device = self._model.simulate(plan), plan.device[0].astype(np.int64)
        step, start, end = when = np.zeros((3, graph.num_ops))
        when[:, trace.kernel_op] = trace.kernel_step[:, 0], trace.kernel_start, trace.kernel_end
        found = np.zeros((graph.num_ops, len(COLUMNS)))
        decides, moment = _deciding(trace, problem.objective == "peak_memory")
        source, reader, size = self.source, self.reader, self._needs.size
        _fill(found, source, reader, size, device, step, start, end, self._weights,
              graph.result_bytes.astype(np.float64), trace.makespan, float(trace.peak_bytes.max()), decides, moment,
              len(trace.memory_time), trace.peak_bytes.size)  # fmt: skip
        found[:, INDEX["critical"]] = _critical(source, self._needs.ptr, device, start, end)
        return found.astype(np.float32)


def _deciding(trace: Trace, memory: bool) -> tuple[int, int]:
    """(device, step): of the highest peak, or of the last end and of the middle of the run."""
    if memory:
        device = int(trace.peak_bytes.argmax())
        return device, int(trace.memory_bytes[:, device].argmax())
    return int(trace.kernel_device[trace.kernel_end.argmax()]), len(trace.memory_time) // 2


@njit(cache=True, nogil=True)
def _critical(source, ptr, device, start, end):  # type: ignore[no-untyped-def]
    """[N] 1 on the chain that ends last. Before a kernel comes what it waited for: the latest to end of the ops that it
    reads and of the kernel before it on its device."""
    count = len(start)
    chain, before = np.zeros(count), np.full(count, -1)
    last = np.full(device.max() + 1, -1)
    for op in np.argsort(start):
        if end[op] > 0.0:
            before[op] = last[device[op]]
            last[device[op]] = op
    at = int(np.argmax(end))
    while at >= 0 and chain[at] == 0.0:
        chain[at] = 1.0
        latest = before[at]
        for e in range(ptr[at], ptr[at + 1]):
            if latest < 0 or end[source[e]] > end[latest]:
                latest = source[e]
        at = latest
    return chain


@njit(cache=True, nogil=True)
def _fill(out, source, reader, size, device, step, start, end, weights, result, span, peak, decides, moment, steps, devices):  # type: ignore[no-untyped-def] # noqa: E501 # fmt: skip
    """Every column but `critical`."""
    count, span, peak = len(start), max(span, 1e-30), max(peak, 1.0)
    first, final, last_here = np.full(count, np.inf), start.copy(), np.full((count, devices), -1.0)
    bytes_in, bytes_out, cut_in, cut_out = np.zeros(count), np.zeros(count), np.zeros(count), np.zeros(count)
    reads, readers, load = np.zeros(count), np.zeros(count), np.zeros(devices)
    for e in range(len(source)):
        a, b = source[e], reader[e]
        first[a], final[a] = min(first[a], start[b]), max(final[a], start[b])
        last_here[a, device[b]] = max(last_here[a, device[b]], step[b])
        bytes_in[b] += size[e]
        bytes_out[a] += size[e]
        reads[b] += 1.0
        readers[a] += 1.0
        if device[a] != device[b]:
            cut_in[b] += size[e]
            cut_out[a] += size[e]
    for op in range(count):
        load[device[op]] += end[op] - start[op]
    lives, copied = np.zeros(count), np.zeros(count)
    for op in range(count):
        if step[op] <= moment:
            kept = readers[op] == 0.0 or last_here[op].max() >= moment
            lives[op] = result[op] * (device[op] == decides and kept)
            copied[op] = result[op] * (device[op] != decides and last_here[op, decides] >= moment)
    reads_live, late = np.zeros(count), np.zeros(count)
    for e in range(len(source)):
        a, b = source[e], reader[e]
        if device[b] == decides:
            reads_live[b] += lives[a] + copied[a]
            if step[b] == last_here[a, decides]:
                late[b] += lives[a] + copied[a]
    ready = np.zeros(devices)
    for op in np.argsort(start):
        d = device[op]
        other = 0.0
        for o in range(devices):
            if o != d:
                other = max(other, load[o])
        away = (step[op] - moment) / max(1.0, steps)
        row = out[op]
        row[0] = d == decides
        row[1], row[2], row[3] = result[op] / peak, weights[op] / peak, (end[op] - start[op]) / span
        row[4], row[5] = start[op] / span, end[op] / span
        row[6], row[7] = max(0.0, -away), max(0.0, away)
        row[8], row[9], row[10], row[11] = lives[op] / peak, copied[op] / peak, reads_live[op] / peak, late[op] / peak
        row[12], row[13] = cut_in[op] / max(1.0, bytes_in[op]), cut_out[op] / max(1.0, bytes_out[op])
        if end[op] > 0.0:
            row[14] = (start[op] - ready[d]) / span
            ready[d] = end[op]
        row[15] = (min(first[op], span) - end[op]) / span if readers[op] else 0.0
        row[16] = (final[op] - end[op]) / span if readers[op] else 0.0
        row[18], row[19] = load[d] / span, other / span
        row[20], row[21] = np.log1p(readers[op]) / 10.0, np.log1p(reads[op]) / 10.0


Says = Callable[[AssignProblem, "RunColumns", NDArray[np.float32]], F64]
"""(problem, where its columns are from, columns [N, F]) -> how much sooner than by chance each move is tried [M, N], of
any scale."""


@dataclass(frozen=True, kw_only=True)
class GuidedWalk:
    """conf/algo/hot_local.yaml explains them."""

    modelled: Whole
    batch: Count
    patience: Count
    kick: Count
    elsewhere: Share
    moves: Moves

    def hot(self, problem: AssignProblem, around: RunColumns, columns: NDArray[np.float32]) -> F64:
        """[M, N] 1 where the price is decided, `elsewhere` for all other ops."""
        decides = (columns[:, [INDEX[name] for name in HOT[problem.objective]]] > 0).any(1)
        return np.tile(np.where(decides, 1.0, self.elsewhere), (len(KINDS), 1))

    def search(self, problem: AssignProblem, says: Says) -> F32:
        """The best keys [K]; evaluations are spent until there are none."""
        columns = RunColumns(problem)
        if self.modelled:
            model = columns.problem(self.modelled)
            keys = self._descended(model, RunColumns(model), says, None)
            return self._descended(problem, columns, says, keys) if problem.open else keys
        return self._descended(problem, columns, says, None)

    def _descended(self, problem: AssignProblem, columns: RunColumns, says: Says, start: F32 | None) -> F32:
        """The best keys [K] from a start, or from the best heuristic, when the budget ends or nothing can move."""
        moves, price, rng = WeightedMoves(problem, self.moves), priced_by(problem), problem.rng

        def weights(keys: F32) -> F64:
            return np.asarray(moves.base * says(problem, columns, columns.of(keys)))

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
                batch = moves.made(walk.here, moves.drawn(weight, self.batch, rng), rng)
                if walk.step(batch, price(batch)):
                    weight = weights(walk.here)
                if walk.since >= self.patience:
                    drawn = moves.drawn(weights(walk.best), self.kick, rng)
                    keys = moves.made(walk.best, drawn, rng, together=True)[0]
                    walk.restart(keys, float(price(keys[None])[0]))
                    weight = weights(keys)
        return walk.best


class GuidedLocal(Optimizer):
    """yaml: conf/algo/hot_local.yaml."""

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})
    objectives = OBJECTIVES

    def __init__(self, *, name: str, walk: GuidedWalk) -> None:
        self.name, self.walk = name, walk

    def solve(self, problem: AssignProblem) -> None:
        answered(problem, self.walk, self.walk.hot)


def answered(problem: AssignProblem, walk: GuidedWalk, says: Says) -> None:
    """Searches; without evaluations what was found among simulated runs is the answer, if there were any."""
    if problem.task.key_count(problem.graph) and (problem.open or walk.modelled):
        keys = walk.search(problem, says)
        if walk.modelled and not problem.evals_cap:
            problem.commit_keys(keys)
