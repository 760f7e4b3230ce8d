"""List schedules as optimisers. They know an exact order and an exact device for every kernel, so they answer with
random keys, which say both in full: a decision has a few levels of priority only."""

from collections.abc import Iterator

import numpy as np

from graphopt.core.head import Role
from graphopt.core.list_schedule import list_by_bottom_level, positions, tie_breaks
from graphopt.problems.assign_problem import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.encoding import F32, encode
from graphopt.search.heuristics.rules import (
    SchedulingInstance,
    Suggestion,
    heft_schedule,
    order_bottom_level,
    place_single,
)
from graphopt.utils.ranges import Positive


class Heft(Optimizer):
    """HEFT (Topcuoglu, Hariri, Wu 2002): devices by earliest finish time, priorities, if any, by upward rank. One
    evaluation; the answer to a budget of 0 as well.

    caution: transfers are taken for so many times as long as they are, since links are narrower than HEFT knows (HEFT:
    1).
    """

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, caution: Positive) -> None:
        self.name, self.caution = name, caution

    def solve(self, problem: AssignProblem) -> None:
        schedule = heft_schedule(SchedulingInstance(problem.graph, problem.task), self.caution)
        _answer(problem, iter([Suggestion(schedule.device, schedule.urgency)]))


class ListBottomLevel(Optimizer):
    """List scheduling by bottom level, the longest path to the end; devices as they become idle where they are free.

    The plain schedule, ties by op id, is the answer to a budget of 0 and the first that is priced. Where nothing
    travels its plan takes exactly as long as it says, so from one evaluation on the answer is never worse. What is left
    of a budget goes to other ways to break ties: five evaluations at most.
    """

    needs_roles = frozenset({Role.PRIORITY})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        instance = SchedulingInstance(problem.graph, problem.task)
        places = problem.task.decides(Role.DEVICE)
        _answer(problem, _placed_schedules(instance) if places else _fixed_schedules(instance))


def _placed_schedules(instance: SchedulingInstance) -> Iterator[Suggestion]:
    """Devices as they become idle."""
    for tie in tie_breaks(instance.kernels.time.mean(1), instance.needs):
        schedule = list_by_bottom_level(
            instance.kernels.time, instance.kernels.is_kernel, instance.needs, instance.links, tie
        )
        yield Suggestion(schedule.device, schedule.urgency)


def _fixed_schedules(instance: SchedulingInstance) -> Iterator[Suggestion]:
    """By bottom level where devices are fixed."""
    device = place_single(instance)
    level = order_bottom_level(instance, device)
    for tie in tie_breaks(instance.kernels.time[np.arange(len(device)), device], instance.needs):
        yield Suggestion(device, -positions(level, tie).astype(np.float64))


def _answer(problem: AssignProblem, schedules: Iterator[Suggestion]) -> None:
    """Prices distinct plans while the budget lasts; commits to the first where there is none."""
    plans = _distinct(encode(problem, *schedule) for schedule in schedules)
    if problem.evals_cap == 0:
        problem.commit_keys(next(plans))
    while problem.open and (keys := next(plans, None)) is not None:
        problem.cost_keys(keys[None])


def _distinct(rows: Iterator[F32]) -> Iterator[F32]:
    seen = set()
    for row in rows:
        if row.tobytes() not in seen:
            seen.add(row.tobytes())
            yield row
