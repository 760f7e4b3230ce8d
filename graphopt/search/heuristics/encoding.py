"""Devices and priorities -> random keys, so that what heuristics and solvers decide can be priced, seeded and evolved.

Shape legend: N ops, D devices, K keys.
"""

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.keys import KeyRole

F32 = NDArray[np.float32]


def encode(problem: AssignProblem, device: NDArray[np.integer], urgency: F64) -> F32:
    """[K] keys of a plan: ops on `device` [N], started by `urgency` [N] (any scale, the largest first, ties by op id).

    Results travel in the order of their producers; other choices are the default's. Of keys that the task does not
    have nothing is lost: a task that only places reads devices, one that only schedules reads priorities.
    """
    layout = problem.layout
    keys = np.empty(len(layout), np.float32)
    rank = ranks(urgency)
    affinity = layout.role == KeyRole.AFFINITY
    keys[affinity] = np.where(device[layout.op[affinity]] == layout.device[affinity], 0.75, 0.25)
    ordered = (layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER)
    keys[ordered] = rank[layout.op[ordered]]
    choice = layout.role == KeyRole.CHOICE
    head = layout.head[choice]
    counts = np.array([head.count for head in problem.task.heads])
    keys[choice] = (problem.initial[layout.op[choice], head] + 0.5) / counts[head]
    return keys


def ranks(urgency: F64) -> F32:
    """[N] different numbers in (0, 1) in the order of urgency; of equal ones the smaller id ranks higher."""
    count = len(urgency)
    order = np.lexsort((-np.arange(count), urgency))
    out = np.empty(count, np.float32)
    out[order] = (np.arange(count, dtype=np.float32) + 0.5) / count
    return out
