"""`windowed`: local search for large graphs. One move in every window of time at once, each judged by its own window.

On 50,000 ops a simulation takes some 20 ms and a move changes the makespan by 1e-5 of it, so moves one by one gain
nothing in a minute. Here kernels are cut, in the order in which they end, into windows, at a random offset each round.
One move is made in every window and the whole is simulated once. A window lasts from the latest end of all kernels
before it to the latest end of its own. Windows that became shorter keep their move; that mixture is priced, and kept
unless it is worse. If it is, the third of them that gained most is tried, then a third of those.

Moves: `block`, up to `largest_block` connected kernels of one device and window go where a neighbour runs, or, in a
share of `anywhere`, to any other device; `swap`, two kernels of a window exchange their priorities. Other decisions of
a task stay as in the first plan.

Ours, of no paper. Shape legend: K keys, N ops, W windows.
"""

from typing import Literal, NamedTuple

import numpy as np
from numpy.random import Generator

from graphopt.core.graph import F64, I64
from graphopt.core.plan import Role
from graphopt.core.utils.compiled import njit
from graphopt.core.utils.marks import Count, Share, Whole
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.cost_model import Objective
from graphopt.problems.keys import KeyRole
from graphopt.problems.optimizer import Optimizer
from graphopt.search.genetic.evolution import F32, priced_by
from graphopt.search.heuristics.rules import SchedulingInstance
from graphopt.search.walks.key_moves import adjacent, by_op, elsewhere, first_plan, movable_keys, spread


class Windowed(Optimizer):
    """yaml: conf/algo/windowed.yaml. Needs prices that say when ops end: cost=simulator by run time.

    start: as `regal_local`. window: kernels in one. swap, anywhere: shares, see above. retries: smaller mixtures that
    are tried after one that was worse.
    """

    needs_one_of = frozenset({Role.DEVICE, Role.PRIORITY})
    objectives = frozenset[Objective]({"runtime"})
    needs_cost = frozenset({"ends"})

    def __init__(self, *, name: str, start: Literal["random", "heuristic"], window: Count, largest_block: Count,
                 swap: Share, anywhere: Share, retries: Whole) -> None:  # fmt: skip
        self.name, self.start, self.window, self.retries = name, start, window, retries
        self.largest_block, self.swap, self.anywhere = largest_block, swap, anywhere

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open or not problem.task.key_count(problem.graph):
            return
        keys, _ = first_plan(problem, self.start, priced_by(problem))
        moves, rng = _Moves(self, problem), problem.rng
        now = _State(keys, *problem.cost_and_ends(keys))
        while problem.open:
            windows = Windows.of(now.ends, self.window, rng)
            tried = moves.everywhere(now.keys, windows, rng)
            now = self._best_mixture(problem, now, _State(tried, *problem.cost_and_ends(tried)), windows, moves)

    def _best_mixture(
        self, problem: AssignProblem, now: "_State", tried: "_State", windows: "Windows", moves: "_Moves"
    ) -> "_State":
        """The state with the moves of the windows that became shorter, or with fewer, or as it was."""
        gain = windows.durations(now.ends) - windows.durations(tried.ends)
        keep = np.argsort(-gain, kind="stable")[: int((gain > 0).sum())]
        if len(keep) == len(gain):
            return tried
        for _ in range(1 + self.retries):
            if not len(keep):
                break
            kept = np.isin(windows.of_op, keep)[moves.op_of_key]
            keys = np.where(kept, tried.keys, now.keys)
            mixture = _State(keys, *problem.cost_and_ends(keys))
            if mixture.cost <= now.cost:
                return mixture
            keep = keep[: len(keep) // 3]
        return now


class _State(NamedTuple):
    keys: F32  # [K]
    cost: float
    ends: F64  # [N] when each kernel ends, 0 for ops without


class Windows(NamedTuple):
    """Kernels in the order in which they end, cut into W windows."""

    order: I64  # [kernels] ops
    bounds: I64  # [W + 1] positions in the order
    of_op: I64  # [N] window of an op, -1 without a kernel

    @staticmethod
    def of(ends: F64, size: int, rng: Generator) -> "Windows":
        """Windows of `size` kernels, the first shorter by a random number."""
        order = np.argsort(ends, kind="stable")
        order = order[int(np.count_nonzero(ends <= 0)) :]
        inner = np.arange(int(rng.integers(1, size + 1)), len(order), size)
        bounds = np.unique(np.concatenate([[0], inner, [len(order)]]))
        of_op = np.full(len(ends), -1)
        of_op[order] = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
        return Windows(order, bounds, of_op)

    def durations(self, ends: F64) -> F64:
        """[W] by how much later the last kernel of a window ends than all before it."""
        latest = np.maximum.accumulate(ends[self.order])[self.bounds[1:] - 1]
        return np.diff(latest, prepend=0.0)


class _Moves:
    """Random moves on the keys of one problem."""

    def __init__(self, algo: Windowed, problem: AssignProblem) -> None:
        task = problem.task
        ptr, beside = adjacent(SchedulingInstance(problem.graph, task).needs)
        affinity, priority = (
            by_op(problem, movable_keys(problem, role)) for role in (KeyRole.AFFINITY, KeyRole.PRIORITY)
        )
        self.op_of_key = task.layout(problem.graph).op
        self._keys = (affinity, priority, task.machine.num_devices, ptr, beside)
        swap = algo.swap if task.machine.num_devices > 1 and (affinity >= 0).any() else 1.0
        self._shares = (swap if (priority >= 0).any() else 0.0, algo.anywhere, float(algo.largest_block))

    def everywhere(self, keys: F32, windows: Windows, rng: Generator) -> F32:
        """[K] a copy of the keys with one random move in every window."""
        moved = keys.copy()
        _move(moved, *windows, rng.random((len(windows.bounds) - 1, 4)), *self._shares, *self._keys)
        return moved


@njit(cache=True, nogil=True)
def _move(keys, order, bounds, window, uniform, swap, anywhere, largest, affinity, priority, devices, ptr, beside):  # type: ignore[no-untyped-def] # fmt: skip
    """One move in every window, in place, from uniform numbers [W, 4]: an op, a kind, and two picks."""
    for w in range(len(bounds) - 1):
        low, count = bounds[w], bounds[w + 1] - bounds[w]
        op, (_, kind, first, second) = order[low + int(uniform[w, 0] * count)], uniform[w]
        if kind < swap:
            one, other = priority[op], priority[order[low + int(first * count)]]
            if one >= 0 and other >= 0:
                keys[one], keys[other] = keys[other], keys[one]
        elif affinity[op] >= 0:
            here = np.argmax(keys[affinity[op] : affinity[op] + devices])
            there = (here + 1 + int(first * (devices - 1))) % devices
            if kind - swap >= anywhere * (1.0 - swap):
                beyond = elsewhere(keys, op, here, first, devices, affinity, ptr, beside)
                there = beyond if beyond >= 0 else there
            spread(keys, op, here, there, int(largest**second), window, devices, affinity, ptr, beside)
