"""What searches start from: the plans of all heuristics that fit the objective, as keys or as decisions.

Shape legend: S starts, K keys, N ops.
"""

from collections.abc import Iterator
from itertools import chain

import numpy as np

from graphopt.core.head import Role
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.decisions import Decision, Decisions
from graphopt.search.heuristics.encoding import F32, encode, ranks
from graphopt.search.heuristics.rules import HEURISTICS, Device, SchedulingInstance, Suggestion, order_topological
from graphopt.search.pipelines.contiguous import USUAL, best_split
from graphopt.search.pipelines.pipeline import pipeline_of


def heuristic_keys(problem: AssignProblem) -> F32:
    """[S, K] keys of all heuristics, those that say the same once (a task may read devices only, or priorities).

    For `max_load` the best contiguous split comes first.
    """
    return np.stack(list(heuristic_rows(problem)))


def heuristic_rows(problem: AssignProblem) -> Iterator[F32]:
    """The same one by one, [K] each, computed as they are asked for: the last ones take seconds on large graphs."""
    instance, seen = SchedulingInstance(problem.graph, problem.task), set()
    split = _contiguous(problem, instance)
    suggestions = [] if split is None else [Suggestion(split, order_topological(instance, split))]
    for suggestion in chain(suggestions, (heuristic(instance) for heuristic in HEURISTICS.values())):
        row = encode(problem, *suggestion)
        if row.tobytes() not in seen:
            seen.add(row.tobytes())
            yield row


def heuristic_decisions(problem: AssignProblem) -> Decisions:
    """[S, N, H] decisions of all heuristics, those that say the same once: their devices, and their urgencies in as
    many levels as the task has. Other choices are the default's."""
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


def contiguous(problem: AssignProblem) -> Decision | None:
    """[N, H] the initial decision with the devices of the best contiguous split, where these are decided and count."""
    device = _contiguous(problem, SchedulingInstance(problem.graph, problem.task))
    if device is None:
        return None
    decision = problem.initial.copy()
    decision[:, problem.task.column(Role.DEVICE)] = device
    return decision


def _contiguous(problem: AssignProblem, instance: SchedulingInstance) -> Device | None:
    """[N] devices of the best contiguous split, where the objective is `max_load`, devices are decided and one fits."""
    if problem.objective != "max_load" or not problem.task.decides(Role.DEVICE):
        return None
    line = pipeline_of(instance)
    split = best_split(line, USUAL, np.random.default_rng(0))
    return line.devices(split.device) if len(split.device) else None
