"""Heuristics as optimisers: `default`, `heft`, `list_blevel`, `gp_dfs`. List schedules know an exact order and an exact
device for every kernel, so they answer with random keys: a decision has a few levels of priority only."""

from collections.abc import Iterator

import numpy as np

from graphopt.core.errors import ConfigError
from graphopt.core.list_schedule import list_by_bottom_level, positions, tie_breaks
from graphopt.core.plan import Role
from graphopt.core.utils.marks import NotNegative, Positive
from graphopt.problems.assignment import AssignProblem
from graphopt.problems.optimizer import Optimizer
from graphopt.search.heuristics.rules import (
    SchedulingInstance,
    Suggestion,
    Weight,
    by_heft,
    metis_depth_first,
    order_bottom_level,
    place_single,
)
from graphopt.search.heuristics.starts import distinct, encode


class Default(Optimizer):
    """The task's own heuristic, the answer without any search; it spends nothing."""

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: AssignProblem) -> None:
        """The answer is already `problem.best`."""


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
        _answer(problem, iter([by_heft(SchedulingInstance(problem.graph, problem.task), self.caution)]))


class ListBottomLevel(Optimizer):
    """List scheduling by bottom level, the longest path to the end; devices as they become idle where they are free.

    The plain schedule, ties by op id, is the answer to a budget of 0 and the first that is priced. Where nothing
    travels its plan takes exactly as long as it says, so from one evaluation on the answer is never worse. The rest of
    a budget goes to other ways to break ties: five evaluations at most.
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
    kernels = instance.kernels
    for tie in tie_breaks(kernels.time.mean(1), instance.needs):
        schedule = list_by_bottom_level(kernels.time, kernels.is_kernel, instance.needs, instance.links, tie)
        yield Suggestion(schedule.device, schedule.urgency)


def _fixed_schedules(instance: SchedulingInstance) -> Iterator[Suggestion]:
    """By bottom level where devices are fixed."""
    device = place_single(instance)
    level = order_bottom_level(instance, device)
    for tie in tie_breaks(instance.kernels.time[np.arange(len(device)), device], instance.needs):
        yield Suggestion(device, -positions(level, tie).astype(np.float64))


def _answer(problem: AssignProblem, schedules: Iterator[Suggestion]) -> None:
    """Prices distinct plans while the budget lasts; commits to the first where there is none."""
    plans = distinct(encode(problem, *schedule) for schedule in schedules)
    if problem.evals_cap == 0:
        problem.commit_keys(next(plans))
    while problem.open and (keys := next(plans, None)) is not None:
        problem.cost_keys(keys[None])


class PartitionDepthFirst(Optimizer):
    """`gp_dfs`, the baseline `GP + DFS` of REGAL's tables: a graph partition for placement, then a depth-first order.

    One plan per setting of METIS (Karypis, Kumar 1998), as many as the budget allows; needs pymetis. balance: the
    shared weights, the first matters most; `auto` = time for runtime, bytes for peak memory. imbalance: allowed excess
    of a device over its share.
    """

    needs_roles = frozenset({Role.DEVICE})

    def __init__(self, *, name: str, balance: list[str], imbalance: list[NotNegative]) -> None:
        known = ("auto", "time", "bytes")
        if not balance or not imbalance or any(kind not in known for kind in balance):
            raise ConfigError(f"gp_dfs needs balance from {', '.join(known)} and at least one imbalance")
        self.name, self.balance, self.imbalance = name, balance, imbalance

    def solve(self, problem: AssignProblem) -> None:
        if not problem.open:
            return
        instance = SchedulingInstance(problem.graph, problem.task)
        auto: Weight = "bytes" if problem.objective == "peak_memory" else "time"
        weights: dict[str, Weight] = {"auto": auto, "time": "time", "bytes": "bytes"}
        settings = dict.fromkeys((weights[kind], slack) for kind in self.balance for slack in self.imbalance)
        plans = (metis_depth_first(instance, *setting) for setting in list(settings)[: problem.remaining])
        problem.cost_keys(np.stack([encode(problem, *plan) for plan in plans]))
