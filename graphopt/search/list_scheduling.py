"""List scheduling as optimisers: one decision, one evaluation."""

import numpy as np

from graphopt.graph import F64
from graphopt.optimizer import Optimizer
from graphopt.problem import Problem
from graphopt.search.heuristics import Suggestion, Work, by_heft, by_list, order_bottom_level, place_single, suggest
from graphopt.tasks.base import Decision


class Heft(Optimizer):
    """HEFT (Topcuoglu, Hariri, Wu 2002): devices by earliest finish time, priorities, if any, by upward rank."""

    needs_heads = frozenset({"device"})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: Problem) -> None:
        _answer(problem, _decide(problem, by_heft(Work(problem.graph, problem.task))))


class ListBottomLevel(Optimizer):
    """List scheduling by bottom level, the longest path to the end; devices as they become idle where they are free."""

    needs_heads = frozenset({"priority"})

    def __init__(self, *, name: str) -> None:
        self.name = name

    def solve(self, problem: Problem) -> None:
        places = "device" in problem.task.heads
        heuristic = by_list if places else suggest(place_single, order_bottom_level)
        _answer(problem, _decide(problem, heuristic(Work(problem.graph, problem.task))))


def _answer(problem: Problem, decision: Decision) -> None:
    """One evaluation, or a commitment where there is no budget."""
    if problem.open:
        problem.cost(decision[None])
    else:
        problem.commit(decision)


def _decide(problem: Problem, said: Suggestion) -> Decision:
    """What was said in the task's heads, the rest as in the initial decision."""
    out, heads = problem.initial.copy(), problem.task.heads
    for column, head in enumerate(heads):
        free = problem.task.mask(problem.graph)[:, column]
        if head == "device":
            out[free, column] = said.device[free]
        elif head == "priority":
            out[free, column] = _to_levels(said.urgency[free], heads[head])
    return out


def _to_levels(urgency: F64, levels: int) -> F64:
    """Equal shares of the tasks per level; the most urgent get the highest."""
    position = np.empty(len(urgency))
    position[np.argsort(urgency, kind="stable")] = np.arange(len(urgency))
    return np.floor(position / max(1, len(urgency)) * levels)
