"""Starts of searches: the plans of heuristics, as suggestions for kernels, as random keys, as decisions.

Shape legend: S starts, N ops, D devices, K keys.
"""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from graphopt.core.graph import F64
from graphopt.core.plan import Decisions, Role
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.keys import KeyRole
from graphopt.search.heuristics.expert import by_layers
from graphopt.search.heuristics.rules import (
    HEURISTICS,
    Device,
    SchedulingInstance,
    Suggestion,
    by_heft,
    order_bottom_level,
    order_depth_first,
    order_memory_greedy,
    order_reverse_bottom_level,
    order_topological,
)

F32 = NDArray[np.float32]

CAUTIONS = (16.0, 8.0, 4.0, 32.0, 2.0, 1.0, 12.0, 6.0, 3.0, 64.0, 0.5)  # HEFT with transfers so many times as long
_ORDERS = (order_bottom_level, order_topological, order_reverse_bottom_level, order_depth_first, order_memory_greedy)


def encode(problem: AssignProblem, device: NDArray[np.integer], urgency: F64) -> F32:
    """[K] keys of a plan: ops on `device` [N], started by `urgency` [N] (any scale, the largest first, ties by op id).

    Results travel in the order of their producers; other choices are the default's. Of keys that the task does not
    have nothing is lost: a task that only places reads devices, one that only schedules reads priorities.
    """
    layout = problem.layout
    keys = np.empty(len(layout), np.float32)
    affinity = layout.role == KeyRole.AFFINITY
    keys[affinity] = np.where(device[layout.op[affinity]] == layout.device[affinity], 0.75, 0.25)
    ordered = (layout.role == KeyRole.PRIORITY) | (layout.role == KeyRole.TRANSFER)
    keys[ordered] = ranks(urgency)[layout.op[ordered]]
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


def distinct(rows: Iterator[F32]) -> Iterator[F32]:
    """Rows [K] of equal bytes once: a task may read devices only, or priorities."""
    seen = set()
    for row in rows:
        if row.tobytes() not in seen:
            seen.add(row.tobytes())
            yield row


def heuristic_rows(problem: AssignProblem) -> Iterator[F32]:
    """Distinct keys [K] of all heuristics, made when they are asked for: the last take seconds on large graphs."""
    instance = SchedulingInstance(problem.graph, problem.task)
    return distinct(encode(problem, *heuristic(instance)) for heuristic in HEURISTICS.values())


def heuristic_keys(problem: AssignProblem) -> F32:
    """[S, K] the same, all of them."""
    return np.stack(list(heuristic_rows(problem)))


def heuristic_decisions(problem: AssignProblem) -> Decisions:
    """[S, N, H] distinct decisions of all heuristics: their devices, and their urgencies in as many levels as the task
    has. Other choices are the default's."""
    task, instance = problem.task, SchedulingInstance(problem.graph, problem.task)
    found = np.repeat(problem.initial[None], len(HEURISTICS), 0)
    for row, heuristic in zip(found, HEURISTICS.values(), strict=True):
        device, urgency = heuristic(instance)
        if task.decides(Role.DEVICE):
            row[:, task.column(Role.DEVICE)] = device
        if task.decides(Role.PRIORITY):
            levels = task.heads[column := task.column(Role.PRIORITY)].count
            row[:, column] = (ranks(urgency) * levels).astype(np.int16)
    return np.unique(np.where(task.mask(problem.graph), found, problem.initial), axis=0)


def placements(instance: SchedulingInstance) -> Iterator[Suggestion]:
    """Devices and an order for the kernels of any plan, the more promising first: HEFT by cautions, since it knows
    nothing of queues on links, then the other heuristics, and placement by hand."""
    for caution in CAUTIONS:
        yield by_heft(instance, caution)
    for name, heuristic in HEURISTICS.items():
        if name not in ("heft", "heft_cautious"):
            yield heuristic(instance)
    expert = by_layers(instance).astype("int16")
    yield Suggestion(expert, order_bottom_level(instance, expert))


def orders(instance: SchedulingInstance, device: Device) -> Iterator[Suggestion]:
    """Orders of the kernels on their devices [N]; HEFT's ranks last."""
    for order in _ORDERS:
        yield Suggestion(device, order(instance, device))
    yield Suggestion(device, by_heft(instance).urgency)
