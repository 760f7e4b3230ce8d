"""Answers of fusion rules: from flags per op to a decision under the task's heads, priced once."""

import numpy as np
from numpy.typing import NDArray

from graphopt.errors import Incompatible
from graphopt.problems.problem import Problem
from graphopt.tasks.task import Decision

FUSION_HEADS = ("inline", "fusion_priority")


def answer(problem: Problem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> None:
    """Answers with the flags `inline` [N]: one evaluation, or a commitment where there is no budget.

    rank: [N] order in which the rule inlined the ops, from 0; read only where the head is a priority.
    """
    decision = as_decision(problem, inline, rank)
    if problem.open:
        problem.cost(decision[None])
    else:
        problem.commit(decision)


def as_decision(problem: Problem, inline: NDArray[np.bool_], rank: NDArray[np.int64]) -> Decision:
    """[N, H] the initial decision with its fusion head replaced where an op has a choice.

    Head `inline`: the flags. Head `fusion_priority` with K levels: stored ops get level 0, inlined ones levels K-1
    (inlined first) to 1. Raises Incompatible when the task decides no fusion.
    """
    heads = list(problem.task.heads)
    head = next((name for name in FUSION_HEADS if name in heads), None)
    if head is None:
        raise Incompatible(
            f"fusion rules need a task that decides fusion; task={problem.task.name} decides {', '.join(heads)}"
        )
    column = heads.index(head)
    choices = inline.astype(np.int16)
    if head == "fusion_priority":
        levels = problem.task.heads[head]
        order = np.argsort(np.argsort(np.where(inline, rank, np.iinfo(np.int64).max), kind="stable"), kind="stable")
        choices *= (levels - 1 - order * (levels - 1) // max(1, int(inline.sum()))).astype(np.int16)
    decision = problem.initial.copy()
    free = problem.task.mask(problem.graph)[:, column]
    decision[free, column] = choices[free]
    return decision
