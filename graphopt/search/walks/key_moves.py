"""What local searches on random keys share: where they start, which keys may move, and how ops change their device.

Shape legend: K keys, N ops.
"""

from typing import Literal

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import I64
from graphopt.core.list_schedule import Dependencies
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.search.genetic.brkga import F32, Price, uniform_keys
from graphopt.search.heuristics.starts import heuristic_keys
from graphopt.utils.compiled import njit


def first_plan(problem: AssignProblem, start: Literal["random", "heuristic"], price: Price) -> tuple[F32, float]:
    """Keys [K] and their price: `random` ones, or the best of all heuristics, each of which is priced and billed."""
    if start == "heuristic":
        keys = heuristic_keys(problem)
    else:
        keys = uniform_keys(problem.task.key_count(problem.graph))(problem.rng, 1)
    cost = price(keys)
    return keys[int(np.argmin(cost))], float(cost.min())


def movable_keys(problem: AssignProblem, role: KeyRole) -> I64:
    """The first key of that role of every op that has one and a choice."""
    layout, free = problem.layout, problem.task.mask(problem.graph)
    keys = np.flatnonzero((layout.role == role) & free[layout.op, layout.head])
    return keys[np.unique(layout.op[keys], return_index=True)[1]].astype(np.int64)


def by_op(problem: AssignProblem, first: I64) -> I64:
    """[N] which of these keys is an op's, -1 without."""
    found = np.full(problem.graph.num_ops, -1)
    found[problem.layout.op[first]] = first
    return found


def adjacent(needs: Dependencies) -> tuple[I64, NDArray[np.int32]]:
    """CSR (ptr [N+1], op) of the ops that each op reads from or is read by."""
    ops = len(needs.ptr) - 1
    reader = np.repeat(np.arange(ops, dtype=np.int32), np.diff(needs.ptr))
    here, there = np.append(needs.source, reader), np.append(reader, needs.source)
    ptr = np.append(0, np.cumsum(np.bincount(here, minlength=ops))).astype(np.int64)
    return ptr, there[np.argsort(here, kind="stable")].astype(np.int32)


@njit(cache=True, nogil=True)
def exchange(keys, start, here, there):  # type: ignore[no-untyped-def]
    """Exchanges two affinities of the op whose first is at `start`."""
    keys[start + here], keys[start + there] = keys[start + there], keys[start + here]


@njit(cache=True, nogil=True)
def elsewhere(keys, op, here, pick, devices, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """The device of a neighbour that is not `here`, the search beginning at a random one by `pick`; -1 without any."""
    degree = ptr[op + 1] - ptr[op]
    for i in range(degree):
        start = first_key[beside[ptr[op] + (int(pick * degree) + i) % degree]]
        if start >= 0:
            there = np.argmax(keys[start : start + devices])
            if there != here:
                return there
    return -1


@njit(cache=True, nogil=True)
def spread(keys, op, here, there, size, window, devices, first_key, ptr, beside):  # type: ignore[no-untyped-def]
    """Moves up to `size` connected ops of one window (of each op, [N]) from device `here` to `there`, breadth first."""
    block, count = np.empty(size, np.int64), 1
    block[0] = op
    exchange(keys, first_key[op], here, there)
    for i in range(size):
        if i == count:
            return
        for e in range(ptr[block[i]], ptr[block[i] + 1]):
            start = first_key[beside[e]]
            near = count < size and start >= 0 and window[beside[e]] == window[op]
            if near and np.argmax(keys[start : start + devices]) == here:
                exchange(keys, start, here, there)
                block[count] = beside[e]
                count += 1
